"""States of tensors and plain values as bytes, to send from one process to another."""

import io
from typing import Any

import torch


def to_bytes(state: Any) -> bytes:
    """A state as ``torch.save`` writes it."""
    data = io.BytesIO()
    torch.save(state, data)
    return data.getvalue()


def from_bytes(saved: bytes) -> Any:
    """A state that :func:`to_bytes` returned, on the CPU."""
    return torch.load(io.BytesIO(saved), map_location="cpu", weights_only=True)
