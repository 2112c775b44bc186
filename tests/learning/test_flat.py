import copy
import pickle

import torch
from torch import nn

from recurrl.learning.flat import flattened


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
