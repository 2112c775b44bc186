"""What happens to observations before any encoder: conversion to floating point, and normalisation."""

from typing import Any

import torch
from torch import Tensor, nn
from torchrl.data import Binary, Categorical, Composite, TensorSpec, Unbounded

from recurrl.errors import require
from recurrl.keys import ACTION_MASK, PREVIOUS_ACTION
from recurrl.policy.normalization import ObservationNormalizer, observe
from recurrl.specs import is_image


def make_preprocessing(
    observation: TensorSpec, normalize: bool, path: tuple[str, ...] = ()
) -> tuple[nn.Module, TensorSpec]:
    """The module that prepares observations for an encoder, and the spec of what it returns.

    Indices (Discrete, MultiDiscrete) and images of bytes stay as they are; all else becomes floating point. The action
    mask is for the actor's head only and is left out.

    Args:
        observation: the spec of an unbatched observation, or of an entry of one.
        normalize: normalise by running statistics what is neither an index, a bit, an image nor the previous action.
        path: of the entry.

    Raises:
        ConfigError: there is nothing but an action mask.
    """
    if isinstance(observation, Composite):
        names = [name for name in observation.keys() if (*path, name) != (ACTION_MASK,)]  # noqa: SIM118
        require(
            bool(names),
            "The observation holds only an action mask, so the policy has no input. Have the environment return "
            "something else too, if only a constant.",
        )
        entries = {name: make_preprocessing(observation[name], normalize, (*path, name)) for name in names}
        return (
            DictPreprocessing({name: module for name, (module, _) in entries.items()}),
            Composite({name: spec for name, (_, spec) in entries.items()}),
        )
    image, floating = is_image(observation), Unbounded(observation.shape, dtype=torch.get_default_dtype())
    if isinstance(observation, Binary):
        return ToFloat(), floating
    if isinstance(observation, Categorical) or (image and observation.dtype == torch.uint8):
        return nn.Identity(), observation
    if image or not normalize or path == (PREVIOUS_ACTION,):
        return ToFloat(), observation.to(floating.dtype)
    return ObservationNormalizer(*observation.shape), floating


class DictPreprocessing(nn.Module):
    """Prepares each entry of a mapping by a module of its own. Entries without one are left out.

    Args:
        entries: the modules, by the names of the entries.
    """

    def __init__(self, entries: dict[str, nn.Module]) -> None:
        super().__init__()
        self.names = list(entries)
        self.entries = nn.ModuleList(entries.values())

    def forward(self, observation: Any) -> dict[str, Any]:
        """The prepared entries."""
        return {name: entry(observation[name]) for name, entry in zip(self.names, self.entries, strict=True)}

    def observe(self, observation: Any) -> None:
        """Adds observations to the running statistics of the entries that have any."""
        for name, entry in zip(self.names, self.entries, strict=True):
            observe(entry, observation[name])


class ToFloat(nn.Module):
    """Numbers of any type to the default floating-point type."""

    def forward(self, observation: Tensor) -> Tensor:
        """The same values."""
        return observation.to(torch.get_default_dtype())
