"""When the triton backend is available, and which kernels it launches."""

import re

import pytest
import torch

from recurrl.recurrent.backends import Options
from recurrl.recurrent.backends.triton import tiles
from recurrl.recurrent.cells import make_cell
from recurrl.recurrent.choice import unsupported_reason

CPU = torch.device("cpu")


UNSUPPORTED = [
    ("indrnn", 4, {}, "has no kernel for the cell indrnn"),
    ("mingru", 4, {"precision": "bf16"}, "precision=bf16 is not possible .* it needs gru or lstm"),
    ("gru", 1025, {}, "hidden_size=1025 is not possible .* tested up to 1024"),
]


@pytest.mark.parametrize(("cell", "hidden_size", "options", "message"), UNSUPPORTED)
def test_unsupported_options_are_rejected(cell, hidden_size, options, message):
    reason = unsupported_reason("triton", make_cell(cell, hidden_size), Options(**options), CPU)
    assert re.search(message, str(reason))


def test_without_a_gpu_and_the_interpreter_the_backend_says_so(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    reason = unsupported_reason("triton", make_cell("gru", 64), Options(), CPU)
    assert str(reason).startswith("backend=triton needs a CUDA device, and this is device=cpu. Choose backend=auto")


@pytest.mark.parametrize(("capability", "runs"), [((7, 5), False), ((8, 0), True), ((8, 9), True), ((9, 0), True)])
def test_an_old_gpu_is_rejected(capability, runs, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    reason = unsupported_reason("triton", make_cell("gru", 512), Options(), torch.device("cuda"))
    assert (reason is None) is runs
    assert runs or "needs compute capability 8.0 or above" in str(reason)


@pytest.mark.parametrize("precision", tiles.PRECISIONS)
def test_every_tile_is_a_power_of_two_that_tensor_cores_can_take(precision):
    for hidden in range(1, tiles.MAX_HIDDEN_SIZE + 1):
        lanes, units, depth, *_ = tiles.configuration(hidden, precision)
        assert all(size >= 16 and size & (size - 1) == 0 for size in (lanes, units, depth))
        assert units >= hidden or hidden > 64
