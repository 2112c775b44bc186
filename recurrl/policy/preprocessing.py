"""Preprocessing of the entries of observations: conversion to floating point, normalisation, an encoder.

A policy that sees its previous action gets it as one vector, see :class:`PreviousAction`.

Shape legend: B batch, A numbers of an action.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from operator import getitem
from typing import Any

import torch
from torch import Tensor, nn
from torchrl.data import Binary, Categorical, Composite, TensorSpec, Unbounded

from recurrl.errors import naming, require
from recurrl.keys import ACTION_MASK, PREVIOUS_REWARD, KeyPath, name_of, nested
from recurrl.policy.normalization import ObservationNormalizer, update_statistics
from recurrl.specs import bounds_of, choices, is_image, leaves_of

PREVIOUS_ACTION_GAIN = 0.01
"""Factor on the initial weights of the previous action: a policy starts as if it hardly saw it, because tasks that can
be learned without it would otherwise take longer (docs/measurements/recipe.md)."""
FLOAT32 = torch.finfo(torch.float32)


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
    wide = spec.dtype in (torch.float64, torch.int64, torch.int32)
    return ObservationNormalizer(*spec.shape, dtype=torch.float64 if wide else None), floating


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
    networks: dict[KeyPath, nn.Module] = {}
    for path, spec in leaves_of(observation):
        with naming(f"Observation entry {name_of(path)}"):
            networks[path] = nn.Identity() if path == (PREVIOUS_REWARD,) else make_network(spec)
    return DictEncoder(networks)


class PerEntry(nn.Module):
    """One module for each entry of a nested mapping.

    Args:
        entries: modules by the path to the entry. Entries without a module are ignored.
    """

    def __init__(self, entries: Mapping[KeyPath, nn.Module]) -> None:
        super().__init__()
        self.by_path = dict(entries)
        self.entries = nn.ModuleList(entries.values())

    def each(self, observation: Any) -> Iterator[tuple[KeyPath, nn.Module, Any]]:
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


class OneHot(nn.Module):
    """Converts choices ``[B]`` or ``[B, len(sizes)]`` to concatenated one-hot vectors.

    Args:
        sizes: the number of values of each choice.
    """

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.count = len(sizes)
        # For each entry of the output: the index of its choice, and the value that it stands for.
        self.place = nn.Buffer(torch.arange(self.count).repeat_interleave(torch.tensor(sizes)), persistent=False)
        self.value = nn.Buffer(torch.cat([torch.arange(size) for size in sizes]), persistent=False)

    def forward(self, chosen: Tensor) -> Tensor:
        """One at each chosen value, zero elsewhere, ``[B, sum(sizes)]``."""
        # Not torch's one_hot, which checks the values first and so waits for a GPU.
        choices_BC = chosen.long().reshape(-1, self.count)
        entry_choices = choices_BC if self.count == 1 else choices_BC.index_select(1, self.place)
        return (entry_choices == self.value).to(torch.get_default_dtype())


class PreviousAction(DictEncoder):
    """Encodes what a policy did in its last step, which it cannot infer from observations if its actions are sampled.

    The parts of an action are concatenated: numbers clipped to their bounds, choices one-hot. The encoded action
    ``[B, A]`` is passed from step to step like a recurrent state, and is zero where an episode begins.

    Args:
        spec: the spec of one environment's action, as the policy chooses it.

    Attributes:
        size: the number of entries of the encoded action, A.
    """

    def __init__(self, spec: TensorSpec) -> None:
        parts = [(path, part, choices(part)) for path, part in leaves_of(spec)]
        super().__init__({path: Numbers(part) if sizes is None else OneHot(sizes) for path, part, sizes in parts})
        self.size = self(spec.zero([1])).shape[-1]


class Numbers(nn.Module):
    """Flattens the numbers or bits of an action, and clips them to their bounds."""

    def __init__(self, spec: TensorSpec) -> None:
        super().__init__()
        numbers = spec if spec.dtype.is_floating_point else Unbounded(spec.shape)
        bounds = [bound.flatten().float() for bound in bounds_of(numbers)]
        self.bounds = nn.Buffer(torch.stack(bounds).clamp(FLOAT32.min, FLOAT32.max), persistent=False)

    def forward(self, chosen: Tensor) -> Tensor:
        """The numbers ``[B, entries]``, in float32."""
        return chosen.flatten(1).float().maximum(self.bounds[0]).minimum(self.bounds[1])
