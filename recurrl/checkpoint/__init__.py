"""Checkpoints of a run: their contents, which ones are kept, and how they are found."""

from recurrl.checkpoint.checkpoint import Checkpoint
from recurrl.checkpoint.files import add_evaluation
from recurrl.checkpoint.parts import Stateful, components
from recurrl.checkpoint.run import AUTO, find, newest, prune, save, to_resume

__all__ = [
    "AUTO",
    "Checkpoint",
    "Stateful",
    "add_evaluation",
    "components",
    "find",
    "newest",
    "prune",
    "save",
    "to_resume",
]
