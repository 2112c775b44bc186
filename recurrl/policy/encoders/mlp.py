"""``encoder=mlp``: dense layers, one-hot vectors for discrete observations, convolutions for images, bits for grids.

Shape legend: B batch.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchrl.data import TensorSpec

from recurrl.config import MLPConfig
from recurrl.errors import require
from recurrl.policy.encoders import per_entry
from recurrl.policy.encoders.images import image_network, make_image_network
from recurrl.policy.initialization import TANH_GAIN, linear
from recurrl.policy.preprocessing import OneHot
from recurrl.specs import choices, is_image

ONE_HOT_LIMIT = 1024
"""Discrete observations of more values than this use an embedding table rather than one-hot vectors."""
_ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "silu": nn.SiLU, "gelu": nn.GELU}
EMBEDDING = 64
"""Width of the embedding table if ``encoder.sizes`` is empty."""


def make(options: MLPConfig, observation: TensorSpec) -> nn.Module:
    """The encoder of preprocessed observations; the outputs for the entries of a mapping are concatenated.

    Args:
        options: the encoder's options.
        observation: the spec of an unbatched observation.

    Raises:
        ConfigError: an image is too small for the configured convolutions, or is not of bytes with ``images=bits``.
    """
    return per_entry(observation, partial(_make_network, options))


def _make_network(options: MLPConfig, spec: TensorSpec) -> nn.Module:
    if is_image(spec) and (kind := image_network(options.images, spec)) != "bits":
        return make_image_network(kind, spec)
    first, width = _to_vector(options, spec)
    layers = [first]
    for size in options.sizes:
        layers.append(linear(width, size, TANH_GAIN))
        layers += [*([nn.LayerNorm(size)] if options.layer_norm else []), _ACTIVATIONS[options.activation]()]
        width = size
    return DenseLayers(*layers)


class DenseLayers(nn.Sequential):
    """A module that makes a vector, and dense layers."""

    @torch.no_grad()
    def rescale_input(self, factor: Tensor, shift: Tensor) -> None:
        """Rescales the first dense layer, if there is one: ``(x − shift) / factor`` then has the output that x had.

        Args:
            factor: the divisor of each entry of an observation.
            shift: what is subtracted from each entry.
        """
        layer = next((module for module in self if isinstance(module, nn.Linear)), None)
        if layer is not None:
            layer.bias.add_(layer.weight @ shift.flatten())
            layer.weight.mul_(factor.flatten())


def _to_vector(options: MLPConfig, spec: TensorSpec) -> tuple[nn.Module, int]:
    """The module that maps an entry to a floating-point vector, and the vector's width."""
    if is_image(spec):
        require(spec.dtype == torch.uint8, f"encoder.images must be nature or impala for {spec.dtype} (got bits).")
        return Bits(), 8 * spec.shape.numel()
    sizes = choices(spec)
    if sizes is None:
        return nn.Identity() if len(spec.shape) == 1 else nn.Flatten(), spec.shape.numel()
    if spec.shape or sizes[0] <= ONE_HOT_LIMIT:
        return OneHot(sizes), sum(sizes)
    width = options.sizes[0] if options.sizes else EMBEDDING
    return Embedding(sizes[0], width), width


class Bits(nn.Module):
    """Unpacks bytes into bits, from which a dense layer can tell symbols apart and can also read numbers."""

    def __init__(self) -> None:
        super().__init__()
        bits = torch.arange(256).unsqueeze(1) >> torch.arange(8) & 1
        self.table = nn.Buffer(bits.to(torch.get_default_dtype()), persistent=False)

    def forward(self, image: Tensor) -> Tensor:
        """Bytes ``[B, ...]`` to zeros and ones ``[B, 8 · entries]``, the lowest bit of each byte first."""
        return functional.embedding(image.long(), self.table).flatten(1)


class Embedding(nn.Embedding):
    """A table of vectors, from which choices of any integer type are looked up."""

    def forward(self, chosen: Tensor) -> Tensor:
        """The vectors ``[B, width]`` of choices ``[B]``."""
        return super().forward(chosen.long())
