"""What was there at the beginning is left out of collections, until the end."""

from __future__ import annotations

import gc

from recurrl.runtime.garbage import start_up_spared


def test_what_is_there_is_spared_within_and_no_longer_after_an_exception() -> None:
    before = gc.get_freeze_count()
    spared = start_up_spared()
    spared.__enter__()
    assert gc.get_freeze_count() > before + 10_000
    assert not spared.__exit__(KeyError, KeyError(), None)
    assert gc.get_freeze_count() == 0
