import copy
import pickle

import pytest
import torch
from torch import nn

from recurrl.learning.flat import Adam, clip_gradients, flattened


def mixed() -> nn.Module:
    """Parameters of two dtypes, a shared one, one in another memory format, and a frozen one."""
    torch.manual_seed(0)
    module = nn.ModuleDict(
        {
            "conv": nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last),
            "wide": nn.Linear(3, 2).double(),
            "frozen": nn.Linear(2, 2).requires_grad_(False),
            "scalar": nn.ParameterList([nn.Parameter(torch.tensor(2.0))]),
        }
    )
    module["again"] = module["wide"]
    return module


def test_parameters_and_gradients_are_views_of_one_vector_per_dtype() -> None:
    module, before = mixed(), mixed()
    single, double = flattened(module)
    assert (single.dtype, single.numel()) == (torch.float32, 24 + 3 + 1)
    assert (double.dtype, double.numel()) == (torch.float64, 8)
    torch.testing.assert_close(dict(module.state_dict()), dict(before.state_dict()), rtol=0, atol=0)
    single.data.fill_(3.0)
    assert all((p == 3).all() for p in module["conv"].parameters())
    assert (module["frozen"].weight == before["frozen"].weight).all()
    (module["conv"](torch.ones(1, 2, 2, 2)).sum() + 5 * module["scalar"][0]).backward()
    assert single.grad is not None
    assert single.grad.unique().tolist() == [1.0, 5.0]
    assert double.grad is not None
    assert not double.grad.any()


def test_copies_do_not_share_the_vector() -> None:
    module = mixed()
    flattened(module)
    before = {name: p.clone() for name, p in module.named_parameters()}
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.zero_()
    torch.testing.assert_close(dict(module.named_parameters()), before, rtol=0, atol=0)


@pytest.mark.parametrize("limit", [0.5, 1e6, None])
@pytest.mark.parametrize("vectors", [1, 2])
def test_gradients_are_clipped_as_by_torch(vectors: int, limit: float | None) -> None:
    torch.manual_seed(0)
    dtypes = [torch.float32, torch.float64][:vectors]
    ours, theirs = ([nn.Parameter(torch.zeros(50, dtype=dtype)) for dtype in dtypes] for _ in range(2))
    for mine, other in zip(ours, theirs, strict=True):
        mine.grad = torch.randn_like(mine)
        other.grad = mine.grad.clone()
    expected = nn.utils.clip_grad_norm_(theirs, torch.inf if limit is None else limit)
    torch.testing.assert_close(clip_gradients(ours, limit).to(expected), expected)
    torch.testing.assert_close([mine.grad for mine in ours], [other.grad for other in theirs])


def test_our_adam_is_torchs_bit_for_bit_and_takes_its_state() -> None:
    torch.manual_seed(0)
    start = torch.randn(300)
    mine, other = (nn.Parameter(start.clone()) for _ in range(2))
    optimizers = [Adam([mine], lr=0.1, eps=1e-5), torch.optim.Adam([other], lr=0.1, eps=1e-5, fused=True)]
    for step in range(6):
        gradient = torch.randn_like(start)
        if step == 3:  # what a checkpoint does
            first, second = (copy.deepcopy(optimizer.state_dict()) for optimizer in optimizers)
            assert first["state"][0].keys() == second["state"][0].keys()
            optimizers[0].load_state_dict(second)
            optimizers[1].load_state_dict(first)
        for parameter, optimizer in zip((mine, other), optimizers, strict=True):
            parameter.grad = gradient.clone()
            optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
            skipped = torch.tensor(float(step in (0, 4)))
            if isinstance(optimizer, Adam):
                optimizer.update(skipped)
            else:
                optimizer.found_inf = skipped
                optimizer.step()
        assert torch.equal(mine, other)
        assert torch.equal(mine, start) == (step == 0)
    states = [next(iter(optimizer.state.values())) for optimizer in optimizers]
    assert all(torch.equal(states[0][name], value) for name, value in states[1].items())
    assert states[0]["step"] == 4
