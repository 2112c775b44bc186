"""Noise of continuous actions that is correlated from step to step.

Shape legend: B batch, X entries of an action.
"""

import math

import torch
from torch import Tensor, nn
from torchrl.data import Unbounded
from torchrl.envs import TensorDictPrimer

NOISE = "action_noise"
"""Entry: the last step's noise, which is passed from step to step like a recurrent state."""


class CorrelatedNoise(nn.Module):
    """Autoregressive noise of Gaussian actions: their deviations from the means, in standard deviations.

    Independent deviations cancel out within a few steps and never move a heavy system far from its start. Correlated
    ones persist, yet each is marginally standard normal, so log-probabilities, entropies and losses are those of the
    policy's Gaussian (Hollenstein et al. 2024, https://arxiv.org/abs/2312.11091).

    Args:
        size: entries of an action, X.
        correlation: the correlation of the deviations of two successive steps, from 0 to below 1.
    """

    def __init__(self, size: int, correlation: float) -> None:
        super().__init__()
        self.size, self.correlation = size, correlation

    def forward(self, last_BX: Tensor, drawn_BX: Tensor) -> Tensor:
        """The next step's noise ``[B, X]``; a fresh draw where the last noise is zero, as at an episode's start.

        Args:
            last_BX: the last step's noise.
            drawn_BX: standard normal numbers.
        """
        continued = self.correlation * last_BX + math.sqrt(1 - self.correlation**2) * drawn_BX
        return torch.where((last_BX == 0).all(-1, keepdim=True), drawn_BX, continued)

    def make_tensordict_primer(self) -> TensorDictPrimer:
        """A transform that adds the noise to an environment: its spec, and zeros at resets."""
        return TensorDictPrimer({NOISE: Unbounded((self.size,))}, default_value=0.0, expand_specs=True)
