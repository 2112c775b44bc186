"""Between a plain environment and the policy: raw observations to the policy's, and its actions to the environment's.

Shape legend: B batch, A entries of the flattened action.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional

from recurrl.config import EnvConfig
from recurrl.envs.checks import Array, as_array, is_castable, limit_of
from recurrl.envs.source import source_of
from recurrl.envs.spaces import Space, dtype_of, leaves, named
from recurrl.envs.wrappers import added_entries, half_range, seen_entries
from recurrl.errors import ConfigError, require
from recurrl.keys import ACTION, ACTION_MASK, OBSERVATION, PREVIOUS_ACTION, name_of, nested
from recurrl.recurrent.layer import reset_states

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Entry:
    """One array of an environment's observations or actions.

    Attributes:
        name: of the input or output, with dots.
        path: leads to it within the observation or action; the entries of a tuple are 0, 1, and so on.
        space: of one environment.
    """

    name: str
    path: tuple[str, ...]
    space: Space

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The dtype in which policies take it."""
        return dtype_of(self.space)

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape in one environment."""
        return self.space.shape or ()

    def read(
        self, value: Any, batch: tuple[int, ...], advice: str, visible: Array | None = None, name: str = ""
    ) -> Tensor:
        """Values ``[*batch, *shape]`` as a tensor of its dtype.

        Args:
            value: an array or a tensor.
            batch: the expected batch dimensions.
            advice: ends the error message.
            visible: indices along the last dimension of what must be finite; None for all.
            name: for the error message; that of the entry by default.

        Raises:
            ConfigError: it has another shape or dtype, is not finite, or has values that the space does not have.
        """
        name, shape = name or self.name, (*batch, *self.shape)
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else as_array(value)
        require(array.shape == shape, f"{name} must have the shape {shape} (got {array.shape}). {advice}")
        castable = array.dtype.kind in "biuf" and is_castable(array.dtype, self.dtype)
        require(castable, f"{name} must have the dtype {self.dtype} (got {array.dtype}). {advice}")
        with np.errstate(over="ignore"):  # what overflows is infinite
            cast = array.astype(self.dtype)
        limit = limit_of(self.space)
        if limit is None:
            seen = cast if visible is None else cast[..., visible]
            _require_all(np.isfinite(seen), seen, f"{name} must be finite", advice)
        else:
            whole = (array >= 0) & (array < limit) & (array == cast)
            _require_all(whole, array, f"{name} must hold integers from 0 to {limit - 1}", advice)
        return torch.from_numpy(cast)


def _require_all(good: Array, array: Array, condition: str, advice: str) -> None:
    if not good.all():
        at = tuple(np.argwhere(~good)[0].tolist())
        raise ConfigError(f"{condition} (got {array[at]} at index {list(at)}). {advice}")


class Interface(nn.Module):
    """Turns what a plain environment returns into what the policy observes, and the policy's actions into its actions.

    One copy of the environment is made for its spaces, and closed.

    Args:
        env: options of the environment.
        critic_only: entries of the observation that acting does not need.

    Attributes:
        env: options of the environment.
        observation_space: of the environment within its user's wrappers.
        action_space: of the same environment.
        observed: the entries of an observation that the policy acts on.
        added: further inputs of the policy: the mask of actions in the info, the previous action, the previous reward.
        parts: of an action.

    Raises:
        ConfigError: the environment cannot be made.
    """

    visible: Tensor | None

    def __init__(self, env: EnvConfig, critic_only: Collection[str] = ()) -> None:
        super().__init__()
        source = source_of(env)
        self.env, (self.observation_space, self.action_space) = env, source.plain_spaces()
        entries = _entries(OBSERVATION, named(self.observation_space, text=False))
        unseen = {*critic_only, *map(str, env.mask)}
        self.observed = [entry for entry in entries if not entry.path or entry.path[0] not in unseen]
        self.added = [name for name in added_entries(env) if name not in critic_only]
        self.parts = [ActionPart(entry, source.scales_actions) for entry in _entries(ACTION, named(self.action_space))]
        self._modules_of_parts = nn.ModuleList(self.parts)
        is_vector = isinstance(self.observation_space, spaces.Box)
        visible = seen_entries(self.observation_space, env.mask)[1] if env.mask and is_vector else None
        self.register_buffer("visible", None if visible is None else torch.from_numpy(visible))
        is_dict = isinstance(self.observation_space, spaces.Dict | spaces.Tuple)
        self._has_entries = is_dict or bool(self.added or critic_only)

    def policy_observation(self, inputs: Tensors, is_init_B: Tensor) -> Any:
        """The observation as the policy takes it: a tensor, or a nested mapping.

        Args:
            inputs: raw entries of observations ``[B, ...]`` and the :attr:`added` ones, by name.
            is_init_B: true where an episode starts; there is no previous action and reward.
        """
        entries: dict[tuple[str, ...], Tensor] = {}
        for entry in self.observed:
            # Policies take numbers without dimensions as vectors of one, except for choices.
            value = inputs[entry.name]
            value = value.unsqueeze(-1) if entry.shape == () and isinstance(entry.space, spaces.Box) else value
            entries[entry.path or (OBSERVATION,)] = value if self.visible is None else value[:, self.visible]
        for name in self.added:
            value = inputs[name]
            entries[name,] = value if name == ACTION_MASK else reset_states((value,), is_init_B)[0]
        return nested(entries) if self._has_entries else entries[OBSERVATION,]

    def env_actions(self, action: Any) -> Tensors:
        """The parts of the environment's action by name, for the policy's."""
        return {part.entry.name: part.to_env(part.of(action)) for part in self.parts}

    def policy_actions(self, actions: Tensors) -> dict[tuple[str, ...], Tensor]:
        """The parts of the policy's action by path, for those of the environment's by name."""
        return {part.entry.path: part.from_env(actions[part.entry.name]) for part in self.parts}

    def previous_action(self, action: Any) -> Tensor:
        """The policy's action as it is shown to it at the next step, ``[B, A]``."""
        return torch.cat([part.flat(part.of(action)) for part in self.parts], -1)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """What passes from step to step besides the policy's states: the previous action, if the policy sees it."""
        size = spaces.flatdim(self.action_space)
        return {PREVIOUS_ACTION: (size,)} if PREVIOUS_ACTION in self.added else {}


class ActionPart(nn.Module):
    """One part of an action, whole if it has a single one.

    Args:
        entry: of the environment's action.
        scales: the policy's continuous actions are normalised: −1 and 1 stand for the bounds.
    """

    def __init__(self, entry: Entry, scales: bool) -> None:
        super().__init__()
        self.entry, self.space = entry, cast(Any, entry.space)
        self.dtype = torch.from_numpy(np.empty(0, entry.dtype)).dtype
        self._scales = scales and isinstance(self.space, spaces.Box)
        self._scaling: Tensor
        self._bounds: Tensor
        if isinstance(self.space, spaces.Box):
            normalised, scaling = half_range(self.space)
            limits = np.finfo(np.float32)
            bounds = np.maximum(normalised.low, limits.min), np.minimum(normalised.high, limits.max)
            self.register_buffer("_scaling", torch.from_numpy(np.stack(scaling)))
            self.register_buffer("_bounds", torch.from_numpy(np.stack(bounds).astype(np.float32)).flatten(1))

    def of(self, action: Any) -> Tensor:
        """This part of the policy's action."""
        return action[self.entry.path] if self.entry.path else action

    def to_env(self, chosen: Tensor) -> Tensor:
        """The environment's action ``[B, ...]`` for the policy's."""
        if self._scales:
            middle, half, low, high = self._scaling
            chosen = (middle + half * chosen.double()).maximum(low).minimum(high)
        return chosen.to(self.dtype)

    def from_env(self, action: Tensor) -> Tensor:
        """The policy's action for the environment's ``[B, ...]``."""
        if not isinstance(self.space, spaces.Box):
            return action.to(self.dtype)
        if self._scales:
            middle, half, _, _ = self._scaling
            action = torch.where(half > 0, (action.double() - middle) / half, 0.0)
        return action.to(torch.get_default_dtype())

    def flat(self, chosen: Tensor) -> Tensor:
        """The policy's action as it is shown afterwards, ``[B, A]``; see :class:`~recurrl.envs.wrappers.Prepared`."""
        if isinstance(self.space, spaces.Box):
            return chosen.flatten(1).float().maximum(self._bounds[0]).minimum(self._bounds[1])
        if isinstance(self.space, spaces.MultiBinary):
            return chosen.flatten(1).float()
        sizes = self.space.nvec if isinstance(self.space, spaces.MultiDiscrete) else [self.space.n]
        columns = zip(chosen.long().view(-1, len(sizes)).unbind(-1), sizes, strict=True)
        return torch.cat([functional.one_hot(each, int(size)) for each, size in columns], -1).float()


def _entries(name: str, space: Space) -> Iterator[Entry]:
    for path, leaf in leaves(space):
        yield Entry(name_of((name, *path)), path, leaf)
