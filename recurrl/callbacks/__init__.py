"""Callbacks, which run around an iteration, those of users too; and its checkpoint, evaluation and logging."""

from recurrl.callbacks.callback import Callback, Callbacks, check_callbacks

__all__ = ["Callback", "Callbacks", "check_callbacks"]
