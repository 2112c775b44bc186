"""Layers with orthogonal weights (Saxe et al. 2014, https://arxiv.org/abs/1312.6120) and zero biases."""

import math

from torch import nn

RELU_GAIN = TANH_GAIN = math.sqrt(2)
HEAD_GAIN = 0.01
"""Small, so that the first policy is nearly uniform and the first values are nearly zero for all features."""


def linear(width: int, size: int, gain: float) -> nn.Linear:
    """A linear layer from ``width`` to ``size`` features."""
    layer = nn.Linear(width, size)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def convolution(channels: int, filters: int, kernel: int, stride: int = 1, padding: int = 0) -> nn.Conv2d:
    """A convolution for a ReLU to follow."""
    layer = nn.Conv2d(channels, filters, kernel, stride, padding)
    nn.init.orthogonal_(layer.weight, RELU_GAIN)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer
