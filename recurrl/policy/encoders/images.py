"""Convolutional encoders of images.

Shape legend: B batch (any number of dimensions), H height, W width, C channels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchrl.data import TensorSpec

from recurrl.errors import ConfigError
from recurrl.policy.initialization import RELU_GAIN, convolution, linear

NATURE_SMALLEST = 36
"""Height and width below which nothing is left after the three convolutions of the Nature CNN."""


def make_image_encoder(kind: str, name: str, spec: TensorSpec) -> nn.Sequential:
    """The configured encoder of images ``[B, *spec.shape]``.

    Args:
        kind: ``nature`` or ``impala``.
        name: of the entry of a dict observation, else empty; for the refusal.
        spec: the image's. Channels are its first or its last dimension, whichever is smaller; without a third
            dimension there is one channel.

    Raises:
        ConfigError: the image is too small for the encoder.
    """
    to_planes = ToPlanes(tuple(spec.shape), scale=1 / 255 if spec.dtype == torch.uint8 else 1.0)
    channels, height, width = to_planes.planes
    if kind == "impala":
        layers = _impala(channels, height, width)
    else:
        if min(height, width) < NATURE_SMALLEST:
            raise ConfigError(
                f"The observation{name and f' {name}'} is an image of {height}×{width} pixels, too small for "
                f"encoder.images=nature, which needs {NATURE_SMALLEST}×{NATURE_SMALLEST}. Choose "
                "encoder.images=impala, which takes any size, or enlarge the images, for example with "
                "gymnasium.wrappers.ResizeObservation."
            )
        layers = _nature(channels, height, width)
    return nn.Sequential(to_planes, FlattenBatch(nn.Sequential(*layers)))


class ToPlanes(nn.Module):
    """Images as environments give them to floating planes ``[B, C, H, W]``.

    Args:
        shape: the image's: ``[H, W]``, ``[H, W, C]`` or ``[C, H, W]``.
        scale: what the values are multiplied by.
    """

    def __init__(self, shape: tuple[int, ...], scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.flat = len(shape) == 2
        self.channels_last = not self.flat and shape[-1] <= shape[0]
        if self.flat:
            self.planes = (1, *shape)
        elif self.channels_last:
            self.planes = (shape[2], shape[0], shape[1])
        else:
            self.planes = shape

    def forward(self, image: Tensor) -> Tensor:
        """Channels first, scaled. A view where it can be: convolutions take channels in either order."""
        values = image.to(torch.get_default_dtype()) * self.scale
        if self.flat:
            return values.unsqueeze(-3)
        return values.movedim(-1, -3) if self.channels_last else values


class FlattenBatch(nn.Module):
    """Lets a network of images take any number of batch dimensions: convolutions take one."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, image_BCHW: Tensor) -> Tensor:
        """Features ``[B, size]``."""
        lead = image_BCHW.shape[:-3]
        features: Tensor = self.network(image_BCHW.reshape(-1, *image_BCHW.shape[-3:]))
        return features.reshape(*lead, features.shape[-1])


def _nature(channels: int, height: int, width: int) -> list[nn.Module]:
    """Mnih et al. 2015, https://doi.org/10.1038/nature14236: three convolutions and 512 features."""
    layers: list[nn.Module] = []
    for filters, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
        layers += [convolution(channels, filters, kernel, stride), nn.ReLU()]
        height, width, channels = (height - kernel) // stride + 1, (width - kernel) // stride + 1, filters
    return [*layers, nn.Flatten(), linear(channels * height * width, 512, RELU_GAIN), nn.ReLU()]


def _impala(channels: int, height: int, width: int) -> list[nn.Module]:
    """Espeholt et al. 2018, https://arxiv.org/abs/1802.01561: fifteen convolutions with residuals, 256 features."""
    layers: list[nn.Module] = []
    for filters in (16, 32, 32):
        layers += [convolution(channels, filters, 3, padding=1), nn.MaxPool2d(3, 2, padding=1)]
        layers += [ResidualBlock(filters), ResidualBlock(filters)]
        height, width, channels = (height + 1) // 2, (width + 1) // 2, filters
    return [
        *layers,
        nn.ReLU(),
        nn.Flatten(),
        linear(channels * height * width, 256, RELU_GAIN),
        nn.ReLU(),
    ]


class ResidualBlock(nn.Module):
    """Two convolutions, each behind a rectifier, added to what came in."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReLU(), convolution(channels, channels, 3, padding=1),
            nn.ReLU(), convolution(channels, channels, 3, padding=1),
        )  # fmt: skip

    def forward(self, planes: Tensor) -> Tensor:
        """The same shape."""
        added: Tensor = planes + self.layers(planes)
        return added
