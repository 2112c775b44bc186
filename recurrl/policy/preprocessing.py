"""What happens to observations before any encoder: conversion to floating point, and normalisation."""

from collections.abc import Iterator, Mapping
from functools import reduce
from operator import getitem
from typing import Any

import torch
from torch import Tensor, nn
from torchrl.data import Binary, Categorical, Composite, TensorSpec, Unbounded

from recurrl.errors import require
from recurrl.keys import ACTION_MASK, nested
from recurrl.policy.normalization import ObservationNormalizer, observe
from recurrl.specs import is_image, leaves_of


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
    leaves = dict(leaves_of(observation))
    leaves.pop((ACTION_MASK,), None)
    require(
        bool(leaves),
        "The observation holds only an action mask, so the policy has no input. Have the environment return "
        "something else too, if only a constant.",
    )
    prepared = {path: _prepare(spec, normalize) for path, spec in leaves.items()}
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


class PerEntry(nn.Module):
    """One module for each entry of a nested mapping.

    Args:
        entries: modules by the path to the entry. Entries without a module are ignored.
    """

    def __init__(self, entries: Mapping[tuple[str, ...], nn.Module]) -> None:
        super().__init__()
        self.paths = list(entries)
        self.entries = nn.ModuleList(entries.values())

    def each(self, observation: Any) -> Iterator[tuple[tuple[str, ...], nn.Module, Any]]:
        """The path, the module and the observed value of each entry."""
        for path, module in zip(self.paths, self.entries, strict=True):
            yield path, module, reduce(getitem, path, observation)

    def outputs(self, observation: Any) -> list[Tensor]:
        """The output of each module for its entry."""
        return [module(value) for _, module, value in self.each(observation)]


class Preprocessing(PerEntry):
    """Prepares each entry of a nested mapping."""

    def observe(self, observation: Any, encoder: nn.Module) -> None:
        """Adds observations to the running statistics of the entries that have any, for an encoder that reads them."""
        networks = dict(zip(encoder.paths, encoder.entries, strict=True)) if isinstance(encoder, PerEntry) else {}
        for path, module, value in self.each(observation):
            observe(module, value, networks.get(path))

    def forward(self, observation: Any) -> dict[str, Any]:
        """The prepared entries."""
        return nested(dict(zip(self.paths, self.outputs(observation), strict=True)))


class ToFloat(nn.Module):
    """Converts numbers of any type to the default floating-point type."""

    def forward(self, observation: Tensor) -> Tensor:
        """The values in the default floating-point type."""
        return observation.to(torch.get_default_dtype())
