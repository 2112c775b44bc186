"""Statistics of returns: of the episodes of an evaluation, or of the runs of several seeds."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist, fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

WINDOW = 100
"""Training returns and lengths are averaged over this many most recent episodes."""
STATISTICS = ("mean", "std", "95% interval", "interquartile mean", "min", "max")
"""Column headings of the statistics tables."""
MIN_VALUES = 3
"""An interval needs at least this many values."""
_T_975 = (4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Student's t for a two-sided interval of 95%, by degrees of freedom from 2."""


def sample_std(returns: Sequence[float]) -> float:
    """The sample standard deviation (n − 1); 0 for a single return."""
    return stdev(returns) if len(returns) > 1 else 0.0


def summarized(returns: Sequence[float]) -> dict[str, Any]:
    """Statistics of independent returns, and the returns.

    ``std`` is their :func:`sample_std`; ``interval_95`` is the 95% interval of their mean, None for fewer than three.
    """
    mean, std = fmean(returns), sample_std(returns)
    return {
        "episodes": len(returns),
        "mean": mean,
        "std": std,
        "interval_95": interval_95(mean, std, len(returns)),
        "interquartile_mean": float(interquartile_mean(returns)),
        "min": min(returns),
        "max": max(returns),
        "returns": list(returns),
    }


def return_format(mean: float, spread: float = 0.0) -> str:
    """The format specification, such as ``.1f``, for a return and the numbers printed next to it.

    It shows four digits of the larger of mean and spread, and at least two of the spread, but no more than seven, the
    precision of the float32 rewards.
    """
    largest = max(abs(mean), spread)
    if not 0 < largest < math.inf:
        return ".4g"
    place = math.floor(math.log10(largest))
    digits = max(4, place + 2 - math.floor(math.log10(spread))) if spread > 0 else 4
    return f".{max(0, min(7, digits) - 1 - place)}f"


def interval_text(interval: Iterable[float] | None, form: str, of: str) -> str:
    """The interval as ``low to high``, or ``too few <of>`` without one."""
    return f"too few {of}" if interval is None else " to ".join(f"{end:{form}}" for end in interval)


def table_row(statistics: Mapping[str, Any], of: str) -> tuple[str, ...]:
    """Statistics of :func:`summarized` as text, below the headings :data:`STATISTICS`; ``of`` names the samples."""
    form = return_format(statistics["mean"], statistics["std"])
    mean, std, *others = (f"{statistics[key]:{form}}" for key in ("mean", "std", "interquartile_mean", "min", "max"))
    return (mean, std, interval_text(statistics["interval_95"], form, of), *others)


def interval_95(mean: float, std: float, count: int) -> tuple[float, float] | None:
    """The 95% interval of the mean of ``count`` values by Student's t; ``std`` is their sample standard deviation.

    None for fewer than three values: with two, it would reach 9 deviations to either side. It covers the mean in 95% of
    cases for as few as three roughly normal values, where a bootstrap's interval covers it in 74% (82% with five).
    """
    if count < MIN_VALUES:
        return None
    degrees, z = count - 1, NormalDist().inv_cdf(0.975)
    if count < MIN_VALUES + len(_T_975):
        t = _T_975[count - MIN_VALUES]
    else:  # Abramowitz and Stegun 26.7.5
        t = z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
    half = t * std / math.sqrt(count)
    return mean - half, mean + half


def interquartile_mean(values: ArrayLike) -> Any:
    """The mean along the last axis without its lowest and highest quarters, whose sizes are rounded down.

    Agarwal et al. 2021, https://arxiv.org/abs/2108.13264.
    """
    ordered = np.sort(np.asarray(values, np.float64), -1)
    cut = ordered.shape[-1] // 4
    return ordered[..., cut : ordered.shape[-1] - cut].mean(-1)
