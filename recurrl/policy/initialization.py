"""Orthogonal initialisation (Saxe et al. 2014, https://arxiv.org/abs/1312.6120), biases at zero."""

from __future__ import annotations

import math

from torch import nn

RELU_GAIN = TANH_GAIN = math.sqrt(2)
HEAD_GAIN = 0.01
"""A head near zero makes the first policy nearly uniform and the first values nearly zero, whatever the features."""


def linear(width: int, size: int, gain: float, bias: bool = True) -> nn.Linear:
    """A linear map from ``width`` to ``size``."""
    layer = nn.Linear(width, size, bias=bias)
    nn.init.orthogonal_(layer.weight, gain)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def convolution(channels: int, filters: int, kernel: int, stride: int = 1, padding: int = 0) -> nn.Conv2d:
    """A convolution, for a rectifier to follow."""
    layer = nn.Conv2d(channels, filters, kernel, stride, padding)
    nn.init.orthogonal_(layer.weight, RELU_GAIN)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer
