"""Memory traffic of the triton kernels: the counts behind the table in docs/kernels.md."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from parity import batch, resets
from torch import Tensor
from triton.runtime.interpreter import InterpreterBuilder
from triton_layers import WAYS, make

from recurrl.recurrent import set_recurrent_mode
from recurrl.recurrent.backends.triton import tiles
from recurrl.recurrent.backends.triton.launches import Launch

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="triton interprets only where there is no GPU")

# These do not scale with steps × features: weights, start flags, lanes, and one sum per program.
NOT_COUNTED = ("w_hh", "w_hh_t", "bias", "starts", "lane_begin", "lane_length", "slots", "grad_bias")


class Traffic:
    """Counts distinct elements loaded and stored per launch, summed over all launches."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.elements = 0
        self._seen: dict[str, list[np.ndarray]] = {}
        for name in ("create_masked_load", "create_masked_store"):
            monkeypatch.setattr(InterpreterBuilder, name, self._recording(name))
        run = Launch.run

        def counted(launch: Launch, size: tuple[int, int], *arguments: Tensor | int) -> None:
            self._seen = {}
            run(launch, size, *arguments)
            names = launch.kernel.arg_names[: len(arguments)]
            self._count([a for name, a in zip(names, arguments, strict=True) if name not in NOT_COUNTED])

        monkeypatch.setattr(Launch, "run", counted)

    def _recording(self, name: str) -> Any:
        access = getattr(InterpreterBuilder, name)
        is_load = name.endswith("load")

        def record(builder: Any, pointers: Any, *rest: Any) -> Any:
            mask = rest[0] if is_load else rest[1]
            self._seen.setdefault(name, []).append(pointers.data[mask.data])
            return access(builder, pointers, *rest)

        return record

    def _count(self, arguments: list[Tensor | int]) -> None:
        tensors = {t.data_ptr(): t for t in arguments if isinstance(t, Tensor) and t.numel()}
        for addresses in self._seen.values():
            distinct = np.unique(np.concatenate(addresses))
            for begin, tensor in tensors.items():
                end = begin + tensor.numel() * tensor.element_size()
                self.elements += int(((distinct >= begin) & (distinct < end)).sum())


# The table's units minus those of torch's matmuls: the input projection written (twice if recomputed), and the reads
# for the gradients of x and the weights.
@pytest.mark.parametrize(
    ("cell", "choose", "recompute", "units"),
    [
        ("gru", "configuration", "none", 32 - 13),
        ("gru", "configuration", "full", 39 - 16),
        ("gru", "step_configuration", "none", 38 - 13),
        ("gru", "step_configuration", "full", 45 - 16),
        ("lstm", "configuration", "none", 40 - 17),
        ("lstm", "configuration", "full", 49 - 21),
        ("lstm", "step_configuration", "none", 49 - 17),
        ("lstm", "step_configuration", "full", 58 - 21),
    ],
)
def test_kernel_traffic_matches_the_documented_table(
    cell: str, choose: str, recompute: str, units: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, steps, hidden = 3, 12, 16
    monkeypatch.setattr(tiles, "configuration", getattr(tiles, choose))
    module = make(cell, hidden, **WAYS[recompute])
    data = batch(module, resets("none", rows, steps))
    traffic = Traffic(monkeypatch)
    with set_recurrent_mode(True):
        module(data)["y"].sum().backward()
    # The first step reads a stored state; the last has no successor.
    assert round(traffic.elements / (rows * steps * hidden)) == units
