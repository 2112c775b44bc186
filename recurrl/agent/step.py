"""One step of acting as one module: from raw observations to the environment's own actions.

Everything between the two is in it, so that the same module acts in Python and is exported: the hidden entries of the
observation, its normalisation, masks of actions, the previous action and reward, the network, the choice of the
action, and its units.

Shape legend: B batch, Z numbers of noise, A entries of the flattened action.
"""

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal
from torch.nn import functional

from recurrl.agent.interface import Interface, Space
from recurrl.envs.spaces import spec_of
from recurrl.envs.wrappers import added_entries, half_range, seen_entries
from recurrl.keys import ACTION_MASK, OBSERVATION, PREVIOUS_ACTION, name_of, nested, path_of
from recurrl.policy import Policy
from recurrl.policy.distributions import Binary, Joint, LazyCategorical, SquashedGaussian
from recurrl.policy.noise import NOISE

IS_INIT = "is_init"
NOISE_INPUT = "noise"
NEXT = "next."

Tensors = dict[str, Tensor]


class Step(nn.Module):
    """Inputs by name to outputs by name, all with the batch as their first dimension.

    Inputs: the entries of the observation; ``action_mask`` if it comes with the info; ``previous_reward`` if the policy
    sees it; the states; ``is_init``, true where an episode begins, which makes the states and the previous reward zero;
    and ``noise`` if actions are sampled, fresh standard normal numbers for each step.

    Outputs: the entries of the action; ``next.`` and the name of each state; ``distribution.`` and the parameters of
    each part's distribution (``logits``, or ``mean`` and ``std``, those of continuous actions in the policy's units).

    Args:
        policy: acts with the parameters that it has at each call.
        interface: of its environment.
        sampled: draw actions instead of taking the most probable ones.
    """

    def __init__(self, policy: Policy, interface: Interface, sampled: bool = False) -> None:
        super().__init__()
        self.policy, self.interface, self.sampled = policy.actor(), interface, sampled
        self._critic_only = policy.critic_only
        env = interface.env
        self._observed = [(name, path, spec_of(leaf, 1)) for name, path, leaf in interface.observations()]
        self.parts = {path: _Part(name, leaf, interface.scales_actions) for name, path, leaf in interface.actions()}
        self._modules_of_parts = nn.ModuleList(self.parts.values())
        seen = seen_entries(interface.observation_space, env.mask)[1] if env.mask else None
        self.seen: Tensor | None
        self.register_buffer("seen", None if seen is None else torch.from_numpy(seen))
        self.added = [name for name in added_entries(env) if name not in policy.critic_only]

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each state of one environment, by name. Episodes begin with zeros."""
        found = {name_of(key): shape for key, shape in self.policy.state_shapes.items()}
        if PREVIOUS_ACTION in self.added:
            found[PREVIOUS_ACTION] = (sum(part.flat_size for part in self.parts.values()),)
        if self.policy.noise is not None and self.sampled:
            found[NOISE] = (self.policy.noise.size,)
        return found

    def noise_size(self) -> int:
        """Z."""
        return self.policy.noise_size if self.sampled else 0

    def forward(self, inputs: Tensors) -> Tensors:
        """Acts once in each of B environments."""
        begins_B = inputs[IS_INIT]
        observation = self.observation(inputs, begins_B)
        keys = [key for key in self.policy.carried_keys if self.sampled or key != NOISE]
        state = {key: inputs[name_of(key)] for key in keys}
        noise_BZ = inputs[NOISE_INPUT] if self.sampled else None
        action, _, _, new_state, distribution = self.policy.step(observation, state, begins_B, noise_BZ)
        outputs = {NEXT + name_of(key): value for key, value in new_state.items()}
        joint = distribution.parts if isinstance(distribution, Joint) else {(): distribution}
        parts = {path_of(key): part for key, part in joint.items()}
        actions: Tensors = {}
        flat_BA = []
        for path, part in self.parts.items():
            chosen = action[path] if path else action
            actions[part.name] = part.to_env(chosen)
            if PREVIOUS_ACTION in self.added:
                flat_BA.append(part.flat(chosen))
        if flat_BA:
            outputs[NEXT + PREVIOUS_ACTION] = torch.cat(flat_BA, -1)
        for path, each in parts.items():
            outputs |= {name_of(("distribution", *path, key)): value for key, value in parameters_of(each).items()}
        return {**actions, **outputs}

    def observation(self, inputs: Tensors, begins_B: Tensor) -> Any:
        """The observation as the policy takes it: a tensor, or a nested mapping."""
        entries: dict[tuple[str, ...], Tensor] = {}
        for name, path, spec in self._observed:
            value = inputs[name].reshape(-1, *spec.shape[1:])
            entries[path or (OBSERVATION,)] = value if self.seen is None else value[:, self.seen]
        for name in self.added:
            value = inputs[name]
            entries[name,] = value if name == ACTION_MASK else value.masked_fill(begins_B.unsqueeze(-1), 0.0)
        is_dict = isinstance(self.interface.observation_space, spaces.Dict | spaces.Tuple)
        is_dict = is_dict or bool(self.added or self._critic_only)
        return nested(entries) if is_dict else entries[OBSERVATION,]


class _Part(nn.Module):
    """One part of an action.

    Args:
        name: of the output.
        space: of the environment's action.
        scales: the policy's actions are in units of half the range.
    """

    def __init__(self, name: str, space: Space, scales: bool) -> None:
        super().__init__()
        self.name, self.space = name, space
        self.flat_size = spaces.flatdim(space)
        self.dtype = spec_of(space, 1).dtype
        self._scales = scales and isinstance(space, spaces.Box)
        self._scaling: Tensor
        self._bounds: Tensor
        if isinstance(space, spaces.Box):
            units, scaling = half_range(space)
            limits = np.finfo(np.float32)
            bounds = np.maximum(units.low, limits.min), np.minimum(units.high, limits.max)
            self.register_buffer("_scaling", torch.from_numpy(np.stack(scaling)))
            self.register_buffer("_bounds", torch.from_numpy(np.stack(bounds).astype(np.float32)).flatten(1))

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
        """The policy's action as it is shown to it afterwards, ``[B, A]``; see :class:`AddedEntries`."""
        if isinstance(self.space, spaces.Box):
            return chosen.flatten(1).float().maximum(self._bounds[0]).minimum(self._bounds[1])
        if isinstance(self.space, spaces.Discrete):
            return functional.one_hot(chosen.long(), int(self.space.n)).float()
        if isinstance(self.space, spaces.MultiDiscrete):
            columns = zip(chosen.long().unbind(-1), self.space.nvec, strict=True)
            return torch.cat([functional.one_hot(each, int(size)) for each, size in columns], -1).float()
        return chosen.flatten(1).float()


def parameters_of(distribution: Distribution) -> Tensors:
    """The parameters of the distribution of one part of an action: ``logits``, or ``mean`` and ``std``."""
    base: Any = _base(distribution)
    if isinstance(base, Normal):
        return {"mean": base.loc, "std": base.scale}
    return {"logits": base.unnormalized if isinstance(base, LazyCategorical) else base.logits}


def decided(step: Step, name: str, outputs: Tensors, inputs: Tensors) -> Tensor:
    """The choices that the distribution among a step's outputs, and its noise, lead to.

    Args:
        step: whose action has this part.
        name: of the output.
        outputs: of any implementation of the step.
        inputs: of the same step.
    """
    sizes = getattr(step.policy.actor_head, "noise_sizes", [step.policy.noise_size])
    noises = inputs[NOISE_INPUT].split(sizes, -1) if step.sampled else [None] * len(sizes)
    for (path, part), noise in zip(step.parts.items(), noises, strict=True):
        if part.name == name:
            logits = outputs[name_of(("distribution", *path, "logits"))]
            binary = isinstance(part.space, spaces.MultiBinary)
            distribution: Any = Binary(logits) if binary else LazyCategorical(logits)
            return part.to_env(distribution.mode if noise is None else distribution.action_from_noise(noise))
    raise KeyError(name)


def _base(distribution: Distribution) -> Any:
    inner: Any = distribution.base if isinstance(distribution, SquashedGaussian) else distribution
    return inner.base_dist if isinstance(inner, Independent) else inner
