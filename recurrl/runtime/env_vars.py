"""Environment variables that are read when the package is imported."""

import os

RNN_PRECISION = "TORCHRL_RNN_PRECISION"
_KNOWN_TO_TORCHRL = ("", "auto", "fast", "high-prec", "ieee", "tf32", "tf32x3")


def rnn_precision() -> str | None:
    """The precision that ``TORCHRL_RNN_PRECISION`` names, in lower case; None if it is unset or ``auto``."""
    name = os.environ.get(RNN_PRECISION, _hidden).strip().lower()
    return None if name in ("", "auto") else name


_is_known = os.environ.get(RNN_PRECISION, "").strip().lower() in _KNOWN_TO_TORCHRL
_hidden = "" if _is_known else os.environ.pop(RNN_PRECISION)
"""A value that TorchRL does not know, removed from the environment because it would make TorchRL's import fail."""
