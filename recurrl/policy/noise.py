"""Noise of continuous actions that is correlated from step to step.

Shape legend: B batch, X entries of an action.
"""

import math

import torch
from torch import Tensor, nn
from torchrl.data import Unbounded
from torchrl.envs import TensorDictPrimer

NOISE = "action_noise"
"""The last step's noise; the environment passes it from step to step like a recurrent state."""


class CorrelatedNoise(nn.Module):
    """The deviations of Gaussian actions from their means, in standard deviations, as an autoregressive process.

    Independent deviations cancel out within a few steps and never move a heavy system far from its start. These
    persist, yet each is marginally standard normal, so log-probabilities, entropies and losses are those of the
    policy's Gaussian (Hollenstein et al. 2024, https://arxiv.org/abs/2312.11091).

    Args:
        size: entries of an action, X.
        correlation: of the deviations of two successive steps, from 0 to below 1.
    """

    def __init__(self, size: int, correlation: float) -> None:
        super().__init__()
        self.size, self.correlation = size, correlation

    def forward(self, last_B1X: Tensor, drawn_B1X: Tensor | None = None) -> Tensor:
        """The next step's noise ``[B, 1, X]``; drawn independently where the last is zero, as at an episode's start.

        Args:
            last_B1X: the last step's.
            drawn_B1X: standard normal numbers; None to draw them here.
        """
        drawn = torch.randn_like(last_B1X) if drawn_B1X is None else drawn_B1X
        continued = self.correlation * last_B1X + math.sqrt(1 - self.correlation**2) * drawn
        return torch.where((last_B1X == 0).all(-1, keepdim=True), drawn, continued)

    def make_tensordict_primer(self) -> TensorDictPrimer:
        """A transform that adds the noise to an environment: its spec, and zeros at resets."""
        return TensorDictPrimer({NOISE: Unbounded((1, self.size))}, default_value=0.0, expand_specs=True)
