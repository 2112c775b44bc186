"""When the triton backend is available, and which kernels it launches."""

import re

import pytest
import torch

from recurrl.recurrent.backends import Options
from recurrl.recurrent.backends.triton import tiles
from recurrl.recurrent.cells import make_cell
from recurrl.recurrent.choice import unsupported_reason

CPU = torch.device("cpu")


def test_a_linear_cell_has_no_matmuls_of_another_precision():
    reason = unsupported_reason("triton", make_cell("mingru", 4), Options(precision="bf16"), CPU)
    assert re.search("precision=bf16 is not supported by .* it needs gru or lstm", str(reason))


@pytest.mark.parametrize(("capability", "runs"), [((7, 5), False), ((8, 0), True), ((8, 9), True), ((9, 0), True)])
def test_an_old_gpu_is_rejected(capability, runs, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    reason = unsupported_reason("triton", make_cell("gru", 512), Options(), torch.device("cuda"))
    assert (reason is None) is runs
    assert runs or "needs compute capability 8.0 or above" in str(reason)


@pytest.mark.parametrize("precision", tiles.PRECISIONS)
def test_every_tile_is_a_power_of_two_that_tensor_cores_can_take(precision):
    for hidden in range(1, tiles.MAX_HIDDEN_SIZE + 1):
        chosen = tiles.configuration(hidden, precision)
        assert all(chosen[name] >= 16 and chosen[name] & (chosen[name] - 1) == 0 for name in ("BM", "BH", "BK"))
        assert chosen["BH"] >= hidden or hidden > 64
