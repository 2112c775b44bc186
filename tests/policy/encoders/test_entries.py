"""One network per entry of an observation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torchrl.data import Bounded, Composite, TensorSpec, Unbounded

from recurrl.errors import ConfigError
from recurrl.policy.encoders.entries import per_entry


class Doubled(nn.Module):
    """Also keeps the sum of what it observed."""

    def __init__(self, spec: TensorSpec) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(spec.shape))

    def forward(self, observation: Tensor) -> Tensor:
        return 2 * observation

    def observe(self, observation: Tensor) -> None:
        self.seen += observation.sum(0)


MAPPING = Composite(
    a=Unbounded((2,)),
    inner=Composite(b=Unbounded((1,))),
    previous_action=Bounded(-1, 1, (2,)),
    previous_reward=Unbounded((1,)),
)


def test_outputs_are_concatenated_and_the_previous_step_stays_as_it_is() -> None:
    encoder = per_entry(MAPPING, Doubled)
    ones = MAPPING.zero((3,)).apply(torch.ones_like)
    expected = torch.tensor([[2.0, 2, 2, 1, 1, 1]] * 3)
    assert torch.equal(encoder(ones), expected)
    assert torch.equal(encoder(ones.to_dict()), expected)


def test_networks_observe_their_entry() -> None:
    encoder = per_entry(MAPPING, Doubled)
    encoder.observe(MAPPING.zero((3,)).apply(torch.ones_like))  # type: ignore[operator]
    assert [buffer.tolist() for buffer in encoder.buffers()] == [[3, 3], [3]]


def test_a_tensor_has_the_network_itself() -> None:
    assert isinstance(per_entry(Unbounded((2,)), Doubled), Doubled)


def test_an_error_names_the_entry() -> None:
    def rejecting(spec: TensorSpec) -> nn.Module:
        raise ConfigError("Too small.")

    with pytest.raises(ConfigError, match=r"^Observation entry inner\.b: Too small\.$"):
        per_entry(Composite(inner=Composite(b=Unbounded((1,)))), rejecting)
