"""Built-in and user-defined callbacks, and the recorder that checkpoints, evaluates and logs each iteration."""

from recurrl.callbacks.callback import Callback, Callbacks, check_callbacks

__all__ = ["Callback", "Callbacks", "check_callbacks"]
