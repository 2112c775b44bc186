"""What was there at the beginning is left out of collections, until the end."""

from __future__ import annotations

import gc

import pytest

from recurrl.garbage import start_up_spared


def test_what_is_there_is_spared_within_and_no_longer_after_an_exception() -> None:
    before = gc.get_freeze_count()
    with pytest.raises(KeyError), start_up_spared():
        assert gc.get_freeze_count() > before + 10_000
        raise KeyError
    assert gc.get_freeze_count() == 0
