"""Numbers that error messages suggest."""

from __future__ import annotations

import math


def divisors(number: int) -> list[int]:
    """All divisors, in ascending order."""
    low = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return sorted({*low, *(number // divisor for divisor in low)})


def nearest_multiple(number: int, of: int) -> int:
    """The multiple of ``of`` nearest to ``number``, and at least ``of`` itself."""
    return max(1, round(number / of)) * of
