"""Recording of the layer's kernel launches."""

from __future__ import annotations

import pytest
import torch
import triton

from benchmarks.launched import launched_by_training, recorded


@triton.jit
def _kernel(x, y, z, N, FLAG):
    pass


def test_arguments_whose_memory_overlaps_are_found_and_those_side_by_side_are_not() -> None:
    x = torch.zeros(2, 6)
    with recorded() as launched:
        _kernel[(1,)](x, x[1], x[0, 3:], 6, FLAG=True)
        _kernel[(1,)](x[:, :3], x[:, 5], z=x[:0], N=6, FLAG=False)
    assert launched["_kernel"].same == {("x", "y"), ("x", "z")}
    assert launched["_kernel"].forms == {frozenset({("FLAG", True)}), frozenset({("FLAG", False)})}


def test_a_gru_passes_its_one_state_in_the_place_of_both_and_an_lstm_does_not() -> None:
    one, two = (launched_by_training(cell) for cell in ("gru", "lstm"))
    assert one.keys() == two.keys()
    for kernel in one:
        assert ("stored_h", "stored_c") in one[kernel].same
        assert ("stored_h", "stored_c") not in two[kernel].same


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_every_form_of_a_kernel_is_launched(cell: str) -> None:
    for launched in launched_by_training(cell).values():
        flags = {name for form in launched.forms for name, _ in form} - {"LSTM"}
        assert all((flag, value) in frozenset().union(*launched.forms) for flag in flags for value in (True, False))
