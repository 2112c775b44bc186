"""The network: encoder → recurrent cell → actor and critic heads.

Shape legend: B batch (any number of dimensions), O observation size, H hidden size, A actions or action size.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictSequential,
)
from torch import Tensor, nn
from torch.distributions import Categorical as CategoricalDistribution
from torch.distributions import Distribution, Independent, Normal
from torch.nn import functional
from torchrl.data import Categorical, Composite, TensorSpec

from recurrl.config import NO_CELL, TrainConfig
from recurrl.normalization import ObservationNormalizer
from recurrl.recurrent import RecurrentModule

OBSERVATION = "observation"
FEATURES = "features"
ACTION = "action"
LOG_PROB = "action_log_prob"
VALUE = "state_value"


class ActorCritic(nn.Module):
    """A policy and its critic on one trunk.

    Attributes:
        trunk: observation (and recurrent states) to features; runs once for actor and critic together.
        actor_head: features to the parameters of the action distribution.
        sampler: those parameters to an action and its log-probability.
        critic_head: features to the state's value.
    """

    def __init__(
        self,
        trunk: TensorDictSequential,
        actor_head: TensorDictModule,
        sampler: ProbabilisticTensorDictModule,
        critic_head: TensorDictModule,
    ) -> None:
        super().__init__()
        self.trunk = trunk
        self.actor_head = actor_head
        self.sampler = sampler
        self.critic_head = critic_head

    def acting(self) -> TensorDictModuleBase:
        """What a collector calls: writes the action, its log-probability, the value and the new states."""
        return TensorDictSequential(self.trunk, self.actor_head, self.sampler, self.critic_head)

    def actor(self) -> ProbabilisticTensorDictSequential:
        """Trunk and actor, as TorchRL's losses want it; it leaves the features for the critic head to read."""
        return ProbabilisticTensorDictSequential(self.trunk, self.actor_head, self.sampler)

    def value(self, tensordict: TensorDictBase) -> Tensor:
        """Values ``[B, 1]`` of the states in ``tensordict``."""
        value: Tensor = self.critic_head(self.trunk(tensordict))[VALUE]
        return value

    @property
    def state_keys(self) -> list[Any]:
        """Keys of the recurrent states, empty for a feed-forward policy."""
        recurrent = (module for module in self.modules() if isinstance(module, RecurrentModule))
        return [key for module in recurrent for key in module.state_keys]

    def observe(self, observations: Tensor) -> None:
        """Takes observations into the running statistics, where the policy has any."""
        for module in self.modules():
            if isinstance(module, ObservationNormalizer):
                module.observe(observations)


def make_policy(config: TrainConfig, observation_spec: Composite, action_spec: TensorSpec) -> ActorCritic:
    """The network a configuration describes, for an environment's unbatched specs, on the configured device."""
    device = torch.device(config.device)
    observation = observation_spec[OBSERVATION]
    encoder, width = _make_encoder(config, observation)
    hidden = config.cell.hidden_size
    trunk = TensorDictSequential(
        TensorDictModule(encoder, in_keys=[OBSERVATION], out_keys=["encoded"]), _make_memory(config, width)
    )
    actor_head, sampler = _make_actor(action_spec, hidden, config.policy.initial_std)
    critic_head = TensorDictModule(_linear(hidden, 1, gain=0.01), in_keys=[FEATURES], out_keys=[VALUE])
    return ActorCritic(trunk, actor_head, sampler, critic_head).to(device)


def _make_encoder(config: TrainConfig, observation: TensorSpec) -> tuple[nn.Module, int]:
    layers: list[nn.Module] = []
    if isinstance(observation, Categorical):
        width = int(observation.space.n)
        layers.append(OneHot(width))
    else:
        width = observation.shape[-1]
        layers.append(ToFloat())
        if config.env.normalize_observation:
            layers.append(ObservationNormalizer(width))
    for size in config.policy.encoder_sizes:
        layers += [_linear(width, size, gain=math.sqrt(2)), nn.Tanh()]
        width = size
    return nn.Sequential(*layers), width


def _make_memory(config: TrainConfig, width: int) -> TensorDictModuleBase:
    cell = config.cell
    if cell.name == NO_CELL:
        layers: list[nn.Module] = []
        for _ in range(cell.num_layers):
            layers += [_linear(width, cell.hidden_size, gain=math.sqrt(2)), nn.Tanh()]
            width = cell.hidden_size
        return TensorDictModule(nn.Sequential(*layers), in_keys=["encoded"], out_keys=[FEATURES])
    module = RecurrentModule(
        cell.name,
        width,
        cell.hidden_size,
        cell.num_layers,
        recurrent_backend=config.backend.name,
        recurrent_recompute=config.recompute.name,
        recurrent_chunk_len=config.recompute.chunk_len,
        recurrent_matmul_precision=config.precision.name,
        in_key="encoded",
        out_key=FEATURES,
        device=config.device,
    )
    for name, parameter in module.layers.named_parameters():
        if name.startswith("weight"):
            for gate in parameter.data.chunk(module.cell.GATES):
                nn.init.orthogonal_(gate)
        else:
            nn.init.zeros_(parameter)
    return module


def _make_actor(
    action: TensorSpec, hidden: int, initial_std: float
) -> tuple[TensorDictModule, ProbabilisticTensorDictModule]:
    # A head near zero makes the first policy nearly uniform, whatever the features.
    if isinstance(action, Categorical):
        head = TensorDictModule(
            _linear(hidden, int(action.space.n), gain=0.01), in_keys=[FEATURES], out_keys=["logits"]
        )
        return head, _sampler(["logits"], _categorical)
    size = action.shape[-1]
    gaussian = TensorDictModule(GaussianHead(hidden, size, initial_std), in_keys=[FEATURES], out_keys=["loc", "scale"])
    return gaussian, _sampler(["loc", "scale"], _diagonal_gaussian)


def _sampler(in_keys: list[str], distribution: Any) -> ProbabilisticTensorDictModule:
    return ProbabilisticTensorDictModule(
        in_keys=in_keys,
        out_keys=[ACTION],
        distribution_class=distribution,
        return_log_prob=True,
        log_prob_key=LOG_PROB,
    )


def _categorical(logits: Tensor) -> Distribution:
    return CategoricalDistribution(logits=logits, validate_args=False)


def _diagonal_gaussian(loc: Tensor, scale: Tensor) -> Distribution:
    return Independent(Normal(loc, scale, validate_args=False), 1, validate_args=False)


class GaussianHead(nn.Module):
    """Mean by a linear map of the features, and a learned standard deviation that does not depend on them.

    Args:
        hidden: features.
        size: action entries.
        initial_std: standard deviation before training.
    """

    def __init__(self, hidden: int, size: int, initial_std: float) -> None:
        super().__init__()
        self.mean = _linear(hidden, size, gain=0.01)
        self.log_std = nn.Parameter(torch.full((size,), math.log(initial_std)))

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation, ``[B, A]`` each."""
        mean = self.mean(features)
        return mean, self.log_std.exp().expand_as(mean)


class OneHot(nn.Module):
    """Discrete observations ``[B]`` to float vectors ``[B, size]``."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, observation: Tensor) -> Tensor:
        """One at the observed index, zero elsewhere."""
        return functional.one_hot(observation.long(), self.size).to(torch.get_default_dtype())


class ToFloat(nn.Module):
    """Observations of any number type to the default floating dtype."""

    def forward(self, observation: Tensor) -> Tensor:
        """The same values."""
        return observation.to(torch.get_default_dtype())


def _linear(width: int, size: int, gain: float) -> nn.Linear:
    layer = nn.Linear(width, size)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
