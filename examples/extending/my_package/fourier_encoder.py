"""Random Fourier features of continuous observations (Tancik et al. 2020, https://arxiv.org/abs/2006.10739)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torchrl.data import TensorSpec

from recurrl.config import EncoderConfig
from recurrl.config.options import FEATURES, SCALE, option
from recurrl.errors import require
from recurrl.policy.encoders import per_entry


@dataclass
class FourierConfig(EncoderConfig):
    """Options of the Fourier encoder."""

    frequencies: int = option("random frequencies, each of which gives a sine and a cosine", FEATURES, default=32)
    scale: float = option("standard deviation of the frequencies", SCALE, default=0.1)


class Fourier(nn.Module):
    """Observations ``[B, *shape]`` to features ``[B, 2 · frequencies]``."""

    matrix: Tensor

    def __init__(self, options: FourierConfig, observation: TensorSpec) -> None:
        super().__init__()
        require(
            observation.dtype.is_floating_point,
            f"encoder={options.name} takes continuous observations, not {observation.dtype}. Choose encoder=mlp.",
        )
        # A buffer, not a parameter: it is saved with the policy, but not trained.
        self.register_buffer("matrix", options.scale * torch.randn(observation.shape.numel(), options.frequencies))

    def forward(self, observation: Tensor) -> Tensor:
        """Sines and cosines."""
        phases = 2 * math.pi * observation.flatten(1) @ self.matrix
        return torch.cat([phases.sin(), phases.cos()], -1)


def make(options: FourierConfig, observation: TensorSpec) -> nn.Module:
    """One encoder for a plain observation, or one for each entry of a dict observation."""
    return per_entry(observation, partial(Fourier, options))
