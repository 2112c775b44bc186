"""Algorithms: advantages, loss, and the update of the policy."""

from recurrl.algorithms.algorithm import Algorithm, Losses

__all__ = ["Algorithm", "Losses"]
