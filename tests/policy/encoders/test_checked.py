"""An encoder that breaks its contract is rejected by name before training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchrl.data import Categorical, Composite, TensorSpec, Unbounded

from recurrl.config import EncoderConfig
from recurrl.errors import ConfigError
from recurrl.policy.encoders.checked import make_encoder


class Linear(nn.Linear):
    """Of every observation of four numbers."""

    def __init__(self, options: EncoderConfig, observation: TensorSpec) -> None:
        super().__init__(4, 3)


class Squeezed(Linear):
    def forward(self, observation: Tensor) -> Tensor:
        return super().forward(observation).squeeze()


class Flattened(Linear):
    def forward(self, observation: Tensor) -> Tensor:
        return super().forward(observation).flatten()


class Integers(Linear):
    def forward(self, observation: Tensor) -> Tensor:
        return super().forward(observation).long()


class Several(Linear):
    def forward(self, observation: Tensor) -> Any:
        return super().forward(observation), observation


class Centred(Linear):
    def forward(self, observation: Tensor) -> Tensor:
        return super().forward(observation - observation.mean(0))


class Noisy(Linear):
    def forward(self, observation: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(observation), 0.5)


class Unfinished(Linear):
    def __init__(self, options: EncoderConfig, observation: TensorSpec) -> None:
        raise NotImplementedError("later")


class Mapped(Linear):
    def forward(self, observation: Any) -> Tensor:
        return super().forward(observation["position"])


def function(options: EncoderConfig, observation: TensorSpec) -> Callable[[Tensor], Tensor]:
    return torch.tanh


VECTOR = Unbounded((4,))


@pytest.mark.parametrize(
    ("choice", "spec", "expected"),
    [
        ("Linear", Unbounded((5,)), r"cannot encode the observation float32\[5\]: RuntimeError: .* multiplied .*\. An"),
        (
            "Linear",
            Composite(a=VECTOR, b=Categorical(2)),
            r"cannot encode the observation \{a: float32\[4\], b: int64\[\]\}: Type",
        ),
        ("Mapped", VECTOR, r"cannot encode the observation float32\[4\]: IndexError: .* HYDRA_FULL_ERROR=1 prints the"),
        ("Unfinished", VECTOR, r"could not be made for the observation float32\[4\]: NotImplementedError: later\. An"),
        ("function", VECTOR, r"made a builtin_function_or_method, not a torch\.nn\.Module\. An encoder maps"),
        ("Squeezed", VECTOR, r"returned the shape \[3\] and the dtype torch\.float32 for 1 observation\. An encoder"),
        ("Flattened", VECTOR, r"returned the shape \[9\] and the dtype torch\.float32 for 3 observations\. An encoder"),
        ("Integers", VECTOR, r"returned the shape \[3, 3\] and the dtype torch\.int64 for 3 observations\. An"),
        ("Several", VECTOR, r"returned a tuple, not a tensor\. An encoder maps observations \[B, \.\.\.\] to float"),
        ("Centred", VECTOR, r"returned different features for the same observation in another batch\. It depends on"),
        ("Noisy", VECTOR, r"returned different features .*, or on random numbers, as dropout does\. Replace such"),
    ],
)
def test_a_broken_encoder_is_rejected_by_name(choice: str, spec: TensorSpec, expected: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(ConfigError, match=rf"^encoder\.name={__name__}:{choice} {expected}"):
        make_encoder(EncoderConfig(name=f"{__name__}:{choice}"), spec)


def test_trying_it_out_changes_no_random_number_of_the_run() -> None:
    torch.manual_seed(0)
    Linear(EncoderConfig(name=""), VECTOR)
    after = torch.get_rng_state()
    torch.manual_seed(0)
    _, width = make_encoder(EncoderConfig(name=f"{__name__}:Linear"), VECTOR)
    assert width == 3
    assert torch.equal(torch.get_rng_state(), after)
