"""Recorded operations: what is repeated, and what cannot be."""

from __future__ import annotations

import math
import re
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from recurrl.learning.recording import Recording, record

torch.manual_seed(0)
WEIGHT = torch.randn(3, 3, requires_grad=True)
COUNTER = torch.zeros(3)
ELSEWHERE = torch.randn(3)


def with_gradient(x: Tensor) -> list[Tensor]:
    y = (x @ WEIGHT).tanh().square().sum()
    return [y, *torch.autograd.grad(y, [WEIGHT])]


def in_place_on_a_view(x: Tensor) -> list[Tensor]:
    y = x.clone()
    y[:, 0].mul_(2).add_(1)
    y.t()[2].copy_(x[:, 1])
    return [y]


def limits(x: Tensor) -> list[Tensor]:
    return [x.clamp(-math.inf, 0.5), x.masked_fill(x > 0, math.nan), torch.full_like(x, -math.inf)]


def parts(x: Tensor) -> list[Tensor]:
    first, second, third = x.unbind(1)
    largest, where = x.max(1)
    return [third, first + second, where, largest, *x.split([1, 2], 1), torch.cat([first, second])]


def convolved(x: Tensor) -> list[Tensor]:
    kernel = torch.nn.functional.conv1d(x.unsqueeze(1), WEIGHT.unsqueeze(1)[:, :, :2])
    return [*torch.autograd.grad(kernel.sum(), [WEIGHT]), kernel]


def numbers(x: Tensor) -> list[Tensor]:
    return [x * torch.tensor(0.3, dtype=torch.float64), x + torch.tensor([1.0, 2.0, 3.0]), x.new_tensor(2) * x]


def of_another_dtype(x: Tensor) -> list[Tensor]:
    return [x.double().sum(0, dtype=torch.float64), (x > 0).to(torch.int8, memory_format=torch.contiguous_format)]


def the_inputs(x: Tensor) -> list[Tensor]:
    return [x, x.detach(), WEIGHT]


REPEATED = [
    with_gradient,
    in_place_on_a_view,
    limits,
    parts,
    convolved,
    numbers,
    of_another_dtype,
    the_inputs,
]


def recorded(function: Callable[[Tensor], list[Tensor]], x: Tensor) -> tuple[list[Tensor], Recording | str]:
    results, recording = record(lambda: function(x), [x], [WEIGHT, COUNTER])
    return list(results), recording


@pytest.mark.parametrize("function", REPEATED, ids=lambda function: function.__name__)
def test_it_computes_the_same_of_other_tensors(function: Callable[[Tensor], list[Tensor]]) -> None:
    first, second = torch.randn(2, 4, 3)
    found, recording = recorded(function, first)
    assert isinstance(recording, Recording)
    for x, expected in ((first, found), (second, function(second))):
        repeated = recording([x])
        assert not any(result.requires_grad for result in repeated if result is not WEIGHT)
        torch.testing.assert_close(list(repeated), expected, rtol=0, atol=0, equal_nan=True)


def test_it_reads_constants_as_they_are_now_and_writes_into_them() -> None:
    x = torch.randn(4, 3)

    def count(x: Tensor) -> list[Tensor]:
        COUNTER.add_(1)
        return [x * COUNTER]

    COUNTER.zero_()
    _, recording = recorded(count, x)
    assert isinstance(recording, Recording)
    assert torch.equal(recording([x])[0], 2 * x)
    COUNTER.fill_(9)
    assert torch.equal(recording([x])[0], 10 * x)


def looks(x: Tensor) -> list[Tensor]:
    return [x * 2 if x.sum() > 0 else x]


NOT_REPEATED: dict[str, tuple[Callable[[Tensor], list[Tensor]], str]] = {
    "random": (lambda x: [x + torch.randn(3)], "aten.randn.default is random"),
    "dropout": (lambda x: [torch.nn.functional.dropout(x)], "aten.bernoulli_.float is random"),
    "a branch": (looks, "aten._local_scalar_dense.default makes a Python value of a tensor"),
    "a number": (lambda x: [x * x.max().item()], "aten._local_scalar_dense.default makes a Python value of a tensor"),
    "a comparison": (lambda x: [x * torch.equal(x, x)], "aten.equal.default makes a Python value of a tensor"),
    "a tensor from elsewhere": (lambda x: [x + ELSEWHERE], r"a tensor of shape \(3,\) comes from elsewhere"),
    "indices found outside of torch": (
        lambda x: [x[torch.from_numpy(np.argsort(x[:, 0].detach().numpy()))]],
        r"a tensor of shape \(4,\) comes from elsewhere",
    ),
}


@pytest.mark.parametrize(("function", "reason"), NOT_REPEATED.values(), ids=NOT_REPEATED)
def test_what_would_differ_for_other_tensors_is_not_repeated(
    function: Callable[[Tensor], list[Tensor]], reason: str
) -> None:
    (result,), refusal = recorded(function, torch.randn(4, 3))
    assert result.shape == (4, 3)
    assert isinstance(refusal, str)
    assert re.fullmatch(reason, refusal), refusal


def test_only_inputs_of_the_same_layout_fit() -> None:
    _, recording = recorded(with_gradient, torch.randn(4, 3))
    assert isinstance(recording, Recording)
    assert recording.fits([torch.randn(4, 3)])
    for other in (torch.randn(5, 3), torch.randn(3, 4).t(), torch.randn(4, 3).double(), torch.randn(4, 3, 1)):
        assert not recording.fits([other])


class Lives(TorchDispatchMode):
    """The largest number of results alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: weakref.WeakSet[Tensor] = weakref.WeakSet()
        self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        self.alive.add(found)
        self.most = max(self.most, len(self.alive))
        return found


def test_memory_is_freed_as_soon_as_nothing_reads_it_and_what_nothing_reads_is_not_computed() -> None:
    def long(x: Tensor) -> list[Tensor]:
        for _ in range(20):
            x.cos()
            x = x.sin()
        return [x]

    _, recording = recorded(long, torch.randn(4, 3))
    assert isinstance(recording, Recording)
    with Lives() as lives:
        recording([torch.randn(4, 3)])
    assert lives.most <= 3
