"""Values that fall linearly with the frames seen."""


def annealed(start: float, final_fraction: float, progress: float) -> float:
    """``start`` at progress 0, ``start · final_fraction`` at progress 1, linear between."""
    return start * (1 - (1 - final_fraction) * progress)
