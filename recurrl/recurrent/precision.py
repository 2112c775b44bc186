"""Precision of the recurrent matrix products.

``ieee`` is full float32. ``tf32`` rounds the factors to 10 bits of mantissa, ``tf32x3`` compensates it with three
products, ``bf16`` rounds to 8 bits; all three need a GPU. ``fast`` and ``high-prec`` choose by device: ``tf32`` and
``tf32x3`` on an NVIDIA GPU of compute capability 8.0 or above, ``ieee`` elsewhere.
"""

from __future__ import annotations

import torch

PRESETS = {"fast": "tf32", "high-prec": "tf32x3"}
MODES = ("ieee", "tf32", "tf32x3", "bf16", *PRESETS)


def resolve(mode: str, device: torch.device) -> str:
    """The concrete mode that ``mode`` stands for on ``device``."""
    if mode not in PRESETS:
        return mode
    tensor_cores = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    return PRESETS[mode] if tensor_cores else "ieee"


def refusal(mode: str, device: torch.device) -> str | None:
    """None when ``mode`` can be honoured on ``device`` by today's backends, else why not and what to choose."""
    concrete = resolve(mode, device)
    if concrete != "ieee" and device.type == "cpu":
        return f"precision={mode} needs a GPU, and device={device} has none of its formats. Choose precision=ieee."
    if concrete in ("tf32x3", "bf16"):
        return (
            f"precision={mode} is not possible on {device}: it needs the triton kernels, which this version of "
            "recurrl does not have yet. Choose precision=ieee or precision=tf32."
        )
    return None
