"""Actor and critic, put together from trunk, heads and sampler."""

from __future__ import annotations

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
from torchrl.data import Composite, TensorSpec

from recurrl.config import NO_CELL, TrainConfig
from recurrl.keys import FEATURES, OBSERVATION, VALUE
from recurrl.policy.encoders import make_encoder, observe
from recurrl.policy.heads import make_actor
from recurrl.policy.initialization import HEAD_GAIN, linear
from recurrl.policy.memory import make_memory
from recurrl.recurrent import RecurrentModule

CRITIC_PREFIX = "critic_"
"""Before the keys of a critic's own trunk."""


class ActorCritic(nn.Module):
    """A policy and its critic, on one trunk or on one each; or a policy alone.

    Attributes:
        trunk: observation (and recurrent states) to features; runs once for the actor and a critic that shares it.
        actor_head: features to the parameters of the action distribution.
        sampler: those parameters to an action and its log-probability.
        critic_head: features to the state's value; None without a critic.
        critic_trunk: observation (and recurrent states of its own) to the critic's features; None where the critic
            shares the actor's, or there is none.
    """

    def __init__(
        self,
        trunk: TensorDictSequential,
        actor_head: TensorDictModule,
        sampler: ProbabilisticTensorDictModule,
        critic_head: TensorDictModule | None,
        critic_trunk: TensorDictSequential | None = None,
    ) -> None:
        super().__init__()
        self.trunk = trunk
        self.actor_head = actor_head
        self.sampler = sampler
        self.critic_head = critic_head
        self.critic_trunk = critic_trunk

    def acting(self) -> TensorDictModuleBase:
        """What a collector calls: writes the action, its log-probability, the value if any, and the new states."""
        critic = [] if self.critic_head is None else [self.critic()]
        return TensorDictSequential(self.trunk, self.actor_head, self.sampler, *critic)

    def actor(self) -> ProbabilisticTensorDictSequential:
        """Trunk and actor, as TorchRL's losses want it; it leaves the features for the critic head to read."""
        return ProbabilisticTensorDictSequential(self.trunk, self.actor_head, self.sampler)

    def critic(self) -> TensorDictModuleBase:
        """The critic, as TorchRL's losses want it: one that shares the trunk reads the features that the actor left.

        Raises:
            RuntimeError: the policy has no critic.
        """
        if self.critic_head is None:
            raise RuntimeError("This policy has no critic: its algorithm learns without one.")
        if self.critic_trunk is None:
            return self.critic_head
        return TensorDictSequential(self.critic_trunk, self.critic_head)

    def trunks(self) -> TensorDictSequential:
        """What writes the features and the new states, of the actor and of a critic with a trunk of its own."""
        return TensorDictSequential(self.trunk, *([] if self.critic_trunk is None else [self.critic_trunk]))

    def value(self, tensordict: TensorDictBase) -> Tensor:
        """Values ``[B, 1]`` of the states in ``tensordict``.

        Raises:
            RuntimeError: the policy has no critic.
        """
        if self.critic_trunk is None:
            self.trunk(tensordict)
        value: Tensor = self.critic()(tensordict)[VALUE]
        return value

    @property
    def state_keys(self) -> list[Any]:
        """Keys of the recurrent states, empty for a feed-forward policy."""
        recurrent = (module for module in self.modules() if isinstance(module, RecurrentModule))
        return [key for module in recurrent for key in module.state_keys]

    def observe(self, observation: Tensor | TensorDictBase) -> None:
        """Takes observations into the running statistics, where the policy has any."""
        for trunk in self.trunks():
            observe(trunk[0], observation)


def make_policy(config: TrainConfig, observation_spec: Composite, action_spec: TensorSpec) -> ActorCritic:
    """The network a configuration describes, for an environment's unbatched specs, on the configured device.

    Args:
        config: the configuration.
        observation_spec: the environment's, with the entry ``observation``.
        action_spec: of the entry ``action``; a composite for actions of several parts.

    Raises:
        ConfigError: the observation or the action is of a kind that the configured network cannot handle.
    """
    observation = observation_spec[OBSERVATION]
    trunk = _make_trunk(config, observation, config.cell.name)
    actor_head, sampler = make_actor(config, observation, action_spec)
    critic = config.algorithm.critic
    device = torch.device(config.device)
    if critic is None:
        return ActorCritic(trunk, actor_head, sampler, critic_head=None).to(device)
    prefix = "" if critic == "shared" else CRITIC_PREFIX
    value = linear(config.cell.hidden_size, 1, HEAD_GAIN)
    critic_head = TensorDictModule(value, in_keys=[prefix + FEATURES], out_keys=[VALUE])
    critic_trunk = None
    if critic != "shared":
        cell = config.cell.name if critic == "recurrent" else NO_CELL
        critic_trunk = _make_trunk(config, observation, cell, prefix)
    return ActorCritic(trunk, actor_head, sampler, critic_head, critic_trunk).to(device)


def _make_trunk(config: TrainConfig, observation: TensorSpec, cell_name: str, prefix: str = "") -> TensorDictSequential:
    """Encoder and memory; ``prefix`` keeps what they write, states included, apart from another trunk's."""
    encoder, width = make_encoder(config, observation, prefix)
    return TensorDictSequential(encoder, make_memory(config, width, cell_name, prefix))
