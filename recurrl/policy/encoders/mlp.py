"""From what is observed to the vector that enters the cell, each entry of an observation by its own network.

Shape legend: B batch (any number of dimensions).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchrl.data import Binary, Categorical, Composite, TensorSpec

from recurrl.config import MLPConfig
from recurrl.errors import ConfigError
from recurrl.keys import ACTION_MASK, PREVIOUS_ACTION, PREVIOUS_REWARD, path_of
from recurrl.policy.encoders.images import make_image_encoder
from recurrl.policy.flat import flat
from recurrl.policy.initialization import TANH_GAIN, linear
from recurrl.policy.normalization import ObservationNormalizer
from recurrl.specs import choices, is_image

ONE_HOT_LIMIT = 1024
"""Discrete observations of more values than this are looked up in a table instead of multiplied as one-hot vectors."""
EMBEDDING = 64
"""Width of that table without ``encoder.sizes``."""


class DictEncoder(nn.Module):
    """One network for each entry of a nested observation; their outputs are concatenated along the last dimension.

    Args:
        networks: by the path of the entry within the observation. Entries without one are ignored.
    """

    def __init__(self, networks: dict[tuple[str, ...], nn.Module]) -> None:
        super().__init__()
        self.paths = list(networks)
        self.networks = nn.ModuleList(networks.values())

    def forward(self, observation: Any) -> Tensor:
        """``[B, sum of sizes]``."""
        return self._run(self.networks, observation)

    def flattened(self) -> Callable[[Any], Tensor]:
        """See :func:`recurrl.policy.flat.flat`."""
        return partial(self._run, [flat(network) for network in self.networks])

    def _run(self, networks: Iterable[Callable[[Tensor], Tensor]], observation: Any) -> Tensor:
        return torch.cat(
            [network(_at(observation, path)) for path, network in zip(self.paths, networks, strict=True)], -1
        )

    def observe(self, observation: Any) -> None:
        """Adds observations to the running statistics of the networks that have any."""
        for path, network in zip(self.paths, self.networks, strict=True):
            observe(network, _at(observation, path))


def _at(observation: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        observation = observation[name]
    return observation


def make(options: MLPConfig, observation: TensorSpec, normalize: bool) -> nn.Module:
    """The encoder of an unbatched observation, a tensor or a composite of them, to vectors ``[B, width]``.

    Args:
        options: as configured.
        observation: the spec of the observation.
        normalize: normalise what is neither discrete nor an image by running statistics.

    Raises:
        ConfigError: an image is too small for its encoder, or there is nothing to encode.
    """
    if not isinstance(observation, Composite):
        return _make_network(options, normalize, (), observation)
    networks = {
        path_of(key): _make_network(options, normalize, path_of(key), spec)
        for key, spec in observation.items(include_nested=True, leaves_only=True)
        if key != ACTION_MASK
    }
    if not networks:
        raise ConfigError(
            "The observation holds only an action mask, so the policy has no input. Have the environment return "
            "something else too, if only a constant."
        )
    return DictEncoder(networks)


def observe(encoder: nn.Module, observation: Any) -> None:
    """Adds observations to the running statistics of an encoder.

    An encoder with a method ``observe`` does so itself; of others, every :class:`ObservationNormalizer` within does.
    """
    own: Any = getattr(encoder, "observe", None)
    if own is not None:
        own(observation)
        return
    for module in encoder.modules():
        if isinstance(module, ObservationNormalizer):
            module.observe(observation)


def _make_network(options: MLPConfig, normalize: bool, path: tuple[str, ...], spec: TensorSpec) -> nn.Module:
    # Previous action and reward enter the cell as they are: the encoder is for what the environment shows.
    if path == (PREVIOUS_ACTION,):
        return ToFloat()
    if path == (PREVIOUS_REWARD,):
        return nn.Sequential(*_vector(spec, normalize)[0])
    if is_image(spec):
        return make_image_encoder(options.images, ".".join(path), spec)
    layers, width = _entrance(options, normalize, spec)
    for size in options.sizes:
        layers.append(linear(width, size, TANH_GAIN))
        layers += [nn.LayerNorm(size), nn.Tanh()] if options.layer_norm else [nn.Tanh()]
        width = size
    return nn.Sequential(*layers)


def _entrance(options: MLPConfig, normalize: bool, spec: TensorSpec) -> tuple[list[nn.Module], int]:
    """The module that maps an entry to a floating-point vector, and the vector's width."""
    if isinstance(spec, Binary):
        return [ToFloat(), *_flatten(spec)], spec.shape.numel()
    sizes = choices(spec)
    if sizes is not None:
        return [OneHots(sizes)], sum(sizes)
    if isinstance(spec, Categorical):
        size = int(spec.space.n)
        if size <= ONE_HOT_LIMIT:
            return [OneHot(size)], size
        width = options.sizes[0] if options.sizes else EMBEDDING
        return [nn.Embedding(size, width)], width
    return _vector(spec, normalize)


def _vector(spec: TensorSpec, normalize: bool) -> tuple[list[nn.Module], int]:
    width = spec.shape.numel()
    normalizer = [ObservationNormalizer(width)] if normalize else []
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
