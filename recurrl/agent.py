"""A trained policy that acts in its environment: raw observations in, the environment's own actions out.

:class:`Step` is one step as a module on named arrays, ``Policy.step`` with a :class:`NamedInterface` on both sides. The
same module acts in Python, for :class:`Agent`, and is exported.

Shape legend: B environments, K discrete choices.
"""

from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from tensordict import NestedKey
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal
from torchrl.data import Composite, TensorSpec

from recurrl.config import EnvConfig
from recurrl.envs.batched import observation_in
from recurrl.envs.checks import Array, allows_actions, as_array, is_castable
from recurrl.envs.interface import Interface
from recurrl.envs.source import source_of
from recurrl.envs.spaces import Space, dicts_to_tuples, leaves, raw_specs, spec_of, tuples_to_dicts
from recurrl.errors import ConfigError, require
from recurrl.evaluation import evaluate
from recurrl.keys import ACTION, ACTION_MASK, IS_INIT, NOISE, OBSERVATION, PREVIOUS_REWARD, name_of, nested, path_of
from recurrl.policy import Policy
from recurrl.policy.distributions import Joint, LazyCategorical, SquashedGaussian
from recurrl.recurrent.layer import reset_state
from recurrl.specs import limit_of

NOISE_INPUT = "noise"
NEXT = "next."
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class NamedArray:
    """One array of a plain environment's observations or actions.

    Attributes:
        key: the key of the array's tensor in a batched environment.
        space: the space of one environment's array.
        columns: the indices of a vector's entries that the policy sees; None for all.
    """

    key: NestedKey
    space: Space
    columns: list[int] | None = None

    @property
    def name(self) -> str:
        """The name of the input or output: the names in its key, joined by dots."""
        return name_of(self.key)

    @property
    def path(self) -> tuple[str, ...]:
        """The path within the observation or action; the entries of a tuple are named 0, 1, and so on."""
        return () if isinstance(self.key, str) else self.key[1:]

    @cached_property
    def spec(self) -> TensorSpec:
        """The spec of one environment's array."""
        return spec_of(self.space, 1)[0]

    def read(self, value: Any, batch: tuple[int, ...], advice: str, name: str = "") -> Tensor:
        """Checks values ``[*batch, *shape]``, and returns them as a tensor of the spec's dtype.

        Args:
            value: an array or a tensor.
            batch: the expected batch dimensions.
            advice: ends the error message.
            name: the name in error messages; by default :attr:`name`.

        Raises:
            ConfigError: the value has another shape or dtype, is not finite, or is a choice that does not exist.
        """
        name, shape, spec = name or self.name, (*batch, *(self.space.shape or ())), self.spec
        dtype = torch.empty(0, dtype=spec.dtype).numpy().dtype
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else as_array(value)
        # A scalar may stand for a vector of one entry, which its spec has.
        fits = (*batch, *spec.shape) in (array.shape, (*array.shape, 1))
        require(fits, f"{name} must have the shape {shape} (got {array.shape}). {advice}")
        array = array.reshape(shape)
        castable = array.dtype.kind in "biuf" and is_castable(array.dtype, dtype)
        require(castable, f"{name} must have the dtype {dtype} (got {array.dtype}). {advice}")
        with np.errstate(over="ignore"):  # overflow becomes infinite, which is rejected below
            cast = array.astype(dtype)
        limit = limit_of(spec)
        _require_all((array == cast) | (dtype.kind == "f"), array, f"{name} must hold numbers of {dtype}", advice)
        if limit is None:
            # Hidden columns may hold anything.
            visible = cast if self.columns is None else cast[..., self.columns]
            _require_all(np.isfinite(visible), visible, f"{name} must be finite", advice)
        else:
            whole = (array >= 0) & (array < np.asarray(limit))
            _require_all(whole, array, f"{name} must hold integers from 0 to {np.asarray(limit) - 1}", advice)
        return torch.from_numpy(cast)


def _require_all(good: Array, array: Array, condition: str, advice: str) -> None:
    if not good.all():
        at = tuple(np.argwhere(~good)[0].tolist())
        raise ConfigError(f"{condition} (got {array[at]} at index {list(at)}). {advice}")


REWARD = NamedArray("reward", spaces.Box(-np.inf, np.inf, ()))


class NamedInterface(Interface):
    """The interface between a plain environment and a policy that acts in it, with entries as named arrays.

    One copy of the environment is made for its spaces, and closed.

    Args:
        env: options of the environment.
        critic_only: entries of the observation that acting does not need.

    Attributes:
        observation_space: the observation space of the environment in its configured wrappers.
        action_space: the action space of the same environment.
        observed: the entries of an observation that the policy acts on.
        added: further inputs by name: the action mask from the info, and the reward of the last step.
        actions: the entries of an action.

    Raises:
        ConfigError: the environment cannot be made.
    """

    def __init__(self, env: EnvConfig, critic_only: Collection[str] = ()) -> None:
        with closing(source_of(env).plain()) as plain:
            observation, action = plain.observation_space, plain.action_space
        specs, action_spec = raw_specs(env.id, observation, action, 1, env.action_mask_from_info)
        super().__init__(env, Composite(specs, shape=[1])[0], action_spec[0], without=critic_only)
        self.observation_space, self.action_space = observation, action
        columns = {each.raw: each.columns for each in self.entries.values()}
        entries = _entries(OBSERVATION, tuples_to_dicts(observation, text=False))
        self.observed = [NamedArray(key, space, columns[key]) for key, space in entries.items() if key in columns]
        mask = NamedArray(ACTION_MASK, spaces.MultiBinary(spaces.flatdim(action)))
        self.added = {name: each for name, each in ((ACTION_MASK, mask), (PREVIOUS_REWARD, REWARD)) if name in columns}
        self.actions = [NamedArray(key, space) for key, space in _entries(ACTION, tuples_to_dicts(action)).items()]

    def policy_observation(self, inputs: Tensors, is_init_B: Tensor) -> Any:
        """The observation as the policy takes it: a tensor, or nested dicts.

        Args:
            inputs: raw entries of observations ``[B, ...]`` and the :attr:`added` ones, by name.
            is_init_B: true where an episode starts; the previous reward is set to zero there.
        """
        raw = {entry.key: inputs[entry.name].reshape(-1, *entry.spec.shape) for entry in self.observed}
        raw |= {name: inputs[name] for name in self.added}
        if PREVIOUS_REWARD in raw:
            raw[PREVIOUS_REWARD] = reset_state(raw[PREVIOUS_REWARD], is_init_B)
        return observation_in(self.observation(raw))


def _entries(root: str, space: Space) -> dict[NestedKey, Space]:
    return {(root, *path) if path else root: leaf for path, leaf in leaves(space)}


class Step(nn.Module):
    """Maps inputs by name to outputs by name, all with the batch as their first dimension.

    Inputs: the entries of the observation; ``action_mask`` if it comes with the info; ``previous_reward`` if the policy
    sees it; the states; ``is_init``, true where an episode begins, which makes the states and the previous reward zero;
    and ``noise`` if actions are sampled, fresh standard normal numbers for each step.

    Outputs: the entries of the action; ``next.`` and the name of each state; ``distribution.`` and the parameters of
    each part's distribution (``logits``, or ``mean`` and ``std``, those of continuous actions normalised).

    Args:
        policy: the policy; the step always uses its current parameters.
        interface: the interface between the policy and its environment.
    """

    def __init__(self, policy: Policy, interface: NamedInterface) -> None:
        super().__init__()
        self.policy, self.interface = policy.actor(), interface

    def state_shapes(self, sampled: bool) -> dict[str, tuple[int, ...]]:
        """The shape of each state of one environment, by name. Episodes begin with zeros.

        Args:
            sampled: include the noise of actions, if it is correlated from step to step.
        """
        return {name_of(key): shape for key, shape in self.policy.state_shapes.items() if sampled or key != NOISE}

    def forward(self, inputs: Tensors) -> Tensors:
        """Acts once in each of B environments."""
        is_init_B = inputs[IS_INIT]
        observation = self.interface.policy_observation(inputs, is_init_B)
        state = {key: inputs[name_of(key)] for key in self.policy.state_shapes if name_of(key) in inputs}
        acted = self.policy.step(observation, state, is_init_B, inputs.get(NOISE_INPUT))
        actions = self.interface.env_action(acted.action)
        outputs = {name_of((ACTION, *path)): value for path, value in actions.items()}
        outputs |= {NEXT + name_of(key): value for key, value in acted.state.items()}
        joint = acted.distribution.parts if isinstance(acted.distribution, Joint) else {(): acted.distribution}
        for path, part in joint.items():
            named = {name_of(("distribution", *path_of(path), key)): value for key, value in _parameters(part).items()}
            outputs |= named
        return outputs


def _parameters(distribution: Distribution) -> Tensors:
    """The parameters of the distribution of one part of an action: ``logits``, or ``mean`` and ``std``."""
    base: Any = distribution.base_dist if isinstance(distribution, Independent) else distribution
    base = base.base_dist if isinstance(base, SquashedGaussian) else base
    if isinstance(base, Normal):
        return {"mean": base.loc, "std": base.scale}
    return {"logits": base.unnormalized if isinstance(base, LazyCategorical) else base.logits}


_FLAG = NamedArray(IS_INIT, spaces.Discrete(2))
_ADVICE = (
    "Pass what the environment returns: with a batch dimension for initial_state(B), without one for initial_state()."
)


@dataclass(frozen=True)
class AgentState:
    """What an agent remembers between two steps: pass on what :meth:`Agent.act` returned.

    Attributes:
        tensors: recurrent states, the previous action if the policy sees it, and the action noise if it is correlated,
            ``[B, ...]`` each.
        is_init: true where the next step is an episode's first, ``[B]``.
        batch: the number of environments; None for one without a batch dimension.
    """

    tensors: Mapping[str, Tensor]
    is_init: Tensor
    batch: int | None

    def __repr__(self) -> str:
        shapes = [f"{name} {list(value.shape)}" for name, value in {**self.tensors, "is_init": self.is_init}.items()]
        return f"AgentState({', '.join(shapes)}, batch={self.batch})"


class Agent:
    """A trained policy with all that it needs to act: raw observations go in, the environment's own actions come out.

    *Raw* observations are those of the environment that :meth:`make_env` makes, which includes the wrappers of
    ``env.wrappers``. The agent hides entries of the observation, normalises it, remembers the previous action, and
    scales actions.

    Args:
        policy: the policy; the agent always acts with its current parameters.
        env: options of the environment that the policy was trained in.

    Attributes:
        policy: the policy.
        step: the computation of :meth:`act` on tensors, as one module for export.
        observation_space: the space of one environment's observation, which :meth:`act` takes.
        action_space: the space of one environment's action, which :meth:`act` returns.
    """

    def __init__(self, policy: Policy, env: EnvConfig) -> None:
        interface = NamedInterface(env, policy.critic_only)
        self.policy, self.step = policy, Step(policy, interface).to(policy.device)
        self.observation_space, self.action_space = interface.observation_space, interface.action_space
        self._interface, self._shapes = interface, self.step.state_shapes(sampled=True)

    def __repr__(self) -> str:
        env, count = self._interface.env, sum(parameter.numel() for parameter in self.policy.parameters())
        spaces_of = f"{self.observation_space} to {self.action_space}"
        return f"Agent({env.id}, {spaces_of}, {count:,} parameters on {self.policy.device})"

    def evaluate(self, episodes: int = 20, seed: int = 0, deterministic: bool = True) -> list[float]:
        """Plays episodes in new environments, and returns the undiscounted return of each.

        The process's random number generators stay as they are.

        Args:
            episodes: the number of episodes, one in each environment if there are at most 240.
            seed: the environments' seed; a run's own evaluation uses the run's seed.
            deterministic: take the most probable actions; False to sample them.

        Raises:
            ConfigError: an environment cannot be made.
            RunError: an environment failed.
        """
        require(episodes >= 1, f"episodes must be at least 1 (got {episodes}).")
        return evaluate(self._interface.env, self.policy, episodes, seed, deterministic=deterministic)

    def export(
        self,
        folder: str | Path,
        formats: Collection[str] = ("onnx", "pt2"),
        sampled: bool = False,
        layout: str | None = None,
    ) -> dict[str, Any]:
        """Exports one step to files that need no recurrl to run; see :func:`recurrl.export.export.export`."""
        from recurrl.export.export import export  # here, because it imports this module

        formats = [formats] if isinstance(formats, str) else formats
        return export(self, Path(folder), {"env": self._interface.env.id}, sampled, formats, layout)

    def make_env(self) -> gymnasium.Env[Any, Any]:
        """One environment like those that the policy was trained in: the user's, in its configured wrappers.

        Raises:
            ConfigError: the environment cannot be made.
        """
        return source_of(self._interface.env).plain()

    def initial_state(self, batch: int | None = None) -> AgentState:
        """The state before the first step.

        Args:
            batch: the number of environments; None for one, whose observations and actions have no batch dimension.
        """
        require(batch is None or batch > 0, f"batch must be at least 1 (got {batch}), or None for one environment.")
        count, device = batch or 1, self.policy.device
        tensors = {name: torch.zeros(count, *shape, device=device) for name, shape in self._shapes.items()}
        return AgentState(tensors, torch.ones(count, dtype=torch.bool, device=device), batch)

    @torch.no_grad()
    def act(
        self,
        observation: Any,
        state: AgentState,
        is_init: Any = None,
        deterministic: bool = True,
        *,
        reward: Any = None,
        action_mask: Any = None,
    ) -> tuple[Any, AgentState]:
        """The action for an observation, and the state for the next call.

        Args:
            observation: what the plain environment returned, or B observations with a first dimension of B: an array, a
                tensor, or a dict or tuple of these.
            state: what the last call returned, or :meth:`initial_state`.
            is_init: true where an episode begins, ``[B]`` or one flag: the state is reset there. None for nowhere; a
                state from :meth:`initial_state` needs no flag.
            deterministic: take the most probable action; False to sample with torch's global generator.
            reward: the reward of the last step, for policies with ``env.previous_reward``; others ignore it.
            action_mask: ``info["action_mask"]``, for policies with ``env.action_mask_from_info``; others ignore it.

        Returns:
            The action in the environment's own units, shape and dtype, in NumPy's types, and the new state. A policy
            that sees its previous action will see the returned one, so carry out that action.

        Raises:
            ConfigError: the observation, the state or another argument does not fit.
        """
        inputs = self.inputs(observation, state, is_init, reward=reward, action_mask=action_mask)
        if not deterministic:
            inputs[NOISE_INPUT] = torch.randn(len(state.is_init), self.policy.noise_size, device=self.policy.device)
        outputs = self.step(inputs)
        new = {name: outputs[NEXT + name] for name in state.tensors}
        return self._action(outputs, state.batch), AgentState(new, torch.zeros_like(state.is_init), state.batch)

    def inputs(
        self, observation: Any, state: AgentState, is_init: Any = None, *, reward: Any = None, action_mask: Any = None
    ) -> Tensors:
        """The checked inputs that :meth:`act` passes to :attr:`step`, by name, with a batch dimension.

        Raises:
            ConfigError: the observation, the state or another argument does not fit.
        """
        self._check_state(state)
        is_init_B = state.is_init
        if is_init is not None:
            is_init_B = is_init_B | self._read(_FLAG, is_init, state.batch).bool().to(is_init_B.device)
        inputs: Tensors = {**state.tensors, IS_INIT: is_init_B}
        for entry in self._interface.observed:
            inputs[entry.name] = self._read(entry, self._member(observation, entry), state.batch)
        if ACTION_MASK in self._interface.added:
            require(
                action_mask is not None,
                'action_mask must be passed for this policy (got None). Pass action_mask=info["action_mask"].',
            )
            mask = as_array(action_mask)
            mask = mask.astype(np.int8) if np.array_equal(mask, mask != 0) else mask
            inputs[ACTION_MASK] = self._read(self._interface.added[ACTION_MASK], mask, state.batch)
        if PREVIOUS_REWARD in self._interface.added:
            require(
                reward is not None or bool(is_init_B.all()),
                "reward must be passed for this policy (got None). Pass reward=, what the last step gave.",
            )
            rewards = torch.zeros_like(is_init_B).float() if reward is None else self._read(REWARD, reward, state.batch)
            inputs[PREVIOUS_REWARD] = rewards.unsqueeze(-1)
        mask_BK = inputs.get(ACTION_MASK, inputs.get(f"{OBSERVATION}.{ACTION_MASK}"))
        if mask_BK is not None:
            allows_B = allows_actions(mask_BK.numpy(), self._interface.action_spec)
            require(
                bool(allows_B.all()),
                f"action_mask must allow an action (got none in environment {int(allows_B.argmin())}). Reset an "
                "environment whose episode is over before acting in it again.",
            )
        return {name: value.to(self.policy.device) for name, value in inputs.items()}

    def _check_state(self, state: Any) -> None:
        """Rejects a state of another agent."""
        if not isinstance(state, AgentState):
            raise ConfigError(
                f"state must be an AgentState (got a {type(state).__name__}). Pass initial_state(), then what act "
                "returned last."
            )
        got = {name: tuple(value.shape) for name, value in state.tensors.items()}
        expected = {name: (state.batch or 1, *shape) for name, shape in self._shapes.items()}
        require(got == expected, f"state must have the shapes {expected} (got {got}). Pass a state of this agent.")

    def _read(self, entry: NamedArray, value: Any, batch: int | None) -> Tensor:
        """Checks an argument, and returns it as a CPU tensor with a batch dimension."""
        tensor = entry.read(value, () if batch is None else (batch,), _ADVICE)
        return tensor.unsqueeze(0) if batch is None else tensor

    def _action(self, outputs: Tensors, batch: int | None) -> Any:
        parts: dict[tuple[str, ...], Any] = {}
        for entry in self._interface.actions:
            value = outputs[entry.name].cpu().numpy().astype(entry.space.dtype)
            parts[entry.path] = value[0] if batch is None else value
        return parts[()] if () in parts else dicts_to_tuples(self.action_space, nested(parts))

    def _member(self, observation: Any, entry: NamedArray) -> Any:
        """One entry of an observation of nested dicts and tuples."""
        value = observation
        try:
            for key in entry.path:
                value = value[int(key)] if isinstance(value, tuple | list) else value[key]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            advice = f"Pass a value of the observation space, {self.observation_space}."
            raise ConfigError(f"observation must have the entry {entry.name}. {advice}") from error
        return value
