"""Convolutional networks for images.

Shape legend: B batch, H height, W width, C channels.
"""

import torch
from torch import Tensor, nn
from torchrl.data import TensorSpec

from recurrl.errors import require
from recurrl.policy.initialization import RELU_GAIN, convolution, linear

NATURE_MIN_SIZE = 36
"""Height and width below which nothing is left after the three convolutions of the Nature CNN."""

GRID_CELLS = 200
"""Up to this height × width, ``encoder.images=auto`` treats an image of bytes as a grid of symbols."""


def image_network(images: str, spec: TensorSpec) -> str:
    """``nature``, ``impala`` or ``bits``: as configured, or what ``auto`` chooses for an image of this size."""
    if images != "auto":
        return images
    _, height, width = ChannelsFirst(tuple(spec.shape)).shape
    if spec.dtype == torch.uint8 and height * width <= GRID_CELLS:
        return "bits"
    return "nature" if min(height, width) >= NATURE_MIN_SIZE else "impala"


def make_image_network(kind: str, spec: TensorSpec) -> nn.Sequential:
    """A network from images ``[B, *spec.shape]`` to features.

    Args:
        kind: ``nature`` or ``impala``.
        spec: the spec of an image ``[H, W]``, ``[H, W, C]`` or ``[C, H, W]``; the smaller of the first and the last
            dimension is taken for the channels.

    Raises:
        ConfigError: the image is too small for the convolutions.
    """
    channels_first = ChannelsFirst(tuple(spec.shape), scale=1 / 255 if spec.dtype == torch.uint8 else 1.0)
    channels, height, width = channels_first.shape
    require(
        kind == "impala" or min(height, width) >= NATURE_MIN_SIZE,
        f"An image of {height}×{width} pixels is too small for encoder.images=nature, which needs "
        f"{NATURE_MIN_SIZE}×{NATURE_MIN_SIZE}. Choose encoder.images=impala, which takes any size, or enlarge the "
        "images, for example with gymnasium.wrappers.ResizeObservation.",
    )
    convolutions, size = (_impala(channels), 256) if kind == "impala" else (_nature(channels), 512)
    flat = nn.Sequential(channels_first, *convolutions, nn.Flatten())
    with torch.no_grad():
        width = flat(torch.zeros(1, *spec.shape)).shape[1]
    # Normalised, because features that grow in training saturate a cell's gates.
    return flat.extend([linear(width, size, RELU_GAIN), nn.LayerNorm(size, elementwise_affine=False), nn.ReLU()])


class ChannelsFirst(nn.Module):
    """Converts images of any layout to floating-point images ``[B, C, H, W]``.

    Args:
        shape: the shape of the image: ``[H, W]``, ``[H, W, C]`` or ``[C, H, W]``.
        scale: factor that the values are multiplied by.

    Attributes:
        shape: ``(C, H, W)``.
    """

    def __init__(self, shape: tuple[int, ...], scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.size = (*shape, 1) if len(shape) == 2 else shape
        self.channels_last = self.size[-1] <= self.size[0]
        self.shape = (self.size[-1], *self.size[:-1]) if self.channels_last else self.size

    def forward(self, image: Tensor) -> Tensor:
        """The images ``[B, C, H, W]``, permuted without a copy: convolutions accept both memory formats."""
        values = (image.to(torch.get_default_dtype()) * self.scale).reshape(-1, *self.size)
        return values.movedim(-1, -3) if self.channels_last else values


def _nature(channels: int) -> list[nn.Module]:
    """The three convolutions of Mnih et al. 2015, https://doi.org/10.1038/nature14236."""
    layers: list[nn.Module] = []
    for filters, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
        layers += [convolution(channels, filters, kernel, stride), nn.ReLU()]
        channels = filters
    return layers


def _impala(channels: int) -> list[nn.Module]:
    """The fifteen convolutions of Espeholt et al. 2018, https://arxiv.org/abs/1802.01561."""
    layers: list[nn.Module] = []
    for filters in (16, 32, 32):
        layers += [convolution(channels, filters, 3, padding=1), nn.MaxPool2d(3, 2, padding=1)]
        layers += [ResidualBlock(filters), ResidualBlock(filters)]
        channels = filters
    return [*layers, nn.ReLU()]


class ResidualBlock(nn.Module):
    """Two convolutions, each after a ReLU, and the block's input added to their output."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReLU(), convolution(channels, channels, 3, padding=1),
            nn.ReLU(), convolution(channels, channels, 3, padding=1),
        )  # fmt: skip

    def forward(self, image_BCHW: Tensor) -> Tensor:
        """The block's output, of the input's shape."""
        return image_BCHW + self.layers(image_BCHW)
