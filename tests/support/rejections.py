"""Errors that are expected."""

import pytest

from recurrl.errors import ConfigError


def error_of(call, *arguments, **options):
    """The message of the ``ConfigError`` that a call raises."""
    with pytest.raises(ConfigError) as caught:
        call(*arguments, **options)
    return str(caught.value)
