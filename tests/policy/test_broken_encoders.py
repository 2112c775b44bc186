"""An encoder that breaks its contract is rejected by name before training."""

import pytest
import torch
from torch import nn
from torchrl.data import Categorical, Composite, Unbounded

from recurrl.config import EncoderConfig
from recurrl.errors import ConfigError
from recurrl.policy.build import make_encoder


class Linear(nn.Linear):
    """Of every observation of four numbers."""

    def __init__(self, options: EncoderConfig, observation):
        super().__init__(4, 3)


def returning(change):
    """An encoder whose features are changed."""
    return type("Changed", (Linear,), {"forward": lambda self, seen: change(nn.Linear.forward(self, seen))})


Squeezed = returning(lambda features: features.sum(-1))
Integers = returning(torch.Tensor.long)
Several = returning(lambda features: (features, features))


class Unfinished(Linear):
    def __init__(self, options: EncoderConfig, observation):
        raise NotImplementedError("later")


VECTOR = Unbounded((4,))


BROKEN = [
    ("Linear", Unbounded((5,)), r"float32\[5\] .* RuntimeError: .* multiplied .* HYDRA_FULL_ERROR=1 shows where"),
    ("Linear", Composite(a=VECTOR, b=Categorical(2)), r"\{a: float32\[4\], b: int64\[\]\} .* fails with TypeError"),
    ("Unfinished", VECTOR, r".* fails with NotImplementedError: later"),
    ("Squeezed", VECTOR, r".* \(got torch\.float32 \[3\] for 3"),
    ("Integers", VECTOR, r".* \(got torch\.int64 \[3, 3\] for 3"),
    ("Several", VECTOR, r".* \(got tuple for 3"),
]


@pytest.mark.parametrize(("choice", "spec", "expected"), BROKEN)
def test_a_broken_encoder_is_rejected_by_name(choice, spec, expected):
    name = f"{__name__}:{choice}"
    with pytest.raises(ConfigError, match=rf"^encoder\.name={name} must map observations {expected}"):
        make_encoder(EncoderConfig(name=name), spec)


def test_trying_it_out_changes_no_random_number_of_the_run():
    torch.manual_seed(0)
    Linear(EncoderConfig(name=""), VECTOR)
    after = torch.get_rng_state()
    torch.manual_seed(0)
    _, width = make_encoder(EncoderConfig(name=f"{__name__}:Linear"), VECTOR)
    assert width == 3
    assert torch.equal(torch.get_rng_state(), after)
