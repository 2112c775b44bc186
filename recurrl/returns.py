"""Statistics of returns."""

from collections.abc import Iterable, Sequence
from statistics import fmean, pstdev
from typing import Any

import numpy as np

RESAMPLES = 10_000
"""Of the bootstrap."""


def summarized(returns: Sequence[float]) -> dict[str, Any]:
    """Statistics of the returns of independent episodes, and the returns.

    ``interval_95`` holds the mean with a probability of about 95%: the percentiles of the means of 10,000 resamples.
    """
    values, count = np.asarray(returns, np.float64), len(returns)
    generator = np.random.default_rng(0)
    means = [values[generator.integers(count, size=count)].mean() for _ in range(RESAMPLES)]
    low, high = np.quantile(means, (0.025, 0.975))
    return {
        "episodes": count,
        "mean": fmean(returns),
        "std": pstdev(returns),
        "interval_95": [float(low), float(high)],
        "interquartile_mean": interquartile_mean(returns),
        "min": min(returns),
        "max": max(returns),
        "returns": list(returns),
    }


def interquartile_mean(values: Iterable[float]) -> float:
    """The mean without the lowest and highest quarter, rounded down in number (Agarwal et al. 2021,
    https://arxiv.org/abs/2108.13264).
    """
    ordered = np.sort(np.fromiter(values, float))
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())
