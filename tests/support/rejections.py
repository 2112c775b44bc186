"""Errors that are expected."""

import pytest

from recurrl.errors import ConfigError


def error_of(call, *arguments, kind=ConfigError, **options):
    """The message of the error that a call raises."""
    with pytest.raises(kind) as caught:
        call(*arguments, **options)
    return str(caught.value)
