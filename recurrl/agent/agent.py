"""A policy that acts in its environment, one step at a time.

Shape legend: B batch, Z numbers of noise.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from recurrl.agent.interface import interface_of
from recurrl.agent.step import IS_INIT, NEXT, NOISE_INPUT, Step, Tensors
from recurrl.config import EnvConfig
from recurrl.envs.faults import as_array
from recurrl.envs.observations import is_castable, limit_of, starts_of_choices
from recurrl.envs.source import source_of
from recurrl.envs.spaces import dtype_of
from recurrl.envs.wrappers import without_names
from recurrl.errors import ConfigError, require
from recurrl.keys import ACTION_MASK, OBSERVATION, PREVIOUS_REWARD, nested
from recurrl.policy import Policy

Array = np.ndarray[Any, Any]
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class AgentState:
    """What an agent remembers between two steps: pass on what :meth:`Agent.act` returned.

    Attributes:
        tensors: recurrent states, and the previous action if the policy sees it, ``[B, ...]`` each.
        begins: true where the next step is an episode's first, ``[B]``.
        batch: the number of environments; None for one without a batch dimension.
    """

    tensors: Mapping[str, Tensor]
    begins: Tensor
    batch: int | None


class Agent:
    """A trained policy with all that belongs to it: raw observations go in, the environment's own actions come out.

    *Raw* is what the plain environment returns, within the wrappers of ``env.wrappers`` if the run has any: what
    :meth:`make_env` makes. The hidden entries of the observation, its normalisation, the previous action and the units
    of actions are the agent's business.

    Args:
        policy: acts with the parameters that it has at each call.
        env: options of the environment it was trained in.

    Attributes:
        policy: likewise.
        interface: the environment's spaces.
        observation_space: of one environment, as :meth:`act` takes observations.
        action_space: of one environment, as :meth:`act` returns actions.
    """

    def __init__(self, policy: Policy, env: EnvConfig) -> None:
        self.policy, self.interface = policy, interface_of(env, policy.critic_only)
        self.observation_space, self.action_space = self.interface.observation_space, self.interface.action_space
        device = policy.device
        self._steps = {sampled: Step(policy, self.interface, sampled).to(device) for sampled in (False, True)}
        self._shapes = self._steps[True].state_shapes()
        self._observed = [(*entry, dtype_of(entry[2]), limit_of(entry[2])) for entry in self.interface.observations()]
        self._acted = list(self.interface.actions())

    def step_module(self, sampled: bool = False) -> Step:
        """What :meth:`act` computes on tensors, as one module for export."""
        return self._steps[sampled]

    def make_env(self) -> gymnasium.Env[Any, Any]:
        """The environment it was trained in, within its user's wrappers, with nothing of recurrl's around it.

        Raises:
            ConfigError: it cannot be made.
        """
        return source_of(self.interface.env).plain()

    def initial_state(self, batch: int | None = None) -> AgentState:
        """The state before the first step.

        Args:
            batch: the number of environments; None for one, whose observations and actions have no batch dimension.
        """
        require(batch is None or batch > 0, f"initial_state({batch}) is too small. Give at least 1, or None for one.")
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
            observation: of one environment, or of B with a first dimension of B, as the plain environment returns it:
                an array or a tensor, or a dict or tuple of them.
            state: what the last call returned, or :meth:`initial_state`.
            is_init: true where an episode begins, ``[B]`` or one flag: the state starts over there. None for nowhere; a
                state from :meth:`initial_state` needs no flag.
            deterministic: the most probable action; False to sample with torch's global generator.
            reward: what the last step gave; only for policies with ``env.previous_reward``.
            action_mask: of the info; only for policies with ``env.action_mask_from_info``.

        Returns:
            The action in the environment's own units, shape and dtype (a tensor if the observation holds tensors), and
            the new state. The previous action that a policy sees is the one returned here: carry it out.

        Raises:
            ConfigError: the observation, the state or another argument does not fit.
        """
        step = self._steps[not deterministic]
        inputs = self.inputs(observation, state, is_init, reward=reward, action_mask=action_mask)
        if not deterministic:
            inputs[NOISE_INPUT] = torch.randn(len(state.begins), step.noise_size(), device=self.policy.device)
        outputs = step(inputs)
        # Only sampled steps have noise, which is kept for the next one.
        new = {name: outputs.get(NEXT + name, value) for name, value in state.tensors.items()}
        like = _first_tensor(observation)
        return self._action(outputs, state.batch, like), AgentState(new, torch.zeros_like(state.begins), state.batch)

    def inputs(
        self, observation: Any, state: AgentState, is_init: Any = None, *, reward: Any = None, action_mask: Any = None
    ) -> Tensors:
        """What :meth:`act` passes to :meth:`step_module`, checked, with a batch dimension.

        Raises:
            ConfigError: as :meth:`act`.
        """
        self._check(state)
        begins_B = state.begins
        if is_init is not None:
            begins_B = begins_B | self._entry("is_init", is_init, (), np.dtype(bool), state.batch)
        inputs: Tensors = {**state.tensors, **self._read(observation, state.batch), IS_INIT: begins_B}
        added = self._steps[True].added
        if ACTION_MASK in added:
            inputs[ACTION_MASK] = self._mask(action_mask, state.batch)
        if PREVIOUS_REWARD in added:
            inputs[PREVIOUS_REWARD] = self._reward(reward, begins_B, state.batch)
        mask = inputs.get(ACTION_MASK, inputs.get(f"{OBSERVATION}.{ACTION_MASK}"))
        if mask is not None:
            self._check_mask(mask)
        return inputs

    def _check(self, state: Any) -> None:
        """Rejects a state of another agent."""
        if not isinstance(state, AgentState):
            raise ConfigError(
                f"act was given a {type(state).__name__} as state. Pass initial_state(), then what act returned last."
            )
        count = state.batch or 1
        found = {name: tuple(value.shape) for name, value in state.tensors.items()}
        expected = {name: (count, *shape) for name, shape in self._shapes.items()}
        require(found == expected, f"act was given a state of {found}, but this agent's are {expected}.")

    def _read(self, observation: Any, batch: int | None) -> Tensors:
        """The entries of an observation by name, checked."""
        found = {}
        for name, path, leaf, dtype, limit in self._observed:
            value = observation
            for key in path:
                value = _member(value, key, name, self.observation_space)
            found[name] = self._entry(name, value, leaf.shape or (), dtype, batch)
            self._check_values(name, found[name], limit)
        return found

    def _entry(self, name: str, value: Any, shape: tuple[int, ...], dtype: np.dtype[Any], batch: int | None) -> Tensor:
        """An argument as a tensor with a batch dimension."""
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else as_array(value)
        wanted = shape if batch is None else (batch, *shape)
        if array.shape != wanted:
            raise ConfigError(self._misshapen(name, array.shape, shape, batch))
        cast = array.astype(dtype) if is_castable(array.dtype, dtype) else None
        if cast is None or (dtype.kind != "f" and not np.array_equal(cast, array)):
            raise ConfigError(
                f"act was given {name} with the dtype {array.dtype}, but the environment's is {dtype}. Pass it as "
                "the environment returns it."
            )
        return torch.from_numpy(cast if batch is not None else cast[None]).to(self.policy.device)

    def _misshapen(self, name: str, found: tuple[int, ...], shape: tuple[int, ...], batch: int | None) -> str:
        whose = "one environment" if batch is None else f"{batch} environments"
        asked = f"act was given {name} of shape {found}"
        if len(found) == len(shape) + 1 and found[1:] == shape:
            begin = f"Begin with initial_state({found[0]})."
            return f"{asked}, for {found[0]} environments, but the state is of {whose}. {begin}"
        if found == shape:
            return f"{asked}, for one environment, but the state is of {whose}. Begin with initial_state()."
        return f"{asked}, but {self.interface.env.id} has {shape} for one environment, and the state is of {whose}."

    def _check_values(self, name: str, value: Tensor, limit: Any) -> None:
        """Rejects NaN, Inf and integers out of range; hidden entries may be anything."""
        seen = self._steps[False].seen
        value = value if seen is None else value[:, seen]
        if limit is None:
            wrong = ~(value.abs() <= _LARGEST) if value.is_floating_point() else None
        else:
            wrong = (value < 0) | (value >= torch.as_tensor(limit.astype(np.int64), device=value.device))
        if wrong is not None and wrong.any():
            row = int(wrong.flatten(1).any(1).nonzero()[0]) if wrong.ndim > 1 else int(wrong.nonzero()[0])
            what = "NaN or Inf" if limit is None else f"a number that is not from 0 to {limit - 1}"
            raise ConfigError(
                f"act was given {what} in {name} of environment {row}: {value[row].tolist()}. Nothing was computed; "
                "repair the observation before acting on it."
            )

    def _mask(self, mask: Any, batch: int | None) -> Tensor:
        if mask is None:
            raise ConfigError('The policy sees the mask of actions in the info: pass action_mask=info["action_mask"].')
        size = spaces.flatdim(self.action_space)
        return self._entry(ACTION_MASK, np.asarray(mask) != 0, (size,), np.dtype(np.int8), batch)

    def _check_mask(self, mask_BK: Tensor) -> None:
        """Rejects masks that allow no action, where any choice would be a forbidden one."""
        starts = starts_of_choices(self.action_space)
        allows_B = np.logical_or.reduceat(mask_BK.cpu().numpy() != 0, starts, -1).all(-1)
        if not allows_B.all():
            raise ConfigError(
                f"act was given a mask that allows no action in environment {int(allows_B.argmin())}. Reset an "
                "environment whose episode is over before acting in it again."
            )

    def _reward(self, reward: Any, begins_B: Tensor, batch: int | None) -> Tensor:
        if reward is None:
            if not begins_B.all():
                raise ConfigError("The policy sees the previous reward: pass reward=, what the last step gave.")
            return torch.zeros(len(begins_B), 1, device=begins_B.device)
        return self._entry("reward", reward, (), np.dtype(np.float32), batch).unsqueeze(-1)

    def _action(self, outputs: Tensors, batch: int | None, like: Tensor | None) -> Any:
        parts: dict[tuple[str, ...], Any] = {}
        for name, path, leaf in self._acted:
            value = outputs[name] if batch is not None else outputs[name][0]
            parts[path] = value.to(like.device) if like is not None else value.cpu().numpy().astype(leaf.dtype)[()]
        return parts[()] if () in parts else without_names(self.action_space, nested(parts))


def _member(value: Any, key: str, name: str, space: spaces.Space[Any]) -> Any:
    """One entry of a dict or tuple."""
    try:
        return value[int(key)] if isinstance(value, tuple | list) else value[key]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ConfigError(
            f"act was given an observation without {name}. Pass a value of the observation space, {space}."
        ) from error


def _first_tensor(observation: Any) -> Tensor | None:
    """A tensor in an observation; None if it holds arrays."""
    while isinstance(observation, Mapping | tuple | list) and observation:
        observation = next(iter(observation.values())) if isinstance(observation, Mapping) else observation[0]
    return observation if isinstance(observation, Tensor) else None
