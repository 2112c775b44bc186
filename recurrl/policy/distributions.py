"""Distributions of actions, and the actor's heads, which map features to the distribution of each kind of action.

The distributions are those that torch lacks: masked, squashed, over vectors, and joint over several parts. Each has
``action_from_noise``, which turns standard normal numbers into a random action, and ``mode``, the action of a
deterministic policy.

Shape legend: B batch (any number of dimensions), K discrete choices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from torch import Tensor, distributions, nn
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, Normal
from torch.nn import functional
from torchrl.data import Binary, Composite, TensorSpec

from recurrl.config import PolicyConfig
from recurrl.errors import ConfigError
from recurrl.keys import ACTION_MASK
from recurrl.policy.initialization import HEAD_GAIN, linear
from recurrl.specs import bounds_of, choices

QUADRATURE_POINTS = 64
_POINTS, _WEIGHTS = np.polynomial.hermite_e.hermegauss(QUADRATURE_POINTS)


class LazyCategorical(Categorical):
    """torch's Categorical with fewer operations: probabilities are computed only on demand.

    Args:
        unnormalized: ``[B, K]``, log-probabilities up to a constant.
        mask: a tensor of the same shape; choices where it is zero have probability zero. None to allow all.
    """

    def __init__(self, unnormalized: Tensor, mask: Tensor | None = None) -> None:
        self.unnormalized = self._param = unnormalized = mask_logits(unnormalized, mask)
        self.logits, self._num_events = functional.log_softmax(unnormalized, -1), unnormalized.shape[-1]
        Distribution.__init__(self, unnormalized.shape[:-1], validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probabilities ``[..., B]`` of choices ``[..., B]``."""
        return self.logits.expand(*value.shape, -1).gather(-1, value.long().unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """Entropies ``[B]``, in nats. Log-probabilities must be finite, as :func:`mask_logits` leaves them."""
        return -(self.logits.exp() * self.logits).sum(-1)

    def action_from_noise(self, noise: Tensor) -> Tensor:
        """Choices ``[B]`` from standard normal numbers, K for each, by the Gumbel trick.

        Of independent E_k ~ Exp(p_k), the k-th is the smallest with probability p_k. With Φ the normal distribution
        function, −log Φ(noise) ~ Exp(1), so E_k is −log Φ(noise) / p_k. Where a probability is NaN or Inf, so is the
        log-probability of the choice.
        """
        exponential = torch.special.log_ndtr(noise.reshape(self.unnormalized.shape)).neg()
        return (exponential.log() - self.unnormalized).argmin(-1)

    @property
    def mode(self) -> Tensor:
        """The most probable choices ``[B]``."""
        return self.unnormalized.argmax(-1)


def mask_logits(logits: Tensor, mask: Tensor | None = None) -> Tensor:
    """Logits that give probability zero to the choices where ``mask`` is zero."""
    # Not −∞, whose product with a probability of zero is NaN.
    return logits if mask is None else logits.masked_fill(mask == 0, torch.finfo(logits.dtype).min)


class Entries(Independent):  # type: ignore[type-arg]
    """Independent entries of an action.

    Args:
        each: the distributions of the entries, ``[B, *event]``.
        event_dims: the number of dimensions of an action.
    """

    def __init__(self, each: Distribution, event_dims: int = 1) -> None:
        super().__init__(each, event_dims, validate_args=False)

    def action_from_noise(self, noise: Tensor) -> Tensor:
        """Actions ``[B, *event]`` from standard normal numbers."""
        return self.base_dist.action_from_noise(noise)


def entries(kind: Callable[..., Distribution], event_dims: int, *parameters: Tensor) -> Entries:
    """Independent entries, each with a distribution of this kind and its own parameters ``[B, *event]``."""
    return Entries(kind(*parameters, validate_args=False), event_dims)


def multi_categorical(sizes: Sequence[int], logits: Tensor, mask: Tensor | None = None) -> Entries:
    """Several independent choices; their noise is ``max(sizes)`` numbers for each.

    Args:
        sizes: the number of values of each choice.
        logits: ``[B, sum(sizes)]``.
        mask: a tensor of the same shape; choices where it is zero have probability zero. None to allow all.
    """
    widest, lowest = max(sizes), torch.finfo(logits.dtype).min
    # One distribution over choices of equal size, with the values that do not exist masked.
    parts = [
        functional.pad(part, (0, widest - size), value=lowest)
        for size, part in zip(sizes, mask_logits(logits, mask).split(list(sizes), -1), strict=True)
    ]
    return Entries(LazyCategorical(torch.stack(parts, -2)))


class Gaussian(Normal):
    """Normally distributed numbers."""

    def action_from_noise(self, noise: Tensor) -> Tensor:
        """Numbers that are ``noise`` standard deviations off their means."""
        return self.loc + self.scale * noise.reshape(self.loc.shape)


class ClippedGaussian(Gaussian):
    """Normally distributed numbers that the environment clips to −1 and 1.

    A number at or beyond a bound has the probability of that bound in place of a density. How far beyond it was drawn
    makes no difference to the environment, so it makes none to the gradient either, which lowers its variance (Fujita
    and Maeda 2018, https://arxiv.org/abs/1802.07564). The entropy is that of the clipped number, in which each bound is
    one point. For a mean of zero it peaks at a standard deviation of 1.5, so an entropy bonus cannot widen the normal
    without end.
    """

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of each number."""
        beyond = torch.special.log_ndtr((self.loc * value.sign() - 1) / self.scale)
        return torch.where(value.abs() < 1, super().log_prob(value), beyond)  # type: ignore[no-untyped-call]

    def entropy(self) -> Tensor:
        """Entropy of each number, in nats."""
        # The distance of each bound from the mean, outwards, in standard deviations.
        distance = torch.stack([1 + self.loc, 1 - self.loc]) / self.scale
        log_beyond = torch.special.log_ndtr(-distance)
        beyond, density = log_beyond.exp(), (-0.5 * distance**2).exp() / math.sqrt(2 * math.pi)
        inside = (1 - beyond.sum(0)) * super().entropy() - 0.5 * (distance * density).sum(0)  # type: ignore[no-untyped-call]
        return inside - (beyond * log_beyond).sum(0)


class SquashedGaussian(distributions.TransformedDistribution):
    """The tanh of normal numbers: strictly between −1 and 1.

    TorchRL's TanhNormal estimates its entropy from one sample. Here it is the normal's entropy plus
    ``E[log(1 − tanh²)]``, one integral per number, by Gauss-Hermite quadrature, which is accurate to 0.001 for standard
    deviations up to 3.

    Args:
        loc: means before squashing.
        scale: standard deviations before squashing.
        validate_args: check the parameters and values.
    """

    base_dist: Gaussian

    def __init__(self, loc: Tensor, scale: Tensor, validate_args: bool | None = None) -> None:
        super().__init__(Gaussian(loc, scale, validate_args), distributions.TanhTransform(), validate_args)

    def action_from_noise(self, noise: Tensor) -> Tensor:
        """Numbers whose normal variables are ``noise`` standard deviations off their means."""
        return torch.tanh(self.base_dist.action_from_noise(noise))

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of each number.

        Within ``width`` of ±1 the density is taken as constant (the probability of that end divided by its width),
        because rounding leaves too few digits there to invert the tanh. Clamping the inverse instead would place the
        number far from a mean that lies beyond the bound, with a gradient that grows with the distance. The gradients
        for a number loc + scale · z are bounded like a Gaussian's: by (y + 1) / scale with respect to the mean and by
        (y + 1)² with respect to log(scale), where y = |z| + 0.05 / scale (rounding changes the inverse by up to 0.05).
        """
        normal: Any = self.base_dist
        width = 8 * torch.finfo(value.dtype).eps
        before = torch.atanh(value.clamp(width - 1, 1 - width))
        inside = normal.log_prob(before) - _log_slope_of_tanh(before)
        beyond = (normal.loc * value.sign() - math.atanh(1 - width)) / normal.scale
        return torch.where(value.abs() > 1 - width, torch.special.log_ndtr(beyond) - math.log(width), inside)

    def entropy(self) -> Tensor:
        """Entropy of each number, in nats."""
        normal: Any = self.base_dist
        loc, scale = normal.loc, normal.scale
        inputs = loc.unsqueeze(-1) + scale.unsqueeze(-1) * loc.new_tensor(_POINTS)
        log_slope = _log_slope_of_tanh(inputs) @ loc.new_tensor(_WEIGHTS / math.sqrt(2 * math.pi))
        return normal.entropy() + log_slope

    @property
    def mode(self) -> Tensor:
        """The median of each number, not the one of highest density, which is often a bound."""
        return torch.tanh(self.base_dist.loc)


class Bits(Bernoulli):
    """Bits, as int8 like those of Gymnasium's MultiBinary."""

    def __init__(self, logits: Tensor, validate_args: bool | None = None) -> None:
        super().__init__(logits=logits, validate_args=validate_args)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of each bit."""
        return super().log_prob(value.to(self.logits.dtype))  # type: ignore[no-untyped-call]

    def action_from_noise(self, noise: Tensor) -> Tensor:
        """Bits from standard normal numbers, one for each."""
        uniform = torch.special.log_ndtr(noise.reshape(self.logits.shape))
        return (uniform < functional.logsigmoid(self.logits)).to(torch.int8)

    @property
    def mode(self) -> Tensor:
        """The more probable value of each bit; zero for a tie, where torch's mode is NaN."""
        return (self.logits > 0).to(torch.int8)


def _log_slope_of_tanh(x: Tensor) -> Tensor:
    """``log(1 − tanh²(x))``, without cancellation for large x."""
    return 2 * (math.log(2) - x - functional.softplus(-2 * x))


class Joint(Distribution):
    """Independent parts of an action, sampled together; log-probability and entropy are sums over the parts.

    Unlike tensordict's CompositeDistribution, which sums over parts only under a process-wide setting, it always does.

    Args:
        parts: the distribution of each part, by its key within the action.
        noise_sizes: how many standard normal numbers make an action of each part.
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 (as torch's Distribution declares it)

    def __init__(self, parts: Mapping[NestedKey, Any], noise_sizes: Sequence[int] = ()) -> None:
        self.parts, self.noise_sizes = dict(parts), list(noise_sizes)
        super().__init__(next(iter(self.parts.values())).batch_shape, validate_args=False)

    def log_prob(self, value: TensorDictBase) -> Tensor:
        """Log-probability ``[B]``."""
        return torch.stack([part.log_prob(value[key]) for key, part in self.parts.items()]).sum(0)

    def entropy(self) -> Tensor:
        """Entropy ``[B]``, in nats."""
        return torch.stack([part.entropy() for part in self.parts.values()]).sum(0)

    def action_from_noise(self, noise: Tensor) -> TensorDictBase:
        """An action ``[B]`` with one entry per part, from standard normal numbers, those of the first part first."""
        parts = zip(self.parts.items(), noise.split(self.noise_sizes, -1), strict=True)
        return TensorDict({key: part.action_from_noise(each) for (key, part), each in parts}, self.batch_shape)

    @property
    def mode(self) -> TensorDictBase:
        """The mode of each part."""
        return TensorDict({key: part.mode for key, part in self.parts.items()}, self.batch_shape)


def most_probable(distribution: Any) -> Any:
    """The action of a deterministic policy: the mode, unless a distribution has a ``deterministic_sample``, as some of
    TorchRL's do.
    """
    chosen = getattr(distribution, "deterministic_sample", None)
    return distribution.mode if chosen is None else chosen


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
        return Joint(parts, self.noise_sizes)


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
            "multi-discrete action. Remove the mask (the observation's entry action_mask, or "
            "env.action_mask_from_info=true), or flatten the environment's actions."
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
        chosen = partial(multi_categorical, sizes) if shape else LazyCategorical
        return ActionHead(linear(width, sum(sizes), HEAD_GAIN), chosen, masked, len(sizes) * max(sizes))
    if isinstance(action, Binary):
        bits = nn.Sequential(linear(width, count, HEAD_GAIN), nn.Unflatten(-1, shape))
        return ActionHead(bits, partial(entries, Bits, len(shape)), noise_size=count)
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
    bounded: Any = SquashedGaussian if squashes else ClippedGaussian
    kind = bounded if finite.all() else Gaussian
    network = GaussianParameters(width, shape, options.initial_std)
    return ActionHead(network, partial(entries, kind, len(shape)), noise_size=count)


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
