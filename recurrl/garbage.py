"""Python's garbage collector while training."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def start_up_spared() -> Iterator[None]:
    """Leaves what is there at its beginning, which is there to stay, out of every collection within.

    The modules of torch and its kin are some hundred thousand objects. To go through them again and again took a
    twentieth of the time.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
