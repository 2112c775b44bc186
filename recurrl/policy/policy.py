"""The policy and its critic on tensors: one step, or sequences.

Shape legend: B rows, T steps.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor, nn
from torch.distributions import Distribution

from recurrl.keys import OBSERVATION
from recurrl.policy.distributions import deterministic as most_probable
from recurrl.policy.distributions import displaced, sample
from recurrl.policy.functions import as_function
from recurrl.policy.noise import NOISE, CorrelatedNoise
from recurrl.policy.trunk import NewState, State, Trunk
from recurrl.recurrent import RecurrentModule
from recurrl.recurrent.module.keys import IS_INIT

Output = tuple[Distribution, Tensor | None, NewState]


class Policy(nn.Module):
    """A policy and its critic, on a shared trunk or on one each; or a policy alone.

    Nothing is remembered between calls: states are passed in and returned. Observations are tensors or nested mappings
    of tensors, and so are actions of several parts. A state is a mapping from the names in :attr:`state_shapes` to
    tensors and includes that of a recurrent critic. A feed-forward policy has none and needs no ``is_init``.

    Args:
        trunk: observations to features: a :class:`Trunk`, or any module, which then has no states. A critic without its
            own trunk shares it, and it runs once for both.
        actor_head: ``(features, observation)`` to the distribution of actions.
        critic_head: features to values ``[B, 1]``; None without a critic.
        critic_trunk: the critic's own trunk; None if it shares the actor's.
        noise: of continuous actions, if it is correlated from step to step.
        critic_only: the entries of observations that only the critic reads.

    Raises:
        ValueError: two states have the same name.
    """

    def __init__(
        self,
        trunk: nn.Module,
        actor_head: nn.Module,
        critic_head: nn.Module | None = None,
        critic_trunk: nn.Module | None = None,
        noise: CorrelatedNoise | None = None,
        critic_only: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self.critic_only = critic_only
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
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(self.parameters()).device

    @property
    def recurrent_modules(self) -> list[RecurrentModule]:
        """The recurrent layers, those of the actor first."""
        return [module for module in self.modules() if isinstance(module, RecurrentModule)]

    @property
    def state_shapes(self) -> dict[NestedKey, tuple[int, ...]]:
        """The shape ``[layers, ...]`` of each recurrent state, by its name; empty for a feed-forward policy."""
        return {key: shape for trunk in self._trunks() for key, shape in trunk.state_shapes.items()}

    def initial_state(self, batch: int) -> dict[NestedKey, Tensor]:
        """The zero states ``[B, layers, ...]`` that episodes start from."""
        like = next(self.parameters())
        return {key: like.new_zeros(batch, *shape) for key, shape in self.state_shapes.items()}

    @property
    def carried_keys(self) -> list[NestedKey]:
        """The entries that a step passes to the next: the recurrent states, and the noise of actions if correlated."""
        return [*self.state_keys, *([] if self.noise is None else [NOISE])]

    def inputs(self, data: Mapping[Any, Any] | TensorDictBase) -> tuple[Any, State, Tensor | None]:
        """The observation, state and ``is_init`` of a batch, as :meth:`step` and :meth:`sequence` take them.

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
            state: ``[B, layers, ...]`` each: what the last step returned, or :meth:`initial_state`.
            is_init_B: bool; true where an episode starts, which zeroes the state. None for nowhere.
            deterministic: take the most probable action instead of sampling one.

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
        """A random action ``[B, ...]``, and the noise to pass to the next step, if it is correlated.

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
        """A function for many steps with the current parameters.

        It takes ``(observation, state, is_init)`` as :meth:`step` does and returns ``(distribution, value, state)``.
        Parameters are looked up only now: call :meth:`stepper` again after they change.
        """
        critic_trunk = None if self.critic_trunk is None else self.critic_trunk.stepper()
        critic_head = None if self.critic_head is None else as_function(self.critic_head)
        return partial(_outputs, self.trunk.stepper(), as_function(self.actor_head), critic_trunk, critic_head)

    def sequence(self, observation: Any, state: State, is_init_BT: Tensor | None = None) -> Output:
        """Runs sequences of steps, for learning.

        Args:
            observation: ``[B, T, ...]``.
            state: ``[B, T, layers, ...]`` each: the stored state of each step. It is read at ``t = 0`` and where
                ``is_init`` is true; other steps start from the state that the previous step produced.
            is_init_BT: bool; true where an episode starts. None for a feed-forward policy.

        Returns:
            The distribution of the actions ``[B, T]``, the values ``[B, T, 1]`` (None without a critic), and the states
            ``[B, T, layers, ...]`` after the last step of each episode and of each sequence; zero at other steps.
        """
        critic_trunk = None if self.critic_trunk is None else self.critic_trunk.sequence
        return _outputs(
            self.trunk.sequence, self.actor_head, critic_trunk, self.critic_head, observation, state, is_init_BT
        )

    @torch.no_grad()
    def observe(self, observation: Any) -> None:
        """Adds observations ``[B, T, ...]`` to the running statistics, if the policy has any."""
        for trunk in self._trunks():
            trunk.observe(observation)


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
