"""Linear recurrences over segments."""

import pytest
import torch

from recurrl.recurrent.backends.native import NativeRecurrence
from recurrl.recurrent.backends.triton.recurrence import TritonRecurrence
from recurrl.recurrent.linear_recurrence import linear_recurrence
from recurrl.recurrent.segments import expanded

FORMS = {  # the shapes of a and of a state, and the dimension of real and imaginary parts
    "a vector": ((3,), (3,), None),
    "a number": ((), (), None),
    "a matrix that forgets by rows": ((3, 1), (3, 4), None),
    "a matrix that forgets by columns": ((1, 4), (3, 4), None),
    "complex": ((2, 3), (2, 3), -2),
    "a complex matrix that forgets by rows": ((2, 3, 1), (2, 3, 2), -3),
}
OF_NATIVE = pytest.param(NativeRecurrence.recurrence, marks=pytest.mark.native)


@pytest.mark.parametrize("steps", [(2, 7), ()], ids=["of each step", "of all steps"])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("recurrence", [linear_recurrence, OF_NATIVE, TritonRecurrence.recurrence])
def test_a_linear_recurrence_equals_its_loop_and_has_its_derivatives(recurrence, form, steps):
    (of_a, of_state, pair), generator = form, torch.Generator().manual_seed(0)
    a = torch.rand((*steps, *of_a), dtype=torch.float64, generator=generator)
    b, stored = torch.randn(2, 2, 7, *of_state, dtype=torch.float64, generator=generator).unbind(0)
    starts = torch.tensor([[True, False, False, True, True, False, False], [True] + [False] * 6])
    inputs = [a.requires_grad_(), b.requires_grad_(), stored.requires_grad_()]
    s, states = stored[:, 0], []
    for t in range(7):
        before = torch.where(expanded(starts[:, t], s), stored[:, t], s)
        of_t = a[:, t] if steps else a
        if pair is not None:  # as complex numbers
            before, of_t = (torch.complex(*each.unbind(pair)) for each in (before, of_t))
        s = of_t * before
        s = (torch.stack((s.real, s.imag), pair) if pair is not None else s) + b[:, t]
        states.append(s)
    expected = torch.stack(states, 1)

    def run(a, b, stored):
        return recurrence(a, b, starts, stored, pair)

    unread = torch.where(expanded(starts, stored), stored, torch.nan)
    torch.testing.assert_close(run(a, b, unread), expected, rtol=1e-12, atol=1e-12)
    weight = torch.randn(expected.shape, dtype=torch.float64, generator=generator)
    gradients = torch.autograd.grad(run(*inputs), inputs, weight)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, inputs, weight), rtol=1e-11, atol=1e-11)
    if recurrence is linear_recurrence:
        assert torch.autograd.gradgradcheck(run, inputs, fast_mode=True)
