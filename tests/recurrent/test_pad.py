"""Segments joined end to end for one fused kernel call: nothing crosses from one to the next."""

from __future__ import annotations

import itertools
import math
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torch import Tensor

from recurrl.recurrent import LSTMModule, set_recurrent_mode
from recurrl.recurrent.backends import pad
from recurrl.recurrent.backends.pad import layout
from recurrl.recurrent.segments import Segments

STATES = ("recurrent_state_h", "recurrent_state_c")


def lstm(backend: str, inputs: int, hidden: int, layers: int = 1, bias: bool = True, scale: float = 1.0) -> LSTMModule:
    torch.manual_seed(0)
    module = LSTMModule(inputs, hidden, layers, bias=bias, recurrent_backend=backend, in_key="x", out_key="y").double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(scale)
    return module


def batch(is_init: Tensor, inputs: int, hidden: int, layers: int = 1) -> TensorDict:
    """A batch as collected: stored states wherever no episode begins, none requiring grad."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(*is_init.shape, inputs, dtype=torch.float64, generator=generator)
    data = TensorDict({"x": x.requires_grad_(), "is_init": is_init}, is_init.shape)
    for key in STATES:
        states = torch.randn(*is_init.shape, layers, hidden, dtype=torch.float64, generator=generator)
        data[key] = states.masked_fill(is_init[..., None, None], 0.0)
    return data


def outputs_and_gradients(module: LSTMModule, data: TensorDict) -> dict[str, Tensor]:
    with set_recurrent_mode(True):
        result = module(data.copy())
    found = {"y": result["y"], **{key: result["next", key] for key in STATES}}
    generator = torch.Generator().manual_seed(2)
    loss = sum(
        (value * torch.randn(value.shape, dtype=torch.float64, generator=generator).to(value)).sum()
        for value in found.values()
    )
    wanted = {"gradient of x": data["x"], **dict(module.named_parameters())}
    return found | dict(zip(wanted, torch.autograd.grad(loss, list(wanted.values())), strict=True))


def joins(module: LSTMModule, data: TensorDict) -> bool:
    """True if the batch's layout joins segments."""
    entering = [data[key][:, :, 0].flatten(0, 1) for key in STATES]
    packing = Segments.from_is_init(data["is_init"]).packing
    first = pad._must_be_first(tuple(state[packing.starts_N] for state in entering))
    return len(layout.joined(packing, first, None).readout_K) > 0


@settings(deadline=None)
@given(
    data=st.data(),
    rows=st.integers(1, 5),
    steps=st.integers(1, 14),
    steps_at_once=st.one_of(st.none(), st.integers(1, 40)),
    cost_of_a_block=st.sampled_from([0, 3, 1000]),
)
def test_a_layout_keeps_segments_contiguous_and_separated_by_gaps(
    data: st.DataObject, rows: int, steps: int, steps_at_once: int | None, cost_of_a_block: int
) -> None:
    count = rows * steps
    flags = torch.tensor(data.draw(st.lists(st.booleans(), min_size=count, max_size=count))).reshape(rows, steps)
    packing = Segments.from_is_init(flags).packing
    segments = [list(range(a, b + 1)) for a, b in zip(packing.starts_N, packing.ends_N, strict=True)]
    first = data.draw(st.lists(st.booleans(), min_size=len(segments), max_size=len(segments)))
    with mock.patch.object(layout, "_BLOCK", cost_of_a_block):
        found = layout.joined.__wrapped__(packing, bytes(first), steps_at_once)

    source = found.source_Q.tolist()
    chains: list[list[int]] = [[] for _ in found.heads_C]
    at = 0
    for block_steps, sizes in found.blocks:
        running = iter(chains)
        for size in sizes:
            assert steps_at_once is None or size == 1 or block_steps * (size - 1) < steps_at_once
            piece = np.arange(at, at + block_steps * size).reshape(block_steps, size)
            for column, chain in zip(piece.T, running, strict=False):
                chain += column.tolist()
            at += piece.size
    assert at == len(source)
    shown_of, last = {}, []
    for chain, head in zip(chains, found.heads_C.tolist(), strict=True):
        assert source[chain[0]] == segments[head][0]
        while True:
            index = [segment[0] for segment in segments].index(source[chain[0]])
            assert not first[index] or index == head
            length = len(segments[index])
            assert [source[place] for place in chain[:length]] == segments[index]
            chain = chain[length:]
            if {source[place] for place in chain} <= {count}:
                last.append(index)
                break
            assert [source[place] for place in chain[:3]] == [count, count + 1, count + 2]
            shown_of[chain[1]] = index
            chain = chain[3:]
    order = torch.tensor([*(shown_of.pop(place) for place in found.readout_K.tolist()), *last])
    assert not shown_of
    assert order[found.order_N].tolist() == list(range(len(segments)))
    assert torch.equal(found.source_Q[found.place_P], torch.arange(count))


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12), cost_of_one=st.integers(0, 8))
def test_blocks_cost_no_more_than_any_other_cut(lengths: list[int], cost_of_one: int) -> None:
    lengths.sort(reverse=True)
    sizes = [sum(length > step for length in lengths) for step in range(lengths[0])]

    def cost(edges: list[int]) -> int:
        return sum((end - first) * sizes[first] + cost_of_one for first, end in itertools.pairwise(edges))

    last = len(sizes)
    cuts = [[0, *(t for t in range(1, last) if mask >> (t - 1) & 1), last] for mask in range(2 ** (last - 1))]
    found = layout.blocks_of(np.array(lengths), cost_of_one)
    assert sum(steps * size + cost_of_one for _, steps, size in found) == min(map(cost, cuts))
    assert sum(steps for _, steps, _ in found) == last


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-10) -> None:
    """Relative error norm."""
    for name, value in expected.items():
        error = (found[name].double() - value).norm() / value.norm().clamp(min=1e-30)
        assert error < tolerance, f"{name}: {error:.1e}"


@pytest.mark.parametrize("scale", [1.0, 10.0], ids=["ordinary weights", "weights that saturate"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("layers", [1, 2])
def test_joined_segments_equal_the_reference(layers: int, bias: bool, scale: float) -> None:
    is_init = torch.rand(6, 40, generator=torch.Generator().manual_seed(3)) < 0.12
    data = batch(is_init, 4, 17, layers)
    module = lstm("pad", 4, 17, layers, bias, scale)
    assert joins(module, data)
    expected = outputs_and_gradients(lstm("reference", 4, 17, layers, bias, scale), data)
    with mock.patch.object(pad, "separate", side_effect=AssertionError("not joined")):
        assert_equal(outputs_and_gradients(module, data), expected)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), rows=st.integers(1, 5), steps=st.integers(1, 14))
def test_any_pattern_of_resets_equals_the_reference(data: st.DataObject, rows: int, steps: int) -> None:
    flags = data.draw(st.lists(st.booleans(), min_size=rows * steps, max_size=rows * steps))
    drawn = batch(torch.tensor(flags).reshape(rows, steps), 2, 3)
    with mock.patch.object(layout, "_BLOCK", 1000):  # joined segments run in one call
        found = outputs_and_gradients(lstm("pad", 2, 3), drawn)
    assert_equal(found, outputs_and_gradients(lstm("reference", 2, 3), drawn))


@pytest.mark.parametrize("scale", [1.0, 10.0], ids=["ordinary weights", "weights that saturate"])
def test_joined_segments_are_accurate_to_five_digits_in_float32(scale: float) -> None:
    is_init = torch.rand(8, 64, generator=torch.Generator().manual_seed(3)) < 0.1
    module, data = lstm("pad", 16, 32, scale=scale).float(), batch(is_init, 16, 32)
    reference = lstm("reference", 16, 32)
    reference.load_state_dict(module.state_dict())
    single = data.apply(lambda value: value.detach().float() if value.is_floating_point() else value)
    exact = single.apply(lambda value: value.double() if value.is_floating_point() else value)
    for each in (single, exact):
        each["x"].requires_grad_()
    assert joins(module, single)
    with mock.patch.object(pad, "separate", side_effect=AssertionError("not joined")):
        assert_equal(outputs_and_gradients(module, single), outputs_and_gradients(reference, exact), 1e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
def test_a_huge_or_non_finite_state_does_not_reach_the_next_segment(value: float) -> None:
    is_init = torch.zeros(4, 40, dtype=torch.bool)
    is_init[:, [6, 27]] = True
    module, data = lstm("pad", 3, 5), batch(is_init, 3, 5)
    data["recurrent_state_c"][0, 0] = value
    assert joins(module, data)
    with set_recurrent_mode(True), torch.no_grad():
        found, expected = module(data.copy()), lstm("reference", 3, 5)(data.copy())
    for key in ("y", ("next", STATES[0]), ("next", STATES[1])):
        torch.testing.assert_close(found[key], expected[key], rtol=1e-10, atol=1e-12, equal_nan=True)
        assert found[key][1:].isfinite().all()


def test_a_nonzero_initial_state_begins_a_chain() -> None:
    is_init = torch.rand(6, 40, generator=torch.Generator().manual_seed(3)) < 0.12
    module, data = lstm("pad", 3, 5), batch(is_init, 3, 5)
    given = torch.rand(is_init.shape, generator=torch.Generator().manual_seed(4)) < 0.5
    for key in STATES:
        data[key] = torch.where(given[..., None, None], torch.randn_like(data[key]), data[key])
    assert joins(module, data)
    assert_equal(outputs_and_gradients(module, data), outputs_and_gradients(lstm("reference", 3, 5), data))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_at_all_crosses_from_one_joined_segment_to_the_next(dtype: torch.dtype) -> None:
    """Chains mix segments of all rows, so a leak would show in another row."""
    is_init = torch.rand(6, 40, generator=torch.Generator().manual_seed(3)) < 0.12
    module = lstm("pad", 4, 17).to(dtype)
    data = batch(is_init, 4, 17).apply(lambda value: value.detach().to(dtype) if value.is_floating_point() else value)
    data["x"].requires_grad_()
    assert joins(module, data)
    with set_recurrent_mode(True):
        before = module(data.copy())
        for row in range(len(is_init)):
            others = torch.arange(len(is_init)) != row
            changed = data.detach().clone()
            changed["x"][row] *= 100
            after = module(changed)
            for key in ("y", ("next", STATES[0]), ("next", STATES[1])):
                assert torch.equal(before[key][others], after[key][others])
                (grad,) = torch.autograd.grad(before[key][others].sum(), data["x"], retain_graph=True)
                assert grad[row].abs().max() == 0
                assert grad[others].abs().max() > 0


def test_states_with_a_gradient_are_not_joined() -> None:
    is_init = torch.zeros(4, 40, dtype=torch.bool)
    is_init[:, [6, 27]] = True
    module, data = lstm("pad", 3, 5), batch(is_init, 3, 5)
    assert joins(module, data)
    data["recurrent_state_h"].requires_grad_()
    assert not joins(module, data)
