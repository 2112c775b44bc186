"""Heads, which map features to the distribution of each kind of action.

Shape legend: B batch (any number of dimensions), A action entries.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from tensordict import NestedKey
from torch import Tensor, nn
from torch.distributions import Distribution
from torchrl.data import Binary, Composite, TensorSpec

from recurrl.config import PolicyConfig
from recurrl.errors import ConfigError
from recurrl.keys import ACTION_MASK
from recurrl.policy import distributions
from recurrl.policy.initialization import HEAD_GAIN, linear
from recurrl.specs import bounds_of, choices


class ActionHead(nn.Module):
    """Maps features to the distribution of an action of one part.

    Args:
        network: maps features to the distribution's parameters, one tensor or several.
        distribution: makes the distribution from these parameters.
        masked: pass the observation's entry ``action_mask`` to ``distribution`` as ``mask``.
        noise_size: how many standard normal numbers ``action_from_noise`` of the distribution takes per action; 0 for
            a distribution without that method, whose actions torch draws.
    """

    def __init__(
        self, network: nn.Module, distribution: Callable[..., Distribution], masked: bool = False, noise_size: int = 0
    ) -> None:
        super().__init__()
        self.noise_size = noise_size
        self.network = network
        self.distribution = distribution
        self.masked = masked

    def forward(self, features: Tensor, observation: Any = None) -> Distribution:
        """The distribution of actions ``[B]``."""
        parameters = self.network(features)
        parameters = (parameters,) if isinstance(parameters, Tensor) else parameters
        mask = {"mask": observation[ACTION_MASK]} if self.masked else {}
        return self.distribution(*parameters, **mask)


class JointHead(nn.Module):
    """Maps features to the distribution of an action of several parts.

    Args:
        heads: the head of each part, by the part's key within the action.
    """

    def __init__(self, heads: dict[NestedKey, ActionHead]) -> None:
        super().__init__()
        self.parts = heads
        self.heads = nn.ModuleList(heads.values())
        self.noise_sizes = [head.noise_size for head in heads.values()]
        self.noise_size = sum(self.noise_sizes)

    def forward(self, features: Tensor, observation: Any = None) -> Distribution:
        """The distribution of actions ``[B]``."""
        parts = {part: head(features, observation) for part, head in self.parts.items()}
        return distributions.Joint(parts, self.noise_sizes)


def make_actor(
    options: PolicyConfig, width: int, observation: TensorSpec, action: TensorSpec
) -> ActionHead | JointHead:
    """Makes the actor's head for an action spec.

    Args:
        options: the policy's options.
        width: the number of features.
        observation: the spec of an unbatched observation.
        action: the spec of an unbatched action; a composite for actions of several parts.

    Raises:
        ConfigError: an action mask does not fit the actions, only some entries of an action to squash are bounded, or
            an action is one-hot or of integers without a known number of values.
    """
    mask = observation.get(ACTION_MASK, None) if isinstance(observation, Composite) else None
    if mask is not None:
        _check_mask(mask, action)
    if not isinstance(action, Composite):
        return _make_head(options, width, action, masked=mask is not None)
    parts = action.items(include_nested=True, leaves_only=True)
    return JointHead({key: _make_head(options, width, spec) for key, spec in parts})


def _check_mask(mask: TensorSpec, action: TensorSpec) -> None:
    sizes = choices(action)
    if sizes is None:
        raise ConfigError(
            f"The environment gives an action mask, but its action is {action}. Masks need a single discrete or "
            "multi-discrete action. Remove action_mask from the environment's observation, or flatten its actions."
        )
    size = sum(sizes)
    if tuple(mask.shape) != (size,):
        raise ConfigError(
            f"The environment's action mask has shape {tuple(mask.shape)}, but its actions have {size} choices in "
            f"total. Return a mask of shape ({size},): one entry per choice, with the parts of a multi-discrete action "
            "concatenated."
        )


def _make_head(options: PolicyConfig, width: int, action: TensorSpec, masked: bool = False) -> ActionHead:
    sizes, shape, count = choices(action), tuple(action.shape), action.shape.numel()
    if sizes is not None:
        chosen = partial(distributions.multi_categorical, sizes) if shape else distributions.LazyCategorical
        return ActionHead(linear(width, sum(sizes), HEAD_GAIN), chosen, masked, len(sizes) * max(sizes))
    if isinstance(action, Binary):
        bits = nn.Sequential(linear(width, count, HEAD_GAIN), nn.Unflatten(-1, shape))
        return ActionHead(bits, partial(distributions.entries, distributions.Bits, len(shape)), noise_size=count)
    if not action.dtype.is_floating_point:
        raise ConfigError(
            "The environment's action must be Categorical, MultiCategorical, Binary or in floating point (got "
            f"{type(action).__name__} of {action.dtype}). TorchRL's GymEnv takes categorical_action_encoding=True."
        )
    finite, squashes = torch.stack(bounds_of(action)).isfinite(), options.bounded_action == "tanh"
    if squashes and finite.any() and not finite.all():
        raise ConfigError(
            "policy.bounded_action must be clip for partly unbounded actions (got tanh). Set it, or have the "
            f"environment bound all {count} entries."
        )
    bounded: Any = distributions.SquashedGaussian if squashes else distributions.ClippedGaussian
    kind = bounded if finite.all() else distributions.Gaussian
    network = GaussianParameters(width, shape, options.initial_std)
    return ActionHead(network, partial(distributions.entries, kind, len(shape)), noise_size=count)


class GaussianParameters(nn.Module):
    """A mean that is linear in the features, and a learned standard deviation that does not depend on them.

    Args:
        width: the number of features.
        shape: the shape of an action.
        initial_std: standard deviation before training.
    """

    def __init__(self, width: int, shape: tuple[int, ...], initial_std: float) -> None:
        super().__init__()
        self.mean = linear(width, math.prod(shape), HEAD_GAIN)
        self.log_std = nn.Parameter(torch.full(shape, math.log(initial_std)))

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation, ``[B, *shape]`` each."""
        mean = self.mean(features).unflatten(-1, self.log_std.shape)
        return mean, self.log_std.exp().expand_as(mean)
