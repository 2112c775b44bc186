"""Action distributions that torch lacks: masked, squashed, over vectors, and joint over several parts.

Each has ``action_from_noise``, which turns standard normal numbers into a random action, and ``mode``, the action of a
deterministic policy.

Shape legend: B batch (any number of dimensions), K discrete choices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, Normal
from torch.nn import functional

QUADRATURE_POINTS = 64
_POINTS, _WEIGHTS = np.polynomial.hermite_e.hermegauss(QUADRATURE_POINTS)


class LazyCategorical(Categorical):
    """torch's Categorical with fewer operations: probabilities are computed only on demand.

    Args:
        unnormalized: ``[B, K]``, log-probabilities up to a constant.
        mask: a tensor of the same shape; choices where it is zero have probability zero. None to allow all.
    """

    def __init__(self, unnormalized: Tensor, mask: Tensor | None = None) -> None:
        self.unnormalized = self._param = unnormalized = allowed(unnormalized, mask)
        self.logits, self._num_events = functional.log_softmax(unnormalized, -1), unnormalized.shape[-1]
        Distribution.__init__(self, unnormalized.shape[:-1], validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probabilities ``[..., B]`` of choices ``[..., B]``."""
        return self.logits.expand(*value.shape, -1).gather(-1, value.long().unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """Entropies ``[B]``, in nats. Log-probabilities must be finite, as :func:`allowed` leaves them."""
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


def allowed(logits: Tensor, mask: Tensor | None = None) -> Tensor:
    """Logits that give probability zero to the choices where ``mask`` is zero."""
    # Not −∞, whose product with a probability of zero is NaN.
    return logits if mask is None else logits.masked_fill(mask == 0, torch.finfo(logits.dtype).min)


class MultiCategorical(Independent):  # type: ignore[type-arg]
    """Several independent choices.

    Args:
        sizes: the number of values of each choice.
        logits: ``[B, sum(sizes)]``.
        mask: a tensor of the same shape; choices where it is zero have probability zero. None to allow all.
    """

    def __init__(self, sizes: Sequence[int], logits: Tensor, mask: Tensor | None = None) -> None:
        widest, lowest = max(sizes), torch.finfo(logits.dtype).min
        # One distribution over choices of equal size, with the values that do not exist masked.
        parts = [
            functional.pad(part, (0, widest - size), value=lowest)
            for size, part in zip(sizes, allowed(logits, mask).split(list(sizes), -1), strict=True)
        ]
        super().__init__(LazyCategorical(torch.stack(parts, -2)), 1, validate_args=False)

    def action_from_noise(self, noise: Tensor) -> Tensor:
        """Choices ``[B, len(sizes)]`` from standard normal numbers, ``max(sizes)`` for each."""
        return self.base_dist.action_from_noise(noise)


class DiagonalGaussian(Independent):  # type: ignore[type-arg]
    """Independent normally distributed entries.

    Args:
        loc: means ``[B, *event]``.
        scale: standard deviations of the same shape.
        event_dims: the number of dimensions of an action.
    """

    def __init__(self, loc: Tensor, scale: Tensor, event_dims: int = 1) -> None:
        super().__init__(Normal(loc, scale, validate_args=False), event_dims, validate_args=False)

    def action_from_noise(self, noise: Tensor) -> Tensor:
        """Actions ``[B, *event]`` that are ``noise`` standard deviations off their means."""
        loc = self.base_dist.loc
        return loc + self.base_dist.scale * noise.reshape(loc.shape)


class ClippedGaussian(DiagonalGaussian):
    """Independent normal entries that the environment clips to −1 and 1.

    An action at or beyond a bound has the probability of that bound in place of a density. How far beyond it was drawn
    makes no difference to the environment, so it makes none to the gradient either, which lowers its variance (Fujita
    and Maeda 2018, https://arxiv.org/abs/1802.07564). The entropy is that of the clipped action, in which each bound is
    one point. For a mean of zero it peaks at a standard deviation of 1.5, so an entropy bonus cannot widen the normal
    without end.
    """

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability ``[B]``."""
        normal: Any = self.base_dist
        beyond = torch.special.log_ndtr((normal.loc * value.sign() - 1) / normal.scale)
        return _sum_of_entries(torch.where(value.abs() < 1, normal.log_prob(value), beyond), self)

    def entropy(self) -> Tensor:
        """Entropy ``[B]``, in nats."""
        normal: Any = self.base_dist
        # The distance of each bound from the mean, outwards, in standard deviations.
        distance = torch.stack([1 + normal.loc, 1 - normal.loc]) / normal.scale
        log_beyond = torch.special.log_ndtr(-distance)
        beyond, density = log_beyond.exp(), (-0.5 * distance**2).exp() / math.sqrt(2 * math.pi)
        inside = (1 - beyond.sum(0)) * normal.entropy() - 0.5 * (distance * density).sum(0)
        return _sum_of_entries(inside - (beyond * log_beyond).sum(0), self)


class Binary(Independent):  # type: ignore[type-arg]
    """Independent bits from ``logits [B, *event]``, as int8 like those of Gymnasium's MultiBinary.

    Args:
        logits: the logits of each bit being one.
        event_dims: the number of dimensions of an action.
    """

    def __init__(self, logits: Tensor, event_dims: int = 1) -> None:
        super().__init__(Bernoulli(logits=logits, validate_args=False), event_dims, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability ``[B]``."""
        return super().log_prob(value.to(self.base_dist.logits.dtype))  # type: ignore[no-untyped-call]

    def action_from_noise(self, noise: Tensor) -> Tensor:
        """Bits ``[B, *event]`` from standard normal numbers, one for each."""
        logits = self.base_dist.logits
        uniform = torch.special.log_ndtr(noise.reshape(logits.shape))
        return (uniform < functional.logsigmoid(logits)).to(torch.int8)

    @property
    def mode(self) -> Tensor:
        """The more probable value of each bit; zero for a tie, where torch's mode is NaN."""
        return (self.base_dist.logits > 0).to(torch.int8)


class SquashedGaussian(Distribution):
    """The tanh of independent normal variables: actions strictly between −1 and 1.

    TorchRL's TanhNormal estimates its entropy from one sample. Here it is the normal's entropy plus
    ``E[log(1 − tanh²)]``, one integral per entry, by Gauss-Hermite quadrature, which is accurate to 0.001 for standard
    deviations up to 3.

    Args:
        loc: mean before squashing, ``[B, *event]``.
        scale: standard deviation before squashing.
        event_dims: the number of dimensions of an action.
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 (as torch's Distribution declares it)

    def __init__(self, loc: Tensor, scale: Tensor, event_dims: int = 1) -> None:
        self.base = DiagonalGaussian(loc, scale, event_dims)
        super().__init__(self.base.batch_shape, self.base.event_shape, validate_args=False)

    has_rsample = True

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Random actions ``[B, *event]``, differentiable with respect to the parameters."""
        return torch.tanh(self.base.rsample(sample_shape))

    def action_from_noise(self, noise: Tensor) -> Tensor:
        """Actions ``[B, *event]`` whose normal variables are ``noise`` standard deviations off their means."""
        return torch.tanh(self.base.action_from_noise(noise))

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability ``[B]``.

        Within ``width`` of ±1 the density is taken as constant (the probability of that end divided by its width),
        because rounding leaves too few digits there to invert the tanh. Clamping the inverse instead would place the
        action far from a mean that lies beyond the bound, with a gradient that grows with the distance. The gradients
        for an action loc + scale · z are bounded like a Gaussian's: by (y + 1) / scale with respect to the mean and by
        (y + 1)² with respect to log(scale), where y = |z| + 0.05 / scale (rounding changes the inverse by up to 0.05).
        """
        normal: Any = self.base.base_dist
        width = 8 * torch.finfo(value.dtype).eps
        before = torch.atanh(value.clamp(width - 1, 1 - width))
        inside = normal.log_prob(before) - _log_slope_of_tanh(before)
        beyond = (normal.loc * value.sign() - math.atanh(1 - width)) / normal.scale
        log_prob = torch.where(value.abs() > 1 - width, torch.special.log_ndtr(beyond) - math.log(width), inside)
        return _sum_of_entries(log_prob, self)

    def entropy(self) -> Tensor:
        """Entropy ``[B]``, in nats."""
        normal: Any = self.base.base_dist
        loc, scale = normal.loc, normal.scale
        inputs = loc.unsqueeze(-1) + scale.unsqueeze(-1) * loc.new_tensor(_POINTS)
        log_slope = _log_slope_of_tanh(inputs) @ loc.new_tensor(_WEIGHTS / math.sqrt(2 * math.pi))
        entropy: Tensor = self.base.entropy()  # type: ignore[no-untyped-call]
        return entropy + _sum_of_entries(log_slope, self)

    @property
    def mode(self) -> Tensor:
        """The median of each entry, not the action of highest density, which is often a bound."""
        return torch.tanh(self.base.mean)


def _sum_of_entries(values: Tensor, distribution: Distribution) -> Tensor:
    """The sums ``[B]`` of values ``[B, *event]`` over the entries of an action."""
    return values.flatten(values.ndim - len(distribution.event_shape)).sum(-1)


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

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012

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
