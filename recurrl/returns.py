"""Statistics of returns."""

from collections.abc import Callable, Sequence
from statistics import fmean, pstdev
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

WINDOW = 100
"""The number of episodes that the means and deviations of returns and lengths of training are taken over."""
RESAMPLES, _AT_ONCE = 10_000, 100
"""Of the bootstrap."""


def summarized(returns: Sequence[float]) -> dict[str, Any]:
    """Statistics of the returns of independent episodes, and the returns; ``interval_95`` is that of the mean."""
    return {
        "episodes": len(returns),
        "mean": fmean(returns),
        "std": pstdev(returns),
        "interval_95": list(bootstrap_95(returns, lambda values: values.mean(-1))),
        "interquartile_mean": float(interquartile_mean(returns)),
        "min": min(returns),
        "max": max(returns),
        "returns": list(returns),
    }


def bootstrap_95(values: Sequence[float], statistic: Callable[[NDArray[Any]], Any]) -> tuple[float, float]:
    """The interval that holds a statistic with a probability of about 95%, if there are ten values or more.

    Its ends are percentiles of the statistic of 10,000 resamples.

    Args:
        values: independent samples.
        statistic: of samples along the last axis.
    """
    samples, count, generator = np.asarray(values, np.float64), len(values), np.random.default_rng(0)
    drawn = [
        statistic(samples[generator.integers(count, size=(_AT_ONCE, count))]) for _ in range(RESAMPLES // _AT_ONCE)
    ]
    low, high = np.quantile(np.concatenate(drawn), (0.025, 0.975))
    return float(low), float(high)


def interquartile_mean(values: ArrayLike) -> Any:
    """The mean along the last axis without the lowest and highest quarter, rounded down in number (Agarwal et al. 2021,
    https://arxiv.org/abs/2108.13264).
    """
    ordered = np.sort(np.asarray(values, np.float64), -1)
    cut = ordered.shape[-1] // 4
    return ordered[..., cut : ordered.shape[-1] - cut].mean(-1)
