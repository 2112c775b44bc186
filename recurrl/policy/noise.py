"""Noise of actions that is correlated from step to step.

Shape legend: B batch, Z normal numbers of an action.
"""

import math

import torch
from torch import Tensor, nn
from torchrl.data import Unbounded
from torchrl.envs import TensorDictPrimer

NOISE = "action_noise"
"""Entry: the last step's noise, which is passed from step to step like a recurrent state."""


class CorrelatedNoise(nn.Module):
    """Autoregressive noise: the standard normal numbers that make an action from its distribution.

    What independent noise tries cancels out within a few steps: it moves neither a heavy system nor a walker on a grid
    far from where it starts. Correlated noise persists, yet each number is marginally standard normal, so
    log-probabilities, entropies and losses are those of the policy's distribution (Hollenstein et al. 2024,
    https://arxiv.org/abs/2312.11091).

    Args:
        size: numbers of an action, Z.
        correlation: the correlation of the numbers of two successive steps, from 0 to below 1.
    """

    def __init__(self, size: int, correlation: float) -> None:
        super().__init__()
        self.size, self.correlation = size, correlation

    def forward(self, last_BZ: Tensor, drawn_BZ: Tensor) -> Tensor:
        """The next step's noise ``[B, Z]``; a fresh draw where the last noise is zero, as at an episode's start.

        Args:
            last_BZ: the last step's noise.
            drawn_BZ: standard normal numbers.
        """
        continued = self.correlation * last_BZ + math.sqrt(1 - self.correlation**2) * drawn_BZ
        return torch.where((last_BZ == 0).all(-1, keepdim=True), drawn_BZ, continued)

    def make_tensordict_primer(self) -> TensorDictPrimer:
        """A transform that adds the noise to an environment: its spec, and zeros at resets."""
        return TensorDictPrimer({NOISE: Unbounded((self.size,))}, default_value=0.0, expand_specs=True)
