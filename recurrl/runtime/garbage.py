"""Python's garbage collector while training."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def start_up_spared() -> Iterator[None]:
    """Excludes existing objects, which live on, from garbage collection within the block.

    torch and related modules are some hundred thousand objects; traversing them repeatedly took 5% of the time.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
