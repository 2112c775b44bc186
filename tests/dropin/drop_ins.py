"""What tests of the drop-in modules share: TorchRL's modules and ours, and batches for them."""

import torch
from tensordict import TensorDict

from recurrl import recurrent
from recurrl.recurrent import set_recurrent_mode

B, T, IN, H = 3, 6, 4, 5
KINDS = ("gru", "lstm")


def of_kind(kind, package=recurrent):
    """The class of a package's modules."""
    return getattr(package, f"{kind.upper()}Module")


def made(kind, package=recurrent, **options):
    """A module of a package, ours with the same weights each time."""
    torch.manual_seed(0)
    return of_kind(kind, package)(IN, H, **{"in_key": "x", "out_key": "y", **options})


def batch_of(module, *shape):
    """Random inputs, resets and stored states, in the module's dtype."""
    torch.manual_seed(1)
    dtype, specs = next(module.parameters()).dtype, module.make_tensordict_primer().primers
    data = TensorDict({"x": torch.randn(*shape, IN, dtype=dtype), "is_init": torch.rand(*shape, 1) < 0.3}, shape)
    return data.update({key: torch.randn(*shape, *specs[key].shape, dtype=dtype) for key in module.in_keys[1:-1]})


def sequence(module, data):
    """What a module computes of rows, which stay as they are."""
    with set_recurrent_mode(True):
        return module(data.clone())
