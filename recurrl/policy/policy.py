"""The policy and its critic on tensors: one step, or sequences.

A trunk maps observations to features: an encoder, followed by a recurrent cell or a feed-forward network. Heads map
features to the distribution of actions and to the value.

Shape legend: B rows, T steps, F features, A entries of a previous action, Z normal numbers of an action.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Size, Tensor, nn
from torch.distributions import Distribution
from torch.nn.functional import layer_norm
from torchrl.data import TensorSpec, Unbounded
from torchrl.envs import TensorDictPrimer

from recurrl.keys import IS_INIT, NOISE, OBSERVATION, PREVIOUS_ACTION
from recurrl.policy.distributions import most_probable
from recurrl.policy.normalization import update_statistics
from recurrl.policy.preprocessing import PreviousAction
from recurrl.recurrent import RecurrentModule
from recurrl.recurrent.layer import reset_state, stacked_state_shapes

State = Mapping[NestedKey, Tensor]
NewState = dict[NestedKey, Tensor]


class Trunk(nn.Module):
    """Maps observations to features, with the states of a recurrent cell if there is one.

    Args:
        encoder: any module that maps observations ``[B, ...]`` to vectors ``[B, width]``. Sequences are flattened to
            one batch dimension. Its method ``update_statistics``, if it has one, is called with each rollout after the
            update, for running statistics.
        core: maps these vectors to features: a :class:`RecurrentModule`, or any other module, which then has no states.
            None to use the vectors as features.
        preprocess: applied to observations before the encoder; None for nothing. Its method ``update_statistics``, if
            it has one, is called with each rollout and with the encoder.
        sees_action: true if the core reads the previous action together with the encoder's vectors.
        normalizes: true to shift and scale each vector of features to zero mean and unit variance.

    Attributes:
        state_shapes: the shape ``[layers, ...]`` of each state, by its name.
        state_keys: the names of the states.
    """

    def __init__(
        self,
        encoder: nn.Module,
        core: nn.Module | None = None,
        preprocess: nn.Module | None = None,
        sees_action: bool = False,
        normalizes: bool = False,
    ) -> None:
        super().__init__()
        self.sees_action = sees_action
        self.normalizes = normalizes
        self.preprocess = nn.Identity() if preprocess is None else preprocess
        self.encoder = encoder
        self.core = nn.Identity() if core is None else core
        self.state_shapes: dict[NestedKey, tuple[int, ...]] = {}
        if isinstance(core, RecurrentModule):
            self.state_shapes = dict(zip(core.state_keys, stacked_state_shapes(core.cell, core.layers), strict=True))
        self.state_keys = list(self.state_shapes)

    def run(self, observation: Any, state: State, is_init: Tensor | None, sequence: bool) -> tuple[Tensor, NewState]:
        """Computes features and new states.

        Args:
            observation: ``[B, T, ...]``, or ``[B, ...]`` for one step.
            state: the states, and the previous action if the trunk sees it: ``[B, T, ...]`` each, or ``[B, ...]``.
            is_init: ``[B, T]``; or ``[B]``, or None for no resets.
            sequence: True for sequences, False for single steps.
        """
        observation = self.preprocess(observation)
        if sequence:
            flat, batch = _flatten(observation)
            encoded = self.encoder(flat).unflatten(0, batch)
        else:
            encoded = self.encoder(observation)
        if self.sees_action:
            encoded = torch.cat((encoded, state[PREVIOUS_ACTION]), -1)
        new_state: tuple[Tensor, ...] = ()
        if isinstance(self.core, RecurrentModule):
            entering = tuple([state[key] for key in self.state_keys])
            features, new_state = self.core.run(encoded, is_init, entering, sequence)
        else:
            features = self.core(encoded)
        if self.normalizes:
            features = layer_norm(features, features.shape[-1:])
        return features, dict(zip(self.state_keys, new_state, strict=True))

    def update_statistics(self, observation: Any) -> None:
        """Adds observations ``[B, T, ...]`` to the running statistics, if there are any."""
        update_statistics(self.preprocess, observation, self.encoder)
        update_statistics(self.encoder, _flatten(self.preprocess(observation))[0])


class StepOutput(NamedTuple):
    """The output of a policy for one step.

    Attributes:
        action: ``[B, ...]``; a TensorDict for actions of several parts.
        log_prob: the log-probability of the action, ``[B]``.
        value: ``[B, 1]``; None without a critic.
        state: the state for the next step.
        distribution: the distribution of the actions.
        features: ``[B, F]``, which the actor's head reads.
    """

    action: Any
    log_prob: Tensor
    value: Tensor | None
    state: NewState
    distribution: Distribution
    features: Tensor


class SequenceOutput(NamedTuple):
    """The output of a policy for sequences of steps.

    Attributes:
        distribution: the distribution of the actions ``[B, T]``.
        value: ``[B, T, 1]``; None without a critic.
        state: ``[B, T, layers, ...]`` each: the states after each step. Only those after the last step of an episode or
            of a sequence are defined; others may be anything.
        features: ``[B, T, F]``, which the actor's head reads.
    """

    distribution: Distribution
    value: Tensor | None
    state: NewState
    features: Tensor


class Policy(nn.Module):
    """A policy and its critic, with a shared trunk or one each; or a policy alone.

    Nothing is remembered between calls: states are passed in and returned. Observations are tensors or nested mappings
    of tensors, and so are actions of several parts. A state is a mapping from the names in :attr:`state_shapes` to
    tensors and includes that of a recurrent critic and the previous action, if a trunk reads it. A feed-forward policy
    that does not read the previous action has no state and needs no ``is_init``.

    Args:
        trunk: maps observations to features: a :class:`Trunk`, or any module, which then has no states. A critic
            without its own trunk shares it, so that it runs once for both.
        actor_head: maps ``(features, observation)`` to the distribution of actions. A head with an attribute
            ``noise_size`` must return a distribution with a method ``action_from_noise(noise_BZ)``, like those of
            :mod:`recurrl.policy.distributions`. The actions of other heads are drawn by the distribution's ``sample``,
            with torch's global generator.
        critic_head: maps features to values ``[B, 1]``; None without a critic.
        critic_trunk: the critic's own trunk; None if it shares the actor's.
        noise_correlation: the correlation of the noise of actions from step to step, from 0 to below 1.
        critic_only: the entries of observations that only the critic reads.
        previous_action: encodes an action for the next step; None if no trunk reads the previous action.

    Attributes:
        observation_spec: the spec of one environment's observation, set by :func:`recurrl.policy.build.make_policy`.
        action_spec: the spec of one environment's action, set there too.
        noise_size: the number of standard normal numbers that make a sampled action, Z; 0 if torch draws actions.
        state_keys: keys of the recurrent states.
        input_keys: keys of the state that :meth:`step` and :meth:`sequence` read: recurrent states, previous action.
        state_shapes: the shapes of what a step passes to the next, by key: ``[layers, ...]`` for recurrent states,
            ``[A]`` for the previous action, and ``[Z]`` for the noise of actions if it is correlated.

    Raises:
        ValueError: two states have the same name.
    """

    observation_spec: TensorSpec
    action_spec: TensorSpec

    def __init__(
        self,
        trunk: nn.Module,
        actor_head: nn.Module,
        critic_head: nn.Module | None = None,
        critic_trunk: nn.Module | None = None,
        noise_correlation: float = 0.0,
        critic_only: tuple[str, ...] = (),
        previous_action: PreviousAction | None = None,
    ) -> None:
        super().__init__()
        self.critic_only = critic_only
        self.previous_action = previous_action
        self.noise_correlation = noise_correlation
        self.trunk = _trunk(trunk)
        self.actor_head = actor_head
        self.noise_size: int = getattr(actor_head, "noise_size", 0)
        self.critic_head = critic_head
        self.critic_trunk = None if critic_trunk is None else _trunk(critic_trunk)
        self.state_keys = [key for trunk in self.trunks for key in trunk.state_keys]
        if len(set(self.state_keys)) < len(self.state_keys):
            raise ValueError(
                f"Two recurrent states of a policy have the same name: {self.state_keys}. The critic's cell needs "
                "its own in_keys and out_keys."
            )
        self.state_shapes = {key: shape for trunk in self.trunks for key, shape in trunk.state_shapes.items()}
        if previous_action is not None:
            self.state_shapes[PREVIOUS_ACTION] = (previous_action.size,)
        self.input_keys = list(self.state_shapes)
        if noise_correlation:
            self.state_shapes[NOISE] = (self.noise_size,)

    @property
    def trunks(self) -> list[Trunk]:
        """The actor's trunk, and the critic's if it has its own."""
        return [self.trunk] if self.critic_trunk is None else [self.trunk, self.critic_trunk]

    def actor(self) -> Policy:
        """The policy without its critic, sharing its modules. It needs neither the critic's entries nor its states."""
        correlation, previous = self.noise_correlation, self.previous_action
        return Policy(self.trunk, self.actor_head, noise_correlation=correlation, previous_action=previous)

    def make_tensordict_primer(self) -> TensorDictPrimer:
        """A transform that adds the previous action and correlated noise to an environment: specs, zeros at resets."""
        added = {key: Unbounded(shape) for key, shape in self.state_shapes.items() if key not in self.state_keys}
        return TensorDictPrimer(added, default_value=0.0, expand_specs=True)

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(self.parameters()).device

    @property
    def backend_in_use(self) -> str | None:
        """The recurrent backend that ran last; None before the first sequence, and for a feed-forward policy."""
        core = self.trunk.core
        return core.backend_in_use if isinstance(core, RecurrentModule) else None

    def initial_state(self, batch: int) -> dict[NestedKey, Tensor]:
        """The zero states ``[batch, ...]`` that episodes start from, by key."""
        like = next(self.parameters())
        return {key: like.new_zeros(batch, *shape) for key, shape in self.state_shapes.items()}

    def inputs(self, data: Mapping[Any, Any] | TensorDictBase) -> tuple[Any, State, Tensor | None]:
        """The observation, state and ``is_init`` of a batch, as :meth:`step` and :meth:`sequence` take them.

        Raises:
            KeyError: an entry is missing.
        """
        if not self.input_keys:
            return data[OBSERVATION], {}, None
        return data[OBSERVATION], {key: data[key] for key in self.input_keys}, data[IS_INIT].squeeze(-1)

    def reset(self, state: State, is_init: Tensor) -> NewState:
        """The state that enters a step: ``state``, but zero where an episode starts.

        Args:
            state: ``[B, ...]`` each: what the last step returned, or :meth:`initial_state`.
            is_init: bool ``[B]``; true where an episode starts.
        """
        return {key: reset_state(value, is_init) for key, value in state.items()}

    def step(
        self, observation: Any, state: State, is_init: Tensor | None = None, noise: Tensor | None = None
    ) -> StepOutput:
        """Acts for one step. It remembers nothing, and draws random numbers only for a head without ``noise_size``.

        Args:
            observation: ``[B, ...]``.
            state: ``[B, ...]`` each: what the last step returned, or :meth:`initial_state`.
            is_init: bool ``[B]``; true where an episode starts, which resets the state. None for nowhere.
            noise: standard normal numbers ``[B, Z]`` to sample the actions with; None for the most probable actions.
        """
        if is_init is not None:
            state = self.reset(state, is_init)
        distribution, value, new_state, features = self._outputs(observation, state, None, sequence=False)
        if NOISE in state:
            if noise is not None:
                noise = correlated(state[NOISE], noise, self.noise_correlation)
            new_state[NOISE] = state[NOISE] if noise is None else noise
        action = self.action(distribution, noise)
        if self.previous_action is not None:
            new_state[PREVIOUS_ACTION] = self.previous_action(action)
        return StepOutput(action, distribution.log_prob(action), value, new_state, distribution, features)

    def action(self, distribution: Any, noise: Tensor | None) -> Any:
        """The most probable action of a distribution, or a random one with standard normal noise ``[..., Z]``."""
        if noise is None:
            return most_probable(distribution)
        return distribution.action_from_noise(noise) if self.noise_size else distribution.sample()

    def sequence(self, observation: Any, state: State, is_init: Tensor | None = None) -> SequenceOutput:
        """Runs sequences of steps, for the update.

        Args:
            observation: ``[B, T, ...]``.
            state: ``[B, T, ...]`` each: the stored state of each step. It is read at ``t = 0`` and where
                ``is_init`` is true; other steps start from the state that the previous step produced. The previous
                action is read at all steps.
            is_init: bool ``[B, T]``; true where an episode starts. None for a policy without states.
        """
        return self._outputs(observation, state, is_init, sequence=True)

    def _outputs(self, observation: Any, state: State, is_init: Tensor | None, sequence: bool) -> SequenceOutput:
        """Runs trunks and heads."""
        features, new_state = self.trunk.run(observation, state, is_init, sequence)
        distribution = self.actor_head(features, observation)
        critic_features = features
        if self.critic_trunk is not None:
            critic_features, critic_state = self.critic_trunk.run(observation, state, is_init, sequence)
            new_state |= critic_state
        value = None if self.critic_head is None else self.critic_head(critic_features)
        return SequenceOutput(distribution, value, new_state, features)

    @torch.no_grad()
    def update_statistics(self, observation: Any) -> None:
        """Adds observations ``[B, T, ...]`` to the running statistics, if the policy has any."""
        for trunk in self.trunks:
            trunk.update_statistics(observation)


def correlated(last_BZ: Tensor, drawn_BZ: Tensor, correlation: float) -> Tensor:
    """Autoregressive noise ``[B, Z]``: the standard normal numbers that make an action from its distribution.

    Independent noise averages out within a few steps: it moves neither a heavy system nor a walker on a grid far from
    where it starts. Correlated noise persists, yet each number is marginally standard normal, so
    log-probabilities, entropies and losses are those of the policy's distribution (Hollenstein et al. 2024,
    https://arxiv.org/abs/2312.11091).

    Args:
        last_BZ: the last step's noise; where it is zero, as at an episode's start, the draw is returned.
        drawn_BZ: standard normal numbers.
        correlation: the correlation of the numbers of two successive steps, from 0 to below 1.
    """
    continued = correlation * last_BZ + math.sqrt(1 - correlation**2) * drawn_BZ
    return torch.where((last_BZ == 0).all(-1, keepdim=True), drawn_BZ, continued)


def _trunk(module: nn.Module) -> Trunk:
    return module if isinstance(module, Trunk) else Trunk(module)


def _flatten(observation: Any) -> tuple[Any, Size]:
    """Observations ``[B, T, ...]`` as ``[B · T, ...]``, and ``(B, T)``."""
    if isinstance(observation, Tensor):
        return observation.flatten(0, 1), observation.shape[:2]
    flat = {name: _flatten(entry) for name, entry in observation.items()}
    return {name: entry for name, (entry, _) in flat.items()}, next(iter(flat.values()))[1]
