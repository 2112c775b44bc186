"""One step of acting as a module on named arrays: from raw observations to the environment's own actions.

The same module acts in Python and is exported. It is ``Policy.step`` with a :class:`NamedInterface` on both sides.

Shape legend: B environments.
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
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal
from torchrl.data import Composite, TensorSpec

from recurrl.config import EnvConfig
from recurrl.envs.batched import observation_in
from recurrl.envs.checks import Array, as_array, is_castable
from recurrl.envs.interface import Interface
from recurrl.envs.source import source_of
from recurrl.envs.spaces import Space, leaves, raw_specs, spec_of, tuples_to_dicts
from recurrl.errors import ConfigError, require
from recurrl.keys import ACTION, ACTION_MASK, IS_INIT, NOISE, OBSERVATION, PREVIOUS_REWARD, name_of, path_of
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
