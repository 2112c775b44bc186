"""From what is observed to the vector that enters the cell, each entry of an observation by its own network.

Shape legend: B batch (any number of dimensions).
"""

from __future__ import annotations

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torch.nn import functional
from torchrl.data import Binary, Categorical, Composite, TensorSpec

from recurrl.config import TrainConfig
from recurrl.keys import ACTION_MASK, OBSERVATION, PREVIOUS_ACTION, PREVIOUS_REWARD, path_of
from recurrl.normalization import ObservationNormalizer
from recurrl.policy.images import make_image_encoder
from recurrl.policy.initialization import TANH_GAIN, linear
from recurrl.policy.specs import choices, is_image

ENCODED = "encoded"

ONE_HOT_LIMIT = 1024
"""Discrete observations of more values than this are looked up in a table instead of multiplied as one-hot vectors."""


class SideBySide(nn.Module):
    """As many networks as inputs; their outputs concatenated along the last dimension."""

    def __init__(self, networks: list[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, *entries: Tensor) -> Tensor:
        """``[B, sum of sizes]``."""
        return torch.cat([network(entry) for network, entry in zip(self.networks, entries, strict=True)], -1)


def make_encoder(config: TrainConfig, observation: TensorSpec, prefix: str) -> tuple[TensorDictModule, int]:
    """The encoder of an unbatched observation, a tensor or a composite of them, and how wide its output is.

    It writes the entry ``<prefix>encoded``.

    Raises:
        ConfigError: an image is too small for its encoder.
    """
    networks, width = {}, 0
    for key, spec in entries(observation).items():
        networks[key], size = _make_network(config, key, spec)
        width += size
    composite = isinstance(observation, Composite)
    network = SideBySide(list(networks.values())) if composite else networks[OBSERVATION]
    return TensorDictModule(network, in_keys=list(networks), out_keys=[prefix + ENCODED]), width


def observe(encoder: TensorDictModule, observation: Tensor | TensorDictBase) -> None:
    """Takes observations into the running statistics of an encoder, where it has any."""
    networks = encoder.module.networks if isinstance(encoder.module, SideBySide) else [encoder.module]
    for key, network in zip(encoder.in_keys, networks, strict=True):
        for module in network.modules():
            if isinstance(module, ObservationNormalizer):
                module.observe(observation if isinstance(observation, Tensor) else observation[path_of(key)[1:]])


def entries(observation: TensorSpec) -> dict[NestedKey, TensorSpec]:
    """What of an observation is encoded, by key: all of it but the action mask."""
    if not isinstance(observation, Composite):
        return {OBSERVATION: observation}
    found = {}
    for path, spec in observation.items(include_nested=True, leaves_only=True):
        if path != ACTION_MASK:
            found[(OBSERVATION, *path_of(path))] = spec
    return found


def _make_network(config: TrainConfig, key: NestedKey, spec: TensorSpec) -> tuple[nn.Module, int]:
    # Previous action and reward enter the cell as they are: the encoder is for what the environment shows.
    if key == (OBSERVATION, PREVIOUS_ACTION):
        return ToFloat(), spec.shape[-1]
    if key == (OBSERVATION, PREVIOUS_REWARD):
        return nn.Sequential(*_vector(config, spec)[0]), 1
    if is_image(spec):
        return make_image_encoder(config.policy.image_encoder, ".".join(path_of(key)[1:]), spec)
    layers, width = _entrance(config, spec)
    for size in config.policy.encoder_sizes:
        layers.append(linear(width, size, TANH_GAIN))
        layers += [nn.LayerNorm(size), nn.Tanh()] if config.policy.layer_norm else [nn.Tanh()]
        width = size
    return nn.Sequential(*layers), width


def _entrance(config: TrainConfig, spec: TensorSpec) -> tuple[list[nn.Module], int]:
    """What makes a floating vector of an entry, and the vector's width."""
    if isinstance(spec, Binary):
        return [ToFloat(), *_flatten(spec)], spec.shape.numel()
    sizes = choices(spec)
    if sizes is not None:
        return [OneHots(sizes)], sum(sizes)
    if isinstance(spec, Categorical):
        size = int(spec.space.n)
        if size <= ONE_HOT_LIMIT:
            return [OneHot(size)], size
        width = config.cell.hidden_size
        return [nn.Embedding(size, width)], width
    return _vector(config, spec)


def _vector(config: TrainConfig, spec: TensorSpec) -> tuple[list[nn.Module], int]:
    width = spec.shape.numel()
    normalizer = [ObservationNormalizer(width)] if config.env.normalize_observation else []
    return [ToFloat(), *_flatten(spec), *normalizer], width


def _flatten(spec: TensorSpec) -> list[nn.Module]:
    return [] if len(spec.shape) == 1 else [nn.Flatten(-len(spec.shape))]


class OneHot(nn.Module):
    """Discrete observations ``[B]`` to float vectors ``[B, size]``."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, observation: Tensor) -> Tensor:
        """One at the observed index, zero elsewhere."""
        return functional.one_hot(observation.long(), self.size).to(torch.get_default_dtype())


class OneHots(nn.Module):
    """Several discrete observations ``[B, len(sizes)]`` to float vectors ``[B, sum(sizes)]``."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.each = nn.ModuleList([OneHot(size) for size in sizes])

    def forward(self, observation: Tensor) -> Tensor:
        """The one-hot vectors side by side."""
        return torch.cat([one(index) for one, index in zip(self.each, observation.unbind(-1), strict=True)], -1)


class ToFloat(nn.Module):
    """Observations of any number type to the default floating dtype."""

    def forward(self, observation: Tensor) -> Tensor:
        """The same values."""
        return observation.to(torch.get_default_dtype())
