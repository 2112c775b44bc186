"""Algorithms: advantages, loss, and the update of the policy."""

from recurrl.algorithms.algorithm import Algorithm
from recurrl.algorithms.metrics import Losses

__all__ = ["Algorithm", "Losses"]
