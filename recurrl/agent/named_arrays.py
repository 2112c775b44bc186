"""The named arrays that users pass to a policy and get from it, and the interface between them and the policy.

Shape legend: B batch.
"""

from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from tensordict import NestedKey
from torch import Tensor
from torchrl.data import Composite, TensorSpec

from recurrl.config import EnvConfig
from recurrl.envs.batched import observation_in
from recurrl.envs.checks import Array, as_array, is_castable
from recurrl.envs.interface import Interface
from recurrl.envs.source import source_of
from recurrl.envs.spaces import Space, leaves, named, raw_specs, spec_of
from recurrl.errors import ConfigError, require
from recurrl.keys import ACTION, ACTION_MASK, OBSERVATION, PREVIOUS_REWARD, name_of
from recurrl.recurrent.layer import reset_state
from recurrl.specs import limit_of

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
            ConfigError: the value has another shape or dtype, is not finite, or lies outside the space.
        """
        name, shape, spec = name or self.name, (*batch, *(self.space.shape or ())), self.spec
        dtype = torch.empty(0, dtype=spec.dtype).numpy().dtype
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else as_array(value)
        require(array.shape == shape, f"{name} must have the shape {shape} (got {array.shape}). {advice}")
        castable = array.dtype.kind in "biuf" and is_castable(array.dtype, dtype)
        require(castable, f"{name} must have the dtype {dtype} (got {array.dtype}). {advice}")
        with np.errstate(over="ignore"):  # overflow becomes infinite, which is rejected below
            cast = array.astype(dtype)
        limit = limit_of(spec)
        if limit is None:
            # Hidden columns may hold anything.
            visible = cast if self.columns is None else cast[..., self.columns]
            _require_all(np.isfinite(visible), visible, f"{name} must be finite", advice)
        else:
            whole = (array >= 0) & (array < np.asarray(limit)) & (array == cast)
            _require_all(whole, array, f"{name} must hold integers from 0 to {np.asarray(limit) - 1}", advice)
        return torch.from_numpy(cast)


def _require_all(good: Array, array: Array, condition: str, advice: str) -> None:
    if not good.all():
        at = tuple(np.argwhere(~good)[0].tolist())
        raise ConfigError(f"{condition} (got {array[at]} at index {list(at)}). {advice}")


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
        added: the names of further inputs: the action mask from the info, the previous reward.
        actions: the entries of an action.
        mask: the action mask.

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
        entries = _entries(OBSERVATION, named(observation, text=False))
        self.observed = [NamedArray(key, space, columns[key]) for key, space in entries.items() if key in columns]
        self.added = [name for name in (ACTION_MASK, PREVIOUS_REWARD) if name in columns]
        self.actions = [NamedArray(key, space) for key, space in _entries(ACTION, named(action)).items()]
        self._shapes = {entry.key: entry.spec.shape for entry in self.observed}
        self.mask = NamedArray(ACTION_MASK, spaces.MultiBinary(spaces.flatdim(action)))

    def policy_observation(self, inputs: Tensors, is_init_B: Tensor) -> Any:
        """The observation as the policy takes it: a tensor, or nested dicts.

        Args:
            inputs: raw entries of observations ``[B, ...]`` and the :attr:`added` ones, by name.
            is_init_B: true where an episode starts; the previous reward is set to zero there.
        """
        raw = {key: inputs[name_of(key)].reshape(-1, *shape) for key, shape in self._shapes.items()}
        for name in self.added:
            raw[name] = inputs[name] if name == ACTION_MASK else reset_state(inputs[name], is_init_B)
        return observation_in(self.observation(raw))


REWARD = NamedArray("reward", spaces.Box(-np.inf, np.inf, ()))


def _entries(root: str, space: Space) -> dict[NestedKey, Space]:
    return {(root, *path) if path else root: leaf for path, leaf in leaves(space)}
