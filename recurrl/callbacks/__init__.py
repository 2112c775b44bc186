"""Callbacks, which run around an iteration: statistics, checkpoints, evaluation, logging, and users' callbacks."""

from recurrl.callbacks.callback import Callback, Callbacks, IterationCallback, check_callbacks

__all__ = ["Callback", "Callbacks", "IterationCallback", "check_callbacks"]
