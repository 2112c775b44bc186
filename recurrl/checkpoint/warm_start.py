"""Weights and running statistics of an earlier run, for a new one."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recurrl.checkpoint import files
from recurrl.checkpoint.checkpoint import Checkpoint
from recurrl.checkpoint.run import find
from recurrl.errors import require
from recurrl.policy import Policy
from recurrl.policy.heads import GaussianParameters
from recurrl.policy.normalization import ObservationNormalizer


def warm_start(policy: Policy, path: Path, keep_std: bool = False) -> list[str]:
    """Copies the parameters and running statistics that fit from a checkpoint's policy, and returns lines for the log.

    A layer is taken as a whole or not at all, and so are the statistics of an observation. Nothing but tensors is read
    from the checkpoint: its configuration is not looked at.

    Args:
        policy: of the new run.
        path: of a run directory, for its newest checkpoint, or of a checkpoint.
        keep_std: leave the standard deviation of continuous actions as it is.

    Raises:
        ConfigError: there is no intact checkpoint, nothing of it fits, or it holds NaN or Inf.
    """
    saved = Checkpoint(find(path))
    theirs = _tensors(files.state(saved.path, "policy"))
    ours = policy.state_dict()
    taken: list[str] = []
    differing: list[str] = []
    lacking: list[str] = []
    for layer, names in _layers(policy, ours):
        reasons = [reason for name in names if name in theirs and (reason := _misfit(name, theirs[name], ours[name]))]
        if not any(name in theirs for name in names):
            lacking.append(layer)
        elif keep_std and isinstance(policy.get_submodule(layer), GaussianParameters):
            differing.append(f"{layer} (policy.initial_std was given)")
        elif reasons or not all(name in theirs for name in names):
            reasons += [f"{name} is missing there" for name in names if name not in theirs]
            differing.append(f"{layer} ({', '.join(reasons)})")
        else:
            _copy(names, theirs, ours, saved.path)
            taken.append(layer)
    unused = dict.fromkeys(_owner(name) for name in theirs if name not in ours)
    require(
        bool(taken),
        f"nothing of {saved.path} fits this run's policy. Layers that differ: "
        f"{', '.join(differing) or 'none'}. Layers that it lacks: {', '.join(lacking) or 'none'}. Give a run with a "
        "network of the same sizes, or leave init_from out.",
    )
    found = {
        f"taken from {saved.path}": taken,
        "does not fit, and stays as initialised": differing,
        "is not in the checkpoint, and stays as initialised": lacking,
        "is in the checkpoint only": unused,
    }
    return [f"init_from: {what}: {', '.join(layers)}" for what, layers in found.items() if layers]


def _tensors(state: Any) -> dict[str, Tensor]:
    entries = state.items() if isinstance(state, Mapping) else ()
    return {name: value for name, value in entries if isinstance(name, str) and isinstance(value, Tensor)}


def _layers(policy: Policy, ours: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """The tensors of each layer, by name. Those of a normaliser belong together, its counts too."""
    normalizers = [name for name, module in policy.named_modules() if isinstance(module, ObservationNormalizer)]
    layers: dict[str, list[str]] = {}
    for name in ours:
        whole = (each for each in normalizers if name.startswith(f"{each}."))
        layers.setdefault(next(whole, _owner(name)), []).append(name)
    yield from layers.items()


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def _misfit(name: str, theirs: Tensor, ours: Tensor) -> str | None:
    """The difference between two tensors of a name; None without one."""
    if theirs.shape != ours.shape:
        return f"{name} is {files.shape_of(theirs)} there and {files.shape_of(ours)} here"
    if (theirs.dtype, theirs.layout, theirs.is_meta) == (ours.dtype, ours.layout, ours.is_meta):
        return None
    return f"{name} is of another type there, {theirs.dtype}, {theirs.layout}, {theirs.device}"


@torch.no_grad()
def _copy(names: list[str], theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor], path: Path) -> None:
    for name in names:
        require(
            bool(theirs[name].isfinite().all()),
            f"{name} of {path} holds NaN or Inf. Give an earlier checkpoint, or another run.",
        )
        ours[name].copy_(theirs[name])
