"""The policy and its critic as functions of tensors: one step, or sequences.

Shape legend: B rows, T steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor, nn
from torch.distributions import Distribution
from torchrl.data import Composite, TensorSpec

from recurrl.config import NO_CELL, TrainConfig
from recurrl.keys import OBSERVATION
from recurrl.policy.distributions import deterministic as most_probable
from recurrl.policy.distributions import displaced, sample
from recurrl.policy.encoders import observe
from recurrl.policy.flat import flat
from recurrl.policy.heads import make_actor
from recurrl.policy.initialization import HEAD_GAIN, linear
from recurrl.policy.noise import NOISE, CorrelatedNoise
from recurrl.policy.trunk import NewState, State, Trunk, make_trunk
from recurrl.recurrent.module.keys import IS_INIT

Output = tuple[Distribution, Tensor | None, NewState]


class Policy(nn.Module):
    """A policy and its critic, on one trunk or on one each; or a policy alone.

    Everything goes in and comes out as an argument; nothing is remembered from one call to the next. Observations are
    tensors or nested mappings of tensors, and so are actions of several parts. A state is a mapping from the names in
    :attr:`state_shapes` to tensors, those of a critic with a cell of its own among them; it is empty for a feed-forward
    policy, which does without ``is_init`` too.

    Args:
        trunk: observations to features: a :class:`Trunk`, or any module, which then has no states. A critic without a
            trunk of its own shares it, and it runs once for both.
        actor_head: ``(features, observation)`` to the distribution of actions.
        critic_head: features to values ``[B, 1]``; None without a critic.
        critic_trunk: the critic's own trunk; None where it shares the actor's.
        noise: correlates the deviations of Gaussian actions from their means; None to draw each by itself. Its last
            value is part of the state of :meth:`step`, which without it starts anew.

    Raises:
        ValueError: both trunks name a state alike.
    """

    def __init__(
        self,
        trunk: nn.Module,
        actor_head: nn.Module,
        critic_head: nn.Module | None = None,
        critic_trunk: nn.Module | None = None,
        noise: CorrelatedNoise | None = None,
    ) -> None:
        super().__init__()
        self.noise = noise
        self.trunk = _trunk(trunk)
        self.actor_head = actor_head
        self.critic_head = critic_head
        self.critic_trunk = None if critic_trunk is None else _trunk(critic_trunk)
        self.state_keys: list[NestedKey] = [key for each in self._trunks() for key in each.state_keys]
        if len(set(self.state_keys)) < len(self.state_keys):
            raise ValueError(
                f"Two recurrent states of a policy have the same name: {self.state_keys}. Give the critic's cell its "
                "own in_keys and out_keys."
            )

    def _trunks(self) -> list[Trunk]:
        return [self.trunk] if self.critic_trunk is None else [self.trunk, self.critic_trunk]

    @property
    def state_shapes(self) -> dict[NestedKey, tuple[int, int]]:
        """The shape ``[L, X]`` (layers, size) of each recurrent state, by its name; empty for a feed-forward policy."""
        return {key: shape for trunk in self._trunks() for key, shape in trunk.state_shapes.items()}

    def initial_state(self, batch: int) -> dict[NestedKey, Tensor]:
        """The states ``[B, L, X]`` that episodes start from: zeros."""
        like = next(self.parameters())
        return {key: like.new_zeros(batch, *shape) for key, shape in self.state_shapes.items()}

    @property
    def carried_keys(self) -> list[NestedKey]:
        """What one step leaves to the next: the recurrent states, and the noise of its action if that is correlated."""
        return [*self.state_keys, *([] if self.noise is None else [NOISE])]

    def inputs(self, data: Mapping[Any, Any] | TensorDictBase) -> tuple[Any, State, Tensor | None]:
        """Observation, state and ``is_init`` among the entries of a batch, as :meth:`sequence` takes them.

        Raises:
            KeyError: an entry is missing.
        """
        if not self.state_keys:
            return data[OBSERVATION], {}, None
        return data[OBSERVATION], {key: data[key] for key in self.state_keys}, data[IS_INIT].squeeze(-1)

    def step(
        self, observation: Any, state: State, is_init_B: Tensor | None = None, deterministic: bool = False
    ) -> tuple[Any, Tensor, Tensor | None, NewState]:
        """Acts for one step.

        Args:
            observation: ``[B, ...]``.
            state: ``[B, L, X]`` each: what the last step returned, or :meth:`initial_state`.
            is_init_B: bool; true where an episode starts, whose state is then taken to be zero. None for nowhere.
            deterministic: whether to take the most probable action rather than to sample one.

        Returns:
            The action ``[B, ...]``, its log-probability ``[B]``, the value ``[B, 1]`` (None without a critic), and the
            state for the next step.
        """
        distribution, value, new_state = self.stepper()(observation, state, is_init_B)
        if deterministic:
            action, noise = most_probable(distribution), {key: state[key] for key in (NOISE,) if key in state}
        else:
            action, noise = self.sample(distribution, state, is_init_B)
        return action, distribution.log_prob(action), value, {**new_state, **noise}

    def sample(self, distribution: Distribution, state: State, is_init_B: Tensor | None = None) -> tuple[Any, NewState]:
        """A random action ``[B, ...]``, and the noise that it leaves to the next step, if that is correlated.

        Args:
            distribution: of the actions of a step.
            state: as for :meth:`step`.
            is_init_B: likewise.
        """
        if self.noise is None or NOISE not in state:
            return sample(distribution), {}
        last_B1X = state[NOISE]
        if is_init_B is not None:
            last_B1X = last_B1X.masked_fill(is_init_B.view(-1, 1, 1), 0.0)
        noise_B1X = self.noise(last_B1X)
        return displaced(distribution, noise_B1X), {NOISE: noise_B1X}

    def stepper(self) -> Callable[[Any, State, Tensor | None], Output]:
        """The distribution of :meth:`step`, as a function for many steps with the current parameters.

        It takes ``(observation, state, is_init)`` as :meth:`step` does and returns ``(distribution, value, state)``.
        Parameters are looked up once, here: do not use it after they change.
        """
        critic_trunk = None if self.critic_trunk is None else self.critic_trunk.stepper()
        critic_head = None if self.critic_head is None else flat(self.critic_head)
        return partial(_outputs, self.trunk.stepper(), flat(self.actor_head), critic_trunk, critic_head)

    def sequence(self, observation: Any, state: State, is_init_BT: Tensor | None = None) -> Output:
        """Runs sequences of steps, for learning.

        Args:
            observation: ``[B, T, ...]``.
            state: ``[B, T, L, X]`` each: the states that were recorded at each step. They are read where sequences and
                episodes start, at ``t = 0`` and where ``is_init`` is true; other steps begin with the state that the
                step before produced.
            is_init_BT: bool; true where an episode starts. None for a feed-forward policy.

        Returns:
            The distribution of the actions ``[B, T]``, the values ``[B, T, 1]`` (None without a critic), and the states
            ``[B, T, L, X]`` after the last step of each episode and of each sequence; zero at other steps.
        """
        critic_trunk = None if self.critic_trunk is None else self.critic_trunk.sequence
        return _outputs(
            self.trunk.sequence, self.actor_head, critic_trunk, self.critic_head, observation, state, is_init_BT
        )

    def observe(self, observation: Any) -> None:
        """Adds observations to the running statistics, where the policy has any."""
        for trunk in self._trunks():
            observe(trunk.encoder, observation)


def _trunk(module: nn.Module) -> Trunk:
    return module if isinstance(module, Trunk) else Trunk(module)


def _outputs(
    trunk: Callable[..., tuple[Tensor, NewState]],
    actor_head: Callable[[Tensor, Any], Distribution],
    critic_trunk: Callable[..., tuple[Tensor, NewState]] | None,
    critic_head: Callable[[Tensor], Tensor] | None,
    observation: Any,
    state: State,
    is_init: Tensor | None,
) -> Output:
    features, new_state = trunk(observation, state, is_init)
    distribution = actor_head(features, observation)
    if critic_head is None:
        return distribution, None, new_state
    if critic_trunk is not None:
        features, critic_state = critic_trunk(observation, state, is_init)
        new_state = {**new_state, **critic_state}
    return distribution, critic_head(features), new_state


def make_policy(config: TrainConfig, observation_spec: Composite, action_spec: TensorSpec) -> Policy:
    """The network a configuration describes, for an environment's unbatched specs, on the configured device.

    Args:
        config: the configuration.
        observation_spec: the environment's, with the entry ``observation``.
        action_spec: of the entry ``action``; a composite for actions of several parts.

    Raises:
        ConfigError: the observation or the action is of a kind that the configured network cannot handle.
    """
    observation = observation_spec[OBSERVATION]
    trunk = make_trunk(config, observation, config.cell.name)
    actor_head = make_actor(config, observation, action_spec)
    critic = config.algorithm.critic
    critic_head = critic_trunk = None
    if critic is not None:
        critic_head = linear(config.cell.hidden_size, 1, HEAD_GAIN)
        if critic != "shared":
            cell = config.cell.name if critic == "recurrent" else NO_CELL
            critic_trunk = make_trunk(config, observation, cell, prefix="critic_")
    size, correlation = getattr(actor_head, "noise_size", 0), config.policy.noise_correlation
    noise = CorrelatedNoise(size, correlation) if size and correlation else None
    return Policy(trunk, actor_head, critic_head, critic_trunk, noise).to(torch.device(config.device))
