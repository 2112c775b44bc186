"""The submodule that holds the parameters of a stack of layers: built from sizes, wrapped, or converted.

Torch's cells have two implementations with the same parameters: torch's own, and TorchRL's in plain Python, which works
with ``torch.vmap``. Any other cell has a :class:`StackedParameters`.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torchrl.modules
from torch import nn

from recurrl.recurrent.cell import Cell
from recurrl.recurrent.cells import make_cell
from recurrl.recurrent.gated import GatedCell
from recurrl.recurrent.layer import Parameters, StackedParameters

PYTHON_MODULES: dict[type[nn.RNNBase] | None, type[nn.RNNBase]] = {
    nn.GRU: torchrl.modules.GRU,
    nn.LSTM: torchrl.modules.LSTM,
}


def make_or_wrap(
    cell: str | Cell,
    owner: str,
    wrapped: nn.RNNBase | None,
    batch_first: bool,
    python_based: bool,
    device: torch.device | str | None,
    input_size: int | None,
    hidden_size: int | None,
    bias: bool,
    proj_size: int,
    **sizes: Any,
) -> tuple[Cell, nn.Module]:
    """Returns the cell, and ``wrapped`` or else a new submodule; ``sizes`` are the other arguments of ``nn.LSTM``.

    Raises:
        ValueError: ``batch_first`` is false, sizes are given with a wrapped module, a size is missing, or the cell does
            not have an option; the message names ``owner``.
    """
    if not (batch_first if wrapped is None else wrapped.batch_first):
        raise ValueError(
            f"batch_first=False is not possible for {owner}: a TensorDict's first dimensions are its batch."
        )
    if wrapped is not None:
        if input_size is not None or hidden_size is not None:
            raise ValueError(f"{owner} takes sizes or a {cell} to wrap, not both: the {cell} already has sizes.")
        return make_cell(cast(str, cell), wrapped.hidden_size, wrapped.bias, wrapped.proj_size), wrapped
    if isinstance(cell, Cell):
        if hidden_size is not None or not bias or proj_size:
            raise ValueError(
                f"{owner} takes hidden_size, bias and proj_size with the name of a cell only: this "
                f"{type(cell).__name__} already has its own. Leave them out."
            )
    elif hidden_size:
        cell = make_cell(cell, hidden_size, bias, proj_size)
    if not input_size or not isinstance(cell, Cell):
        raise ValueError(
            f"{owner} needs input_size and hidden_size, or a torch module to wrap. Got input_size={input_size} and "
            f"hidden_size={hidden_size}."
        )
    if cell.TORCH is None:
        return cell, StackedParameters(cell, input_size, **sizes, device=device)
    assert isinstance(cell, GatedCell)
    sizes |= {"proj_size": cell.proj_size} if cell.proj_size else {}
    form: Any = PYTHON_MODULES[cell.TORCH] if python_based else cell.TORCH
    module = form(input_size, cell.hidden_size, bias=cell.bias, **sizes, batch_first=True, device=device)
    return cell, module


def convert(old: nn.Module, form: type[nn.RNNBase] | None, cell: Cell) -> nn.Module:
    """Converts ``old`` to class ``form``, sharing its parameters; returns ``old`` if it is of that class already.

    Raises:
        ValueError: ``form`` is None: the cell has no other implementation.
    """
    if form is None:
        raise ValueError(f"The cell {cell.name} cannot be converted: torch has no module for it.")
    if isinstance(old, form):
        return old
    names = ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional")
    projected = ["proj_size"] if cast(Parameters, old).proj_size else []
    new = form(**{name: getattr(old, name) for name in (*names, *projected)}, device="meta")
    for name, parameter in old.named_parameters():
        setattr(new, name, parameter)
    return new.train(old.training)
