"""Which arguments of the kernels are the same tensor."""

from __future__ import annotations

import pytest
import torch
import triton

from recurrl.benchmark.launched import recorded, shared_arguments


@triton.jit
def _kernel(x, y, z, N):
    pass


def test_arguments_that_share_storage_are_found_and_empty_ones_are_not() -> None:
    x = torch.zeros(6)
    with recorded() as groups:
        _kernel[(1,)](x, x[3:], torch.zeros(6), 6)
        _kernel[(1,)](torch.zeros(0), torch.zeros(0), z=x, N=6)
    assert groups == {"_kernel": {("x", "y")}}


@pytest.mark.parametrize("hidden", [17, 64])
def test_a_gru_passes_its_one_state_in_the_place_of_both_and_an_lstm_does_not(hidden: int) -> None:
    one, two = (shared_arguments(cell, [hidden], ["none"]) for cell in ("gru", "lstm"))
    assert one.keys() == two.keys()
    for kernel in one:
        assert ("stored_h", "stored_c") in one[kernel]
        assert ("stored_h", "stored_c") not in two[kernel]
