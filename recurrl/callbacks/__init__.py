"""Built-in and user-defined callbacks: statistics, checkpoints, evaluation and logging."""

from recurrl.callbacks.callback import Callback, Callbacks, IterationCallback, check_callbacks

__all__ = ["Callback", "Callbacks", "IterationCallback", "check_callbacks"]
