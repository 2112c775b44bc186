"""Checkpoints of a run: their contents, which ones are kept, and how they are found."""

from recurrl.checkpoint.checkpoint import Checkpoint, components, of_ranks, restore
from recurrl.checkpoint.files import add_evaluation
from recurrl.checkpoint.run import AUTO, BEST, LAST, RETURN_MEAN, best, find, prune, save, to_resume
from recurrl.checkpoint.warm_start import warm_start

__all__ = [
    "AUTO",
    "BEST",
    "LAST",
    "RETURN_MEAN",
    "Checkpoint",
    "add_evaluation",
    "best",
    "components",
    "find",
    "of_ranks",
    "prune",
    "restore",
    "save",
    "to_resume",
    "warm_start",
]
