"""Which arguments of a kernel are the same tensor, found by recording what the layer passes when it launches.

A recorder takes the place of triton's launch: nothing is compiled or computed, so no GPU is needed, and what the layer
really passes is known, not what somebody declared. Two arguments are the same if they share storage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from recurrl.recurrent.backends import LayerWeights, Options, load_backend
from recurrl.recurrent.cells import load_cell
from recurrl.recurrent.segments import Segments

Groups = dict[str, set[tuple[str, ...]]]
"""By kernel: the arguments that share storage in some launch."""


def shared_arguments(cell: str, hidden_sizes: Sequence[int], recomputes: Sequence[str]) -> Groups:
    """The groups of all kernels that training one layer launches, with biases and without, in every combination."""
    with recorded() as groups:
        for hidden in hidden_sizes:
            for recompute in recomputes:
                for bias in (True, False):
                    _train(cell, hidden, bias, Options(recompute, "ieee", hidden_size=hidden))
    return groups


@contextmanager
def recorded() -> Iterator[Groups]:
    """Within it, kernels are recorded and not launched; what they write is left as it was allocated."""
    from triton.runtime import KernelInterface

    groups: Groups = {}

    def recorder(kernel: Any, grid: Any) -> Callable[..., None]:
        def record(*arguments: Any, **named: Any) -> None:
            given = dict(zip(kernel.arg_names, arguments, strict=False)) | named
            groups.setdefault(kernel.__name__, set()).update(_sharing(given))

        return record

    with mock.patch.object(KernelInterface, "__getitem__", recorder):
        yield groups


def _sharing(arguments: dict[str, Any]) -> list[tuple[str, ...]]:
    """Names of the arguments that share storage, more than one a group. An empty tensor shares nothing."""
    by_storage: dict[int, list[str]] = {}
    for name, value in arguments.items():
        if isinstance(value, Tensor) and value.numel() > 0:
            by_storage.setdefault(value.untyped_storage().data_ptr(), []).append(name)
    return [tuple(names) for names in by_storage.values() if len(names) > 1]


def _train(cell_name: str, hidden: int, bias: bool, options: Options) -> None:
    """One layer forwards and backwards, two rows of five steps with a reset."""
    cell = load_cell(cell_name)
    rows, steps, inputs, gates = 2, 5, 3, {"gru": 3, "lstm": 4}[cell_name] * hidden
    starts_BT = torch.zeros(rows, steps, dtype=torch.bool)
    starts_BT[0, 2] = True
    weights = LayerWeights(
        torch.zeros(gates, inputs, requires_grad=True),
        torch.zeros(gates, hidden, requires_grad=True),
        torch.zeros(gates, requires_grad=True) if bias else None,
        torch.zeros(gates, requires_grad=True) if bias else None,
    )
    x_BTI = torch.zeros(rows, steps, inputs)
    stored = tuple(torch.zeros(rows, steps, hidden, requires_grad=True) for _ in cell.STATES)
    output_BTH, _ = load_backend("triton").sequence(
        cell, x_BTI, Segments.from_is_init(starts_BT), stored, weights, options
    )
    output_BTH.sum().backward()
