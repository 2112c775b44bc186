"""The eager scan: chunks of steps, and oneDNN matmuls."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from parity import PATTERNS, batch, outputs_and_gradients, relative_errors, resets
from torch import Tensor

from recurrl.recurrent import RecurrentModule, set_recurrent_mode
from recurrl.recurrent.backends.scan import packed, products
from recurrl.recurrent.segments import Segments

ROWS, STEPS, INPUTS, HIDDEN = 12, 11, 5, 7

has_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch is built without oneDNN")


def make(cell: str, backend: str = "scan", **options: object) -> RecurrentModule:
    torch.manual_seed(0)
    return RecurrentModule(cell, INPUTS, HIDDEN, recurrent_backend=backend, in_key="x", out_key="y", **options)


def errors_against_the_reference(module: RecurrentModule, is_init: Tensor, **options: object) -> dict[str, float]:
    """Errors of everything the module computes, against the reference in float64 from the same numbers."""
    reference = make(module.cell.name, "reference", **options).double()
    reference.load_state_dict(module.state_dict())
    data = batch(module, is_init)
    return relative_errors(outputs_and_gradients(module, data), outputs_and_gradients(reference, data))


@pytest.mark.parametrize("bytes_at_once", [1, 2000, 20_000])
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(
    ("cell", "options"), [("gru", {}), ("gru", {"bias": False}), ("lstm", {}), ("lstm", {"proj_size": 3})]
)
def test_a_backward_pass_in_chunks_equals_the_reference(
    cell: str, options: dict[str, object], pattern: str, bytes_at_once: int
) -> None:
    with mock.patch.object(packed, "_BYTES_AT_ONCE", bytes_at_once):
        errors = errors_against_the_reference(make(cell, **options).double(), resets(pattern, ROWS, STEPS), **options)
    assert max(errors.values()) < 1e-10, errors


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=12), rows_at_once=st.integers(0, 30))
def test_chunks_cover_all_steps_within_the_row_limit(sizes: list[int], rows_at_once: int) -> None:
    sizes.sort(reverse=True)
    chunks = packed._chunks(sizes, rows_at_once)
    assert [t for first, last, *_ in chunks for t in range(first, last)] == list(range(len(sizes)))
    assert [row for *_, begin, end in chunks for row in range(begin, end)] == list(range(sum(sizes)))
    for first, last, begin, end in chunks:
        assert end - begin == sum(sizes[first:last])
        assert end - begin <= rows_at_once or last - first == 1


@has_onednn
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(("cell", "options"), [("gru", {}), ("lstm", {}), ("lstm", {"proj_size": 3, "bias": False})])
def test_onednn_matmuls_are_accurate_to_five_digits(cell: str, options: dict[str, object], pattern: str) -> None:
    with (
        mock.patch.object(products, "_MIN_WORK", 1),
        mock.patch.object(products, "_BLOCKS", (32, 8)),
        mock.patch.object(packed, "_BYTES_AT_ONCE", 6000),
        mock.patch.object(products, "onednn_linear", side_effect=products.onednn_linear) as asked,
    ):
        errors = errors_against_the_reference(make(cell, **options), resets(pattern, ROWS, STEPS), **options)
    assert asked.call_count > 2 * STEPS if pattern == "none" else asked.called
    assert max(errors.values()) < 1e-5, errors


@has_onednn
def test_onednn_gets_only_large_float32_matmuls() -> None:
    assert products.min_rows(torch.empty(0), 256, 768) < 64
    assert products.min_rows(torch.empty(0), 64, 192) > 256
    assert products.min_rows(torch.empty(0, dtype=torch.float64), 256, 768) > 1 << 30
    with torch.backends.mkldnn.flags(enabled=False):
        assert products.min_rows(torch.empty(0), 256, 768) > 1 << 30


@given(rows=st.integers(0, 5000), least=st.integers(1, 2000))
def test_blocks_cover_all_rows_and_have_few_sizes(rows: int, least: int) -> None:
    found = list(products.blocks(rows, least))
    assert [begin for begin, *_ in found] == [0, *(end for _, end, _ in found)][: len(found)]
    assert sum(end - begin for begin, end, _ in found) == rows
    assert all((end - begin in products._BLOCKS and end - begin >= least) == is_large for begin, end, is_large in found)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_a_retained_graph_gives_the_same_gradients_twice(cell: str) -> None:
    module = make(cell)
    data = batch(module, resets("random", ROWS, STEPS))
    with set_recurrent_mode(True):
        loss = module(data)["y"].square().sum()
    first, second = (torch.autograd.grad(loss, list(module.parameters()), retain_graph=True) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_gradients_of_biases_do_not_share_memory(cell: str) -> None:
    """Scaling one in place, as clipping does, must not scale the other."""
    module = make(cell)
    with set_recurrent_mode(True):
        module(batch(module, resets("random", ROWS, STEPS)))["y"].sum().backward()
    storages = [parameter.grad.untyped_storage().data_ptr() for parameter in module.parameters()]
    assert len(set(storages)) == len(storages)


@given(data=st.data(), rows=st.integers(1, 5), steps=st.integers(1, 12))
def test_states_before_steps_and_after_segments_are_indexed(data: st.DataObject, rows: int, steps: int) -> None:
    flags = data.draw(st.lists(st.booleans(), min_size=rows * steps, max_size=rows * steps))
    packing = Segments.from_is_init(torch.tensor(flags).reshape(rows, steps)).packing
    found = packing.steps
    # States are numbered 100·segment + step; initial ones have step 0.
    segments = torch.arange(found.sizes[0])
    memory = torch.cat([100 * segments[:size] + t for t, size in enumerate([found.sizes[0], *found.sizes])])
    expected = torch.cat([100 * segments[:size] + t for t, size in enumerate(found.sizes)])
    assert torch.equal(found.entered(memory, 0, rows * steps), expected)
    assert torch.equal(memory[found.last_N], 100 * segments + torch.from_numpy(packing.lengths_N))
