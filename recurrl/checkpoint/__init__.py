"""Checkpoints of a run: their contents, which ones are kept, and how they are found."""

from recurrl.checkpoint.checkpoint import (
    AUTO,
    BEST,
    LAST,
    RETURN_MEAN,
    Checkpoint,
    best,
    components,
    find,
    prune,
    save,
    to_resume,
)
from recurrl.checkpoint.files import Stateful, add_evaluation
from recurrl.checkpoint.warm_start import warm_start

__all__ = [
    "AUTO",
    "BEST",
    "LAST",
    "RETURN_MEAN",
    "Checkpoint",
    "Stateful",
    "add_evaluation",
    "best",
    "components",
    "find",
    "prune",
    "save",
    "to_resume",
    "warm_start",
]
