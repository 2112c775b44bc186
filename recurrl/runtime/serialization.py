"""States of tensors and plain values as bytes, to send from one process to another."""

import io
import pickle
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch

from recurrl.errors import RunError, message_of


@runtime_checkable
class Stateful(Protocol):
    """An object whose state can be saved and restored."""

    def state_dict(self) -> Any:
        """The state, of tensors and plain values."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Restores what ``state_dict`` returned."""


def state_copy(owner: Stateful, name: str) -> Any:
    """A copy of an object's state, on the CPU. The object may be a user's, so its state is checked.

    Args:
        owner: the object.
        name: its name, for errors.

    Raises:
        RunError: the state holds something other than tensors and plain values.
    """
    state = owner.state_dict()
    if isinstance(state, Mapping) and not state:
        return {}
    try:
        return from_bytes(to_bytes(state))
    except Exception as error:
        # torch's own message explains at length how to load untrusted files.
        why = "" if isinstance(error, pickle.UnpicklingError) else f": {message_of(error)}"
        raise RunError(
            f"state_dict() of {name} must return tensors and plain values{why}. Convert other objects, such as arrays."
        ) from error


def to_bytes(state: Any) -> bytes:
    """A state as ``torch.save`` writes it."""
    data = io.BytesIO()
    torch.save(state, data)
    return data.getvalue()


def from_bytes(saved: bytes) -> Any:
    """A state that :func:`to_bytes` returned, on the CPU."""
    return torch.load(io.BytesIO(saved), map_location="cpu", weights_only=True)
