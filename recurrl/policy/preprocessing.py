"""What happens to each entry of an observation: conversion to floating point and normalisation, then a network.

Shape legend: B batch.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from operator import getitem
from typing import Any

import torch
from torch import Tensor, nn
from torchrl.data import Binary, Categorical, Composite, TensorSpec, Unbounded

from recurrl.errors import naming, require
from recurrl.keys import ACTION_MASK, PREVIOUS_REWARD, name_of, nested
from recurrl.policy.normalization import ObservationNormalizer, update_statistics
from recurrl.specs import is_image, leaves_of

Path = tuple[str, ...]


def make_preprocessing(observation: TensorSpec, normalize: bool) -> tuple[nn.Module, TensorSpec]:
    """The module that prepares observations for an encoder, and the spec of what it returns.

    Indices (Discrete, MultiDiscrete) and images of bytes stay as they are; all else becomes floating point. The action
    mask is for the actor's head only and is left out.

    Args:
        observation: the spec of an unbatched observation.
        normalize: normalise by running statistics what is neither an index, a bit nor an image.

    Raises:
        ConfigError: the observation holds only an action mask.
    """
    if not isinstance(observation, Composite):
        return _prepare(observation, normalize)
    prepared = {path: _prepare(leaf, normalize) for path, leaf in leaves_of(observation) if path != (ACTION_MASK,)}
    require(
        bool(prepared),
        "The observation holds only an action mask, so the policy has no input. Have the environment return "
        "something else too, if only a constant.",
    )
    specs = Composite({path: spec for path, (_, spec) in prepared.items()})
    return Preprocessing({path: module for path, (module, _) in prepared.items()}), specs


def _prepare(spec: TensorSpec, normalize: bool) -> tuple[nn.Module, TensorSpec]:
    image, floating = is_image(spec), Unbounded(spec.shape, dtype=torch.get_default_dtype())
    if isinstance(spec, Binary):
        return ToFloat(), floating
    if isinstance(spec, Categorical) or (image and spec.dtype == torch.uint8):
        return nn.Identity(), spec
    if image or not normalize:
        return ToFloat(), spec.to(floating.dtype)
    return ObservationNormalizer(*spec.shape), floating


def per_entry(observation: TensorSpec, make_network: Callable[[TensorSpec], nn.Module]) -> nn.Module:
    """Builds an encoder from networks for tensors: one network, or for a mapping one per entry.

    The previous reward in a mapping is passed on to the cell as it is.

    Args:
        observation: the spec of an unbatched observation.
        make_network: the network ``[B, *shape]`` to ``[B, width]`` for the spec of a tensor.

    Raises:
        ConfigError: ``make_network`` raised it; the message names the entry.
    """
    if not isinstance(observation, Composite):
        return make_network(observation)
    networks: dict[Path, nn.Module] = {}
    for path, spec in leaves_of(observation):
        with naming(f"Observation entry {name_of(path)}"):
            networks[path] = nn.Identity() if path == (PREVIOUS_REWARD,) else make_network(spec)
    return DictEncoder(networks)


class PerEntry(nn.Module):
    """One module for each entry of a nested mapping.

    Args:
        entries: modules by the path to the entry. Entries without a module are ignored.
    """

    def __init__(self, entries: Mapping[Path, nn.Module]) -> None:
        super().__init__()
        self.by_path = dict(entries)
        self.entries = nn.ModuleList(entries.values())

    def each(self, observation: Any) -> Iterator[tuple[Path, nn.Module, Any]]:
        """The path, the module and the observed value of each entry."""
        for path, module in self.by_path.items():
            yield path, module, reduce(getitem, path, observation)

    def update_statistics(self, observation: Any, reader: nn.Module | None = None) -> None:
        """Adds observations to the running statistics of the modules that have any.

        Args:
            observation: the observations.
            reader: what reads the outputs of these modules; if it has one module per entry, each is passed on.
        """
        readers = reader.by_path if isinstance(reader, PerEntry) else {}
        for path, module, value in self.each(observation):
            update_statistics(module, value, *([readers[path]] if path in readers else []))


class Preprocessing(PerEntry):
    """Prepares each entry of a nested mapping."""

    def forward(self, observation: Any) -> dict[str, Any]:
        """The prepared entries."""
        return nested({path: module(value) for path, module, value in self.each(observation)})


class DictEncoder(PerEntry):
    """One network per entry of a nested mapping; their outputs are concatenated."""

    def forward(self, observation: Any) -> Tensor:
        """The concatenated features ``[B, sum of widths]``."""
        features = [network(value) for _, network, value in self.each(observation)]
        return torch.cat(features, -1) if len(features) > 1 else features[0]


class ToFloat(nn.Module):
    """Converts numbers of any type to the default floating-point type."""

    def forward(self, observation: Tensor) -> Tensor:
        """The values in the default floating-point type."""
        return observation.to(torch.get_default_dtype())
