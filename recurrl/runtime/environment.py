"""Environment variables that are read when the package is imported."""

import os

RNN_PRECISION = "TORCHRL_RNN_PRECISION"
_KNOWN_TO_TORCHRL = ("", "auto", "fast", "high-prec", "ieee", "tf32", "tf32x3")


def rnn_precision() -> str | None:
    """The precision that the environment names, of any spelling; None for none."""
    name = os.environ.get(RNN_PRECISION, _hidden).strip().lower()
    return None if name in ("", "auto") else name


_is_known = os.environ.get(RNN_PRECISION, "").strip().lower() in _KNOWN_TO_TORCHRL
_hidden = "" if _is_known else os.environ.pop(RNN_PRECISION)
"""A value that TorchRL does not know, which would make its import fail."""
