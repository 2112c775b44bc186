"""Environments that are stepped in one call, among them simulators with tensors on their own device.

Shape legend: N environments.
"""

import logging
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from tensordict import NestedKey, TensorDictBase
from tensordict.utils import expand_as_right
from torch import Tensor

from recurrl.config.env import DISABLED, NEXT_STEP, SAME_STEP, VecEnvConfig
from recurrl.envs.arguments import parameters_of
from recurrl.envs.batched import BatchedEnv, Tensors
from recurrl.envs.checks import UnnamedEnvError, unpacked
from recurrl.envs.spaces import Space, as_dicts, dicts_to_tuples, raw_specs, tuples_to_dicts
from recurrl.errors import ConfigError, require
from recurrl.keys import FINAL_UNKNOWN, INSERTED, OBSERVATION, PRIVILEGED, KeyPath, name_of, path_of
from recurrl.runtime.serialization import Stateful

logger = logging.getLogger(__name__)

ACTOR, CRITIC = ("policy", "actor"), ("critic",)
"""The default groups of observations: the policy sees the first of ``ACTOR`` that exists, the critic ``CRITIC``."""


class VecEnv(BatchedEnv):
    """N environments that are stepped in one call.

    ``resets`` says when they begin the next episode:

    - ``same_step``: within an episode's last step, which returns the next episode's first observation. The episode's
      own last observation is in ``info["final_obs"]``.
    - ``disabled``: on request. ``reset`` is called with ``env_ids``, the indices of environments, or ``mask``, or
      ``options={"reset_mask": mask}``, whichever parameter it has.
    - ``next_step``: in the step after the last, whose action has no effect. That step is marked by the entry
      ``inserted``, and counts as an episode of its own, which terminates.

    Args:
        env: the environments, an object with ``reset`` and ``step``.
        resets: ``same_step``, ``disabled`` or ``next_step``.
        action_space: the space of one environment's action.
        specs: the number of environments, the specs of observations and of actions, and the device, as for
            :class:`~recurrl.envs.batched.BatchedEnv`.
        is_array: true if the environments take NumPy arrays.
    """

    action_space: Space

    def __init__(self, env: Any, resets: str, action_space: Space, *specs: Any, is_array: bool = True) -> None:
        super().__init__(*specs)
        self._env, self._resets, self.action_space, self._is_array = env, resets, action_space, is_array
        parameters = parameters_of(env.reset) or {}
        self._reset_argument = next((name for name in ("env_ids", "mask", "options") if name in parameters), "")
        require(
            resets != DISABLED or self._reset_argument != "",
            "env.resets=disabled needs a reset with an argument env_ids, mask or options, by which environments are "
            f"reset apart (it has {', '.join(parameters) or 'none'}). Choose env.resets=same_step, or add one.",
        )
        self._observed: Tensors = {}
        none = torch.zeros(*self.batch_size, 1, dtype=torch.bool, device=self.device)
        # Where the last step ended an episode, and where the next step only begins an episode, ``[N, 1]``.
        self._ended, self._inserted_next = none, none

    @abstractmethod
    def _results(self, returned: Any) -> tuple[Any, Tensors, Any]:
        """Splits what a step returned into the observation, the entries of the results, and the info."""

    @abstractmethod
    def _read(self, observation: Any, info: Any) -> Tensors:
        """The checked raw entries ``[N, ...]``, in new memory."""

    @abstractmethod
    def _final_observations(self, before: Tensors, step: Tensors, info: Any) -> Tensors:
        """For ``same_step``: the entries that replace the next episodes' first observations in what a step returns."""

    def reset_tensors(self, mask: Tensor | None) -> Tensors:
        """Resets environments on request. Those that reset themselves are only read, except for a full reset."""
        if mask is None:
            self._observed = self._read(*_start_episodes(self._env))
            self._inserted_next = torch.zeros_like(self._inserted_next)
        elif self._resets == DISABLED and (arguments := self._reset_arguments(mask.squeeze(-1))):
            first = self._read(*_start_episodes(self._env, **arguments))
            self._observed = {key: _where(mask, value, self._observed[key]) for key, value in first.items()}
        return dict(self._observed)

    def _reset_arguments(self, mask_N: Tensor) -> dict[str, Any]:
        """The argument of ``reset`` that chooses environments; none if it is their indices, and there are none."""
        if self._reset_argument == "env_ids":
            indices = mask_N.nonzero().squeeze(-1)
            return {"env_ids": indices} if len(indices) else {}
        mask: Any = mask_N.numpy() if self._is_array else mask_N
        return {"mask": mask} if self._reset_argument == "mask" else {"options": {"reset_mask": mask}}

    def step_tensors(self, action: Tensor | TensorDictBase) -> Tensors:
        """Steps all environments in one call."""
        before = self._observed
        values = action.numpy() if self._is_array else action
        observation, results, info = self._results(self._env.step(dicts_to_tuples(self.action_space, values)))
        self._observed = self._read(observation, info)
        step = {**self._observed, **results}
        if self._resets == SAME_STEP:
            step |= self._final_observations(before, step, info)
        elif self._resets == NEXT_STEP:
            step |= self._inserted_steps(before, step)
        self._ended = step["done"]
        return step

    def _inserted_steps(self, before: Tensors, step: Tensors) -> Tensors:
        """The steps that only begin an episode, as whole episodes that terminate without a reward."""
        inserted = self._inserted_next
        self._inserted_next = step["done"] & ~inserted
        # The policy acts in an inserted step too, on an observation that it has acted on before.
        self._observed = {key: _where(self._inserted_next, old, step[key]) for key, old in before.items()}
        return {
            **{key: _where(inserted, old, step[key]) for key, old in before.items()},
            "reward": step["reward"].masked_fill(inserted, 0.0),
            "terminated": step["terminated"] | inserted,
            "truncated": step["truncated"] & ~inserted,
            "done": step["done"] | inserted,
            INSERTED: inserted,
        }

    @property
    def stateful(self) -> Stateful:
        """The wrapped environment object if it has a state, else this environment."""
        return self._env if isinstance(self._env, Stateful) else self

    def _set_seed(self, seed: int | None) -> None:
        if "seed" in (parameters_of(self._env.reset) or ()):
            self._env.reset(seed=seed)
        elif hasattr(self._env, "seed") and seed is not None:
            self._env.seed(seed)

    def close(self, **kwargs: Any) -> None:
        """Does nothing, because the simulator is left to its next user; :meth:`shut_down` closes it."""

    def shut_down(self) -> None:
        """Closes the environments, if they have a method ``close``."""
        if hasattr(self._env, "close"):
            self._env.close()
        super().close()


class SimulatorEnv(VecEnv):
    """A simulator of N environments, with tensors on its device in and out; NumPy's arrays are converted.

    ``step(action)`` returns ``(observation, reward, terminated, truncated, info)``, as Isaac Lab's and mjlab's do, or
    ``(observation, reward, done, extras)`` with ``extras["time_outs"]``, as the ``VecEnv`` of rsl_rl does. ``reset()``
    restarts all episodes and returns ``(observation, info)``; or anything else if there is ``get_observations()``.
    Observations are a tensor ``[N, ...]``, or groups of them by name. Without ``info["final_obs"]`` the observation
    before an episode's last step takes its place, and the entry ``final_unknown`` marks that. The metrics are the means
    of ``info["log"]`` over the steps that have it.

    Args:
        env: the simulator.
        options: the environment's options.

    Raises:
        ConfigError: policies do not support its observations or actions.
        UnnamedEnvError: it does not have the interface described here.
    """

    def __init__(self, env: Any, options: VecEnvConfig) -> None:
        observation, _ = _start_episodes(env)
        first = next(_leaves((), observation))[1]
        count, is_dict = len(first), _is_dict(observation)
        actor, critic = _groups(options, list(observation.keys()) if is_dict else [])
        seen = _policy_groups(tuples_to_dicts(_observation_space(env, observation)), actor)
        action = _action_space(env)
        specs = raw_specs(options.id, spaces.Dict(seen) if isinstance(seen, dict) else seen, action, count)
        device, is_array = torch.as_tensor(first).device, isinstance(first, np.ndarray)
        super().__init__(env, options.resets, action, count, *specs, device, is_array=is_array)
        self._actor_groups, self._critic_groups = actor, critic
        self._expected = {key: (spec.dtype, spec.shape) for key, spec in self.observation_spec.items(True, True)}
        self._logged: dict[str, list[Tensor]] = {}
        # Where an episode was ever truncated without its last observation, and whether the user was told.
        self._cut_unknown, self._warned = self._inserted_next, False

    def show_privileged(self) -> None:
        """Adds the concatenated groups of the critic, if there are any, to observations, as entry ``privileged``."""
        if self._critic_groups and PRIVILEGED not in self._expected:
            privileged = self._privileged(_start_episodes(self._env)[0])
            self.add_privileged(privileged)
            self._expected[PRIVILEGED] = (privileged.dtype, privileged.shape)

    def _final_observations(self, before: Tensors, step: Tensors, info: Any) -> Tensors:
        """Ended episodes' last observations, in place of the next episodes' first ones, and where they are unknown."""
        final = info.get("final_obs")
        done, last = step["done"], before if final is None else self._entries(final)
        unknown = done if final is None else torch.zeros_like(done)
        self._cut_unknown = self._cut_unknown | (unknown & step["truncated"])
        return {**{key: _where(done, value, step[key]) for key, value in last.items()}, FINAL_UNKNOWN: unknown}

    def metrics(self) -> dict[str, float]:
        """The means of what was logged since the last call."""
        if self._resets == SAME_STEP and not self._warned and bool(self._cut_unknown.any()):
            self._warned = True
            logger.warning(
                "The simulator gives no final observation of episodes that are truncated (info['final_obs']): their "
                "returns are bootstrapped from the value of the second-to-last observation. A simulator that resets on "
                "request (env.resets=disabled) needs no such estimate."
            )
        means = {f"env/{name.strip('/')}": float(torch.stack(each).nanmean()) for name, each in self._logged.items()}
        self._logged.clear()
        return means

    def _read(self, observation: Any, info: Any) -> Tensors:
        for name, value in (info.get("log") or {}).items() if isinstance(info, Mapping) else ():
            self._logged.setdefault(name, []).append(torch.as_tensor(value).detach().double().mean())
        return self._entries(observation)

    def _entries(self, observation: Any) -> Tensors:
        groups = _policy_groups(observation, self._actor_groups)
        entries: Tensors = {key: torch.as_tensor(value).clone() for key, value in _leaves((OBSERVATION,), groups)}
        if PRIVILEGED in self._expected:
            entries[PRIVILEGED] = self._privileged(observation)
        for key, (dtype, shape) in self._expected.items():
            if key not in entries:
                raise UnnamedEnvError(f"returned an observation without the entry {path_of(key)[-1]!r}.")
            value = entries[key]
            if (*value.shape, 1) == shape:  # a scalar may stand for a vector of one entry
                value = entries[key] = value.unsqueeze(-1)
            if value.shape != shape or value.dtype != dtype or value.device != self.device:
                raise UnnamedEnvError(
                    f"gave the observation {name_of(key)!r} the shape {tuple(value.shape)} and {value.dtype} on "
                    f"{value.device}, but it must have {tuple(shape)} and {dtype} on {self.device}, as at the "
                    "first reset."
                )
        return {key: entries[key] for key in self._expected}

    def _privileged(self, observation: Any) -> Tensor:
        parts = [torch.as_tensor(observation[name]) for name in self._critic_groups]
        return torch.cat([part.flatten(1).float() for part in parts], 1)

    def _results(self, returned: Any) -> tuple[Any, Tensors, Any]:
        if isinstance(returned, tuple) and len(returned) == 4:
            observation, reward, over, info = returned
            done = self._flag("done", over)
            cut = done & self._flag("time_outs", info["time_outs"]) if "time_outs" in info else torch.zeros_like(done)
            ended = done & ~cut
        else:
            observation, reward, terminated, truncated, info = unpacked("step", returned)
            ended, cut = self._flag("terminated", terminated), self._flag("truncated", truncated)
            # Isaac Lab and mjlab leave it to the learner to treat a finite-horizon task's time limit as termination.
            if getattr(getattr(self._env, "cfg", None), "is_finite_horizon", False):
                ended, cut = ended | cut, torch.zeros_like(cut)
        rewards = self._column("reward", reward).to(torch.float32, copy=True)
        return observation, {"reward": rewards, "terminated": ended, "truncated": cut, "done": ended | cut}, info

    def _flag(self, name: str, values: Any) -> Tensor:
        column = self._column(name, values)
        if column.is_floating_point():
            raise UnnamedEnvError(f"returned {name} as {column.dtype}. Have it return True or False.")
        return column != 0

    def _column(self, name: str, values: Any) -> Tensor:
        column, count = torch.as_tensor(values), self.batch_size[0]
        if column.shape not in ((count,), (count, 1)) or column.device != self.device:
            raise UnnamedEnvError(
                f"returned {name} of shape {tuple(column.shape)} on {column.device}. Have it return one for each of "
                f"the {count} environments, on {self.device}."
            )
        return column.reshape(count, 1)


def _start_episodes(env: Any, **arguments: Any) -> tuple[Any, Any]:
    """Resets a simulator, and returns the observation and the info."""
    returned = env.reset(**arguments)
    if hasattr(env, "get_observations") and not (isinstance(returned, tuple) and len(returned) == 2):
        observed = env.get_observations()
        return observed if isinstance(observed, tuple) else (observed, {})
    return unpacked("reset", returned)


def _groups(options: VecEnvConfig, names: list[str]) -> tuple[list[str], list[str]]:
    """The groups of observations that the policy sees, and those of the critic; empty without groups."""
    critic = options.critic_groups or [name for name in names if name in CRITIC]
    actor = options.actor_groups or [name for name in ACTOR if name in names][:1]
    if unknown := [name for name in (*actor, *critic) if name not in names]:
        raise ConfigError(
            f"env.actor_groups and env.critic_groups must name groups of observations (got {unknown[0]}). The "
            f"environment has {', '.join(names) or 'none'}."
        )
    return actor or [name for name in names if name not in critic], critic


def _policy_groups(groups: Any, actor: list[str]) -> Any:
    """What the policy sees: the only group, or a dict of several; everything if there are no groups."""
    if not actor:
        return groups
    return groups[actor[0]] if len(actor) == 1 else {name: groups[name] for name in actor}


def _is_dict(value: Any) -> bool:
    return isinstance(value, Mapping | TensorDictBase)


def _leaves(path: KeyPath, value: Any) -> Iterator[tuple[NestedKey, Any]]:
    """The keys and values of the leaves of nested dicts and tuples; a path of one name is that name."""
    parts = as_dicts(value)
    if not _is_dict(parts):
        yield path[0] if len(path) == 1 else path, parts
        return
    for name, part in parts.items():
        yield from _leaves((*path, name), part)


def _observation_space(env: Any, observation: Any) -> Space:
    """The declared space, if it is one of Gymnasium's; else one derived from the shapes and dtypes observed."""
    space = getattr(env, "single_observation_space", None)
    return space if isinstance(space, spaces.Space) else _space_like(observation)


def _space_like(value: Any) -> Space:
    if _is_dict(value):
        return spaces.Dict({name: _space_like(part) for name, part in value.items()})
    if isinstance(value, tuple):
        return spaces.Tuple([_space_like(part) for part in value])
    tensor = torch.as_tensor(value)
    dtype: Any = torch.empty(0, dtype=tensor.dtype).numpy().dtype.type
    if tensor.ndim < 2 or not (tensor.is_floating_point() or tensor.dtype == torch.uint8):
        raise ConfigError(
            f"An observation of shape {tuple(tensor.shape)} and {tensor.dtype} does not determine its range. Define "
            "the environment's single_observation_space, a space of Gymnasium."
        )
    low, high = (-np.inf, np.inf) if tensor.is_floating_point() else (0, 255)
    return spaces.Box(low, high, tuple(tensor.shape[1:]), dtype)


def _action_space(env: Any) -> Space:
    """The declared space; that of ``num_actions`` numbers without bounds if there is none."""
    space = getattr(env, "single_action_space", None)
    if isinstance(space, spaces.Space):
        return space
    if space is None:
        return spaces.Box(-np.inf, np.inf, (int(env.num_actions),))
    low, high = (np.broadcast_to(np.asarray(end, np.float32), space.shape) for end in (space.low, space.high))
    return spaces.Box(low, high, dtype=np.float32)


def _where(mask_N1: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """The first of two entries ``[N, ...]`` where a mask is true, else the second."""
    return torch.where(expand_as_right(mask_N1.squeeze(-1), first), first, second)
