"""Records the layer's kernel launches: which arguments share a tensor, and which forms of a kernel exist.

A recorder replaces triton's launch, so nothing is compiled or computed and no GPU is needed, and the result is what the
layer really passes rather than what somebody declared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from recurrl.recurrent.backends import RECOMPUTE, Options, load_backend
from recurrl.recurrent.backends.triton import table
from recurrl.recurrent.backends.triton.table import Configuration
from recurrl.recurrent.cells import make_cell
from recurrl.recurrent.segments import Segments

_HIDDEN = 16
Form = frozenset[tuple[str, bool]]
"""The boolean arguments of a launch: compile-time constants of the kernel."""


@dataclass
class Launched:
    """All launches of one kernel."""

    same: set[tuple[str, str]] = field(default_factory=set)
    """Pairs of arguments whose memory overlaps in at least one launch."""
    forms: set[Form] = field(default_factory=set)


def launched_by_training(cell: str) -> dict[str, Launched]:
    """The launches of one layer, by kernel.

    Covers resident weights and one launch per step; with and without biases, gradients and gradients of the stored
    states; every recompute mode.
    """
    kinds = (Configuration(resident, 16, _HIDDEN, _HIDDEN, warps=4, stages=1) for resident in (True, False))
    with recorded() as launched:
        for kind, recompute, has_bias, wants_stored in product(kinds, RECOMPUTE, (True, False), (True, False)):
            options = Options(recompute, chunk_len=2, precision="ieee")
            with table.forced(kind):
                _output(cell, has_bias, wants_stored, options).sum().backward()
                with torch.no_grad():
                    _output(cell, has_bias, wants_stored, options)
    return launched


@contextmanager
def recorded() -> Iterator[dict[str, Launched]]:
    """Context manager that records kernels instead of launching them; their outputs stay uninitialised."""
    from triton.runtime import KernelInterface

    launched: dict[str, Launched] = {}

    def recorder(kernel: Any, grid: Any) -> Callable[..., None]:
        def record(*arguments: Any, **named: Any) -> None:
            given = dict(zip(kernel.arg_names, arguments, strict=False)) | named
            of_kernel = launched.setdefault(kernel.__name__, Launched())
            of_kernel.same.update(_overlapping(given))
            of_kernel.forms.add(frozenset((name, value) for name, value in given.items() if isinstance(value, bool)))

        return record

    with mock.patch.object(KernelInterface, "__getitem__", recorder):
        yield launched


def _overlapping(arguments: dict[str, Any]) -> list[tuple[str, str]]:
    """Pairs of arguments whose memory overlaps. Empty tensors have none."""
    ranges = {name: _memory(value) for name, value in arguments.items() if isinstance(value, Tensor) and value.numel()}
    return [
        (one, other)
        for (one, (begin, end)), (other, (other_begin, other_end)) in combinations(ranges.items(), 2)
        if begin < other_end and other_begin < end
    ]


def _memory(tensor: Tensor) -> tuple[int, int]:
    """The tensor's address range, end exclusive."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + span * tensor.element_size()


def _output(cell_name: str, has_bias: bool, wants_stored: bool, options: Options) -> Tensor:
    """The output of one layer for two rows of five steps with a reset."""
    rows, steps, inputs = 2, 5, 3
    cell = make_cell(cell_name, _HIDDEN, has_bias)
    starts_BT = torch.zeros(rows, steps, dtype=torch.bool)
    starts_BT[0, 2] = True
    weights = {name: torch.zeros(shape, requires_grad=True) for name, shape in cell.parameters(inputs).items()}
    stored = tuple(torch.zeros(rows, steps, *s, requires_grad=wants_stored) for s in cell.states().values())
    x_BTI = torch.zeros(rows, steps, inputs)
    return load_backend("triton").sequence(cell, x_BTI, Segments.from_is_init(starts_BT), stored, weights, options)[0]
