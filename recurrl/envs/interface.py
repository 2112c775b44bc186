"""Converts raw observations to the policy's, and the policy's actions to the environment's, on tensors.

Shape legend: N environments, or any batch.
"""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from tensordict import NestedKey
from torch import Tensor, nn
from torchrl.data import Bounded, Composite, TensorSpec, Unbounded

from recurrl.config import EnvConfig
from recurrl.envs.batched import Tensors
from recurrl.envs.spaces import box_spec, space_of
from recurrl.errors import ConfigError, require
from recurrl.keys import ACTION_MASK, OBSERVATION, PREVIOUS_REWARD, PRIVILEGED, KeyPath
from recurrl.specs import bounds_of, leaves_of

_ADDED_BY = {
    ACTION_MASK: "env.action_mask_from_info=true",
    PREVIOUS_REWARD: "env.previous_reward=true",
    PRIVILEGED: "algorithm.critic_observation=privileged",
}
"""The settings that add entries to observations."""


class Entry(nn.Module):
    """An entry of the policy's observation.

    Args:
        raw: the key of the environment's entry.
        spec: the spec of one environment's entry, as the policy sees it.
        columns: the visible indices of a vector; None for all.
    """

    indices: Tensor

    def __init__(self, raw: NestedKey, spec: TensorSpec, columns: list[int] | None = None) -> None:
        super().__init__()
        self.raw, self.spec, self.columns = raw, spec, columns
        self.register_buffer("indices", None if columns is None else torch.tensor(columns))

    def of(self, raw: Mapping[NestedKey, Tensor]) -> Tensor:
        """The entry ``[N, ...]``, from the environment's entries."""
        value = raw[self.raw]
        # Tests columns, because looking up a buffer takes longer than all the rest.
        return value if self.columns is None else value.index_select(-1, self.indices)


class Interface(nn.Module):
    """Turns raw observations into what a policy observes, and the policy's actions into the environment's.

    Raw entries are ``observation`` or the leaves within it, ``action_mask`` and ``privileged`` if the environment has
    them, and the previous reward. ``env.mask`` names entries of a vector or of a dict to hide. The policy's observation
    is a dict if the environment's is one or if entries are added to it, else a tensor. ``action_mask`` has one number
    per choice; the choices of several discrete actions are concatenated.

    Args:
        env: the environment's options.
        observation: the spec of one environment's raw entries, with the entry ``observation``.
        action: the spec of one environment's action; composite if it has several parts.
        privileged: add the entry ``privileged``: the entries of a vector that ``env.mask`` hides, or without a mask the
            environment's own entry of that name.
        without: entries of the policy's observation to leave out.

    Attributes:
        env: the environment's options.
        entries: the entries of the policy's observation, by their keys in it.
        parts: the parts of the action.
        observation_spec: the spec of one environment's observation, with the entry ``observation``.
        action_spec: the spec of the policy's action for one environment.

    Raises:
        ConfigError: the options do not fit the environment.
    """

    def __init__(
        self,
        env: EnvConfig,
        observation: Composite,
        action: TensorSpec,
        privileged: bool = False,
        without: Collection[str] = (),
    ) -> None:
        super().__init__()
        self.env = env
        self.parts = [ActionPart(path, spec) for path, spec in leaves_of(action)]
        self._modules_of_parts = nn.ModuleList(self.parts)
        parts = {part.path: part.spec for part in self.parts}
        self.action_spec = parts[()] if () in parts else Composite(parts)
        own = _own_entries(observation[OBSERVATION], env.mask, privileged)
        entries = own | self._added_entries(observation, own, privileged and not env.mask)
        is_plain = len(entries) == 1 and not without and not isinstance(observation[OBSERVATION], Composite)
        paths = sorted((path for path in entries if path[0] not in without), key=lambda path: path[0])
        self.entries = {OBSERVATION if is_plain else (OBSERVATION, *path): entries[path] for path in paths}
        self._modules_of_entries = nn.ModuleList(self.entries.values())
        self.observation_spec = Composite({key: entry.spec for key, entry in self.entries.items()})

    def _added_entries(
        self, observation: Composite, own: Collection[KeyPath], adds_privileged: bool
    ) -> dict[KeyPath, Entry]:
        """What the policy sees in addition to the environment's own observation."""
        masked, present = self.env.action_mask_from_info, set(observation.keys())
        gives = ACTION_MASK in present
        require(
            masked == gives,
            f"env.action_mask_from_info must be {str(gives).lower()} (got {str(masked).lower()}): env.id={self.env.id} "
            f"returns {'an' if gives else 'no'} action mask outside its observation.",
        )
        extra = [ACTION_MASK] * masked + [PRIVILEGED] * (adds_privileged and PRIVILEGED in present)
        specs = {name: observation[name] for name in extra}
        if self.env.previous_reward:
            specs[PREVIOUS_REWARD] = Unbounded((1,))
        for name in {*specs, PREVIOUS_REWARD} & {path[0] for path in own}:
            raise ConfigError(
                f"env.id={self.env.id} must have no entry {name} in its observation: that is the name of the entry "
                f"that {_ADDED_BY[name]} adds. Leave that out, or rename the environment's entry."
            )
        return {(name,): Entry(name, spec) for name, spec in specs.items()}

    def observation(self, raw: Mapping[NestedKey, Tensor]) -> Tensors:
        """The leaves of the policy's observation ``[N, ...]``. ``raw`` needs the raw keys of all :attr:`entries`."""
        return {key: entry.of(raw) for key, entry in self.entries.items()}

    def raw(self, observation: Mapping[Any, Tensor]) -> Tensors:
        """The inverse of :meth:`observation`: the raw entries, without hidden columns, of a mapping with the leaves."""
        raw: Tensors = {entry.raw: observation[key] for key, entry in self.entries.items()}
        columns = {key: entry.indices for key, entry in self.entries.items() if entry.columns is not None}
        if columns:
            order = torch.cat([*columns.values()]).argsort()
            raw[OBSERVATION] = torch.cat([observation[key] for key in columns], -1).index_select(-1, order)
        return raw

    def env_action(self, action: Any) -> dict[KeyPath, Tensor]:
        """Converts the policy's action to the environment's: its parts by path, which is ``()`` for a single part."""
        return {part.path: part.to_env(action[part.path] if part.path else action) for part in self.parts}

    def policy_action(self, action: Any) -> dict[KeyPath, Tensor]:
        """The inverse of :meth:`env_action`: converts the environment's action to the policy's parts, by path."""
        return {part.path: part.from_env(action[part.path]) for part in self.parts}


class ActionPart(nn.Module):
    """One part of an action, or all of it.

    Continuous actions of a policy are normalised, each entry separately: between two finite bounds they are in units of
    half the range, so that −1 and 1 stand for the bounds. If the bounds are equal, the action is zero and the
    environment gets that bound. Entries without two finite bounds are only clipped.

    Args:
        path: the part's path within the action; ``()`` if it is the whole action.
        raw: the spec of one environment's action.

    Attributes:
        path: the part's path within the action; ``()`` if it is the whole action.
        raw: the spec of one environment's action.
        spec: the spec of the policy's action.
    """

    _scaling: Tensor
    """The middle, half the range, and the lower and upper bound of the environment's actions, in float64."""

    def __init__(self, path: KeyPath, raw: TensorSpec) -> None:
        super().__init__()
        self.path, self.raw, self.spec = path, raw, raw
        self.is_continuous = raw.dtype.is_floating_point
        if self.is_continuous:
            # In float64, with halves first: high - low of a range as wide as the dtype would be infinite.
            low, high = (bound.double() for bound in bounds_of(raw))
            bounded, one = low.isfinite() & high.isfinite(), (low < high).double()
            ends = torch.where(bounded, -one, low), torch.where(bounded, one, high)
            self.spec = box_spec(*(end.to(raw.dtype) for end in ends))
            limits = torch.finfo(raw.dtype)
            low, high = low.clamp(min=limits.min), high.clamp(max=limits.max)
            middle, half = torch.where(bounded, low / 2 + high / 2, 0.0), torch.where(bounded, high / 2 - low / 2, 1.0)
            self.register_buffer("_scaling", torch.stack((middle, half, low, high)))

    def to_env(self, chosen: Tensor) -> Tensor:
        """Converts the policy's action ``[N, ...]`` to the environment's."""
        if self.is_continuous:
            middle, half, low, high = self._scaling
            # Clipped after scaling, because rounding may also exceed the bounds.
            chosen = (middle + half * chosen.double()).maximum(low).minimum(high)
        # A copy, because an environment may write into its action.
        return chosen.to(self.raw.dtype, copy=True)

    def from_env(self, action: Tensor) -> Tensor:
        """Converts the environment's action ``[N, ...]`` to the policy's."""
        if not self.is_continuous:
            return action.to(self.raw.dtype)
        middle, half, _, _ = self._scaling
        return torch.where(half > 0, (action.double() - middle) / half, 0.0).to(torch.get_default_dtype())


def _own_entries(observation: TensorSpec, mask: Collection[int | str], privileged: bool) -> dict[KeyPath, Entry]:
    """The environment's own entries that the policy sees."""
    if isinstance(observation, Composite):
        return _own_entries_of_dict(observation, mask, privileged)
    if not mask:
        return {(OBSERVATION,): Entry(OBSERVATION, observation)}
    if not isinstance(observation, Bounded | Unbounded) or len(observation.shape) != 1:
        raise ConfigError(
            f"env.mask={list(mask)} hides entries of a vector or a dict, but the observation space is "
            f"{space_of(observation)}. Remove env.mask."
        )
    size = observation.shape[0]
    if not set(mask) < set(range(size)):
        raise ConfigError(
            f"env.mask must be some, but not all, of the indices of the observation's {size} entries, 0 to {size - 1} "
            f"(got {', '.join(map(str, mask))})."
        )
    low, high = bounds_of(observation)
    columns = {OBSERVATION: [i for i in range(size) if i not in mask]}
    if privileged:
        columns[PRIVILEGED] = [i for i in range(size) if i in mask]
    return {(name,): Entry(OBSERVATION, box_spec(low[each], high[each]), each) for name, each in columns.items()}


def _own_entries_of_dict(observation: Composite, mask: Collection[int | str], privileged: bool) -> dict[KeyPath, Entry]:
    """The entries of a dict that are not hidden; the entries of a tuple are called 0, 1, and so on."""
    hidden, names = set(map(str, mask)), [name for name in observation.keys() if name != ACTION_MASK]  # noqa: SIM118
    if hidden and not hidden < set(names):
        raise ConfigError(
            f"env.mask must be some, but not all, of the observation's entries {', '.join(names)} (got "
            f"{', '.join(map(str, mask))}). An entry is hidden as a whole."
        )
    if hidden and privileged:
        raise ConfigError(
            "algorithm.critic_observation must name the entries of a dict that only the critic sees (got privileged). "
            f"Use [{', '.join(map(str, mask))}], and leave env.mask out."
        )
    visible = {path: spec for path, spec in leaves_of(observation) if path[0] not in hidden}
    return {path: Entry((OBSERVATION, *path), spec) for path, spec in visible.items()}
