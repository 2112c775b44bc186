"""The submodule that holds the parameters of a stack of layers: built from sizes, wrapped, or converted.

Torch's cells have two implementations with the same parameters: ours in plain Python (:mod:`recurrl.recurrent.rnn`),
which works with ``torch.compile`` and ``torch.vmap``, and torch's own. Any other cell has a :class:`Stack`.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn

from recurrl.recurrent import rnn
from recurrl.recurrent.cells import load_cell
from recurrl.recurrent.layer import Parameters, Stack

PYTHON_MODULES: dict[str, type[nn.RNNBase]] = {"gru": rnn.GRU, "lstm": rnn.LSTM}


def make_or_wrap(
    cell_name: str,
    owner: str,
    wrapped: nn.RNNBase | None,
    batch_first: bool,
    device: torch.device | str | None,
    **sizes: Any,
) -> nn.Module:
    """Returns ``wrapped``, or else a new submodule; ``sizes`` are the other arguments of ``nn.LSTM``.

    Raises:
        ValueError: ``batch_first`` is false, sizes come with a wrapped module, a size is missing, or the cell has no
            projection; the message names ``owner``.
    """
    if not (batch_first if wrapped is None else wrapped.batch_first):
        raise ValueError(
            f"batch_first=False is not possible for {owner}: a TensorDict's first dimensions are its batch."
        )
    input_size, hidden_size = sizes["input_size"], sizes["hidden_size"]
    if wrapped is not None:
        if input_size is not None or hidden_size is not None:
            raise ValueError(
                f"{owner} takes sizes or a {cell_name} to wrap, not both: the {cell_name} already has sizes."
            )
        return wrapped
    if not input_size or not hidden_size:
        raise ValueError(
            f"{owner} needs input_size and hidden_size, or a torch module to wrap. Got input_size={input_size} and "
            f"hidden_size={hidden_size}."
        )
    return _make(cell_name, device, **sizes)


def _make(cell_name: str, device: torch.device | str | None, proj_size: int, **sizes: Any) -> nn.Module:
    cell = load_cell(cell_name)
    if proj_size and cell.TORCH is not nn.LSTM:
        raise ValueError(
            f"proj_size={proj_size} is not possible for cell {cell_name!r}, only for an LSTM. Leave it at 0."
        )
    if cell.TORCH is None:
        return Stack(cell, **sizes, device=device)
    projected: dict[str, Any] = {"proj_size": proj_size} if proj_size else {}
    # Not torch's own module, even where its kernels will run: torch.compile does not support it.
    return PYTHON_MODULES[cell_name](**sizes, **projected, batch_first=True, device=device)


def convert(old: nn.Module, form: type[nn.RNNBase] | None, cell_name: str) -> nn.Module:
    """Converts ``old`` to class ``form``, sharing its parameters; ``old`` itself if it is one already.

    Raises:
        ValueError: ``form`` is None: the cell has no other implementation.
    """
    if form is None:
        raise ValueError(f"Cell {cell_name!r} cannot be converted: torch has no module for it.")
    if isinstance(old, form):
        return old
    names = ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional")
    projected = ["proj_size"] if cast(Parameters, old).proj_size else []
    new = form(**{name: getattr(old, name) for name in (*names, *projected)}, device="meta")
    for name, parameter in old.named_parameters():
        setattr(new, name, parameter)
    return new.train(old.training)
