"""Weights and running statistics of an earlier run, for a new one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recurrl.checkpoint import Checkpoint, files, find
from recurrl.errors import require
from recurrl.policy import Policy
from recurrl.policy.distributions import GaussianParameters
from recurrl.policy.normalization import ObservationNormalizer


@torch.no_grad()
def copy_weights(policy: Policy, path: Path, keep_std: bool = False) -> list[str]:
    """Copies the parameters and running statistics that fit from a checkpoint's policy, and returns lines for the log.

    A layer is copied as a whole or not at all, and so are the statistics of an observation. Only tensors are read from
    the checkpoint, not its configuration.

    Args:
        policy: the new run's policy.
        path: a checkpoint, or a run directory for its newest one.
        keep_std: keep the new policy's standard deviation of continuous actions.

    Raises:
        ConfigError: there is no intact checkpoint, nothing of it fits, or it holds NaN or Inf.
    """
    saved = Checkpoint(find(path))
    source = _tensors(files.state(saved.path, "policy"))
    target = policy.state_dict()
    layers = _layers(policy)
    copied, differing, missing = [], [], []
    for layer, names in layers.items():
        reasons = [reason for name in names if (reason := _difference(name, source.get(name), target[name]))]
        if not any(name in source for name in names):
            missing.append(layer)
        elif keep_std and isinstance(policy.get_submodule(layer), GaussianParameters):
            differing.append(f"{layer} (policy.initial_std was given)")
        elif reasons:
            differing.append(f"{layer} ({', '.join(reasons)})")
        else:
            copied.append(layer)
    for name in (name for layer in copied for name in layers[layer]):
        require(
            bool(source[name].isfinite().all()),
            f"{name} of {saved.path} holds NaN or Inf. Use an earlier checkpoint, or another run.",
        )
        target[name].copy_(source[name])
    require(
        bool(copied),
        f"nothing of {saved.path} fits this run's policy. Layers that differ: "
        f"{', '.join(differing) or 'none'}. Layers that it lacks: {', '.join(missing) or 'none'}. Use a run with a "
        "network of the same sizes, or leave init_from out.",
    )
    # The parameter instead of the layer where the new policy has the layer, which is then listed above.
    only_there = (name if (layer := _layer_of(name)) in layers else layer for name in source if name not in target)
    outcome = {
        f"copied from {saved.path}": copied,
        "does not fit, left as initialised": differing,
        "not in the checkpoint, left as initialised": missing,
        "in the checkpoint only": dict.fromkeys(only_there),
    }
    return [f"init_from: {what}: {', '.join(layers)}" for what, layers in outcome.items() if layers]


def _tensors(state: Any) -> dict[str, Tensor]:
    entries = state.items() if isinstance(state, Mapping) else ()
    return {name: value for name, value in entries if isinstance(name, str) and isinstance(value, Tensor)}


def _layers(policy: Policy) -> dict[str, list[str]]:
    """The names of the tensors of each layer. All tensors of a normaliser, counts included, form one layer."""
    normalizers = [name for name, module in policy.named_modules() if isinstance(module, ObservationNormalizer)]
    layers: dict[str, list[str]] = {}
    for name in policy.state_dict():
        normalizer = (each for each in normalizers if name.startswith(f"{each}."))
        layers.setdefault(next(normalizer, _layer_of(name)), []).append(name)
    return layers


def _layer_of(name: str) -> str:
    return name.rpartition(".")[0]


def _difference(name: str, source: Tensor | None, target: Tensor) -> str | None:
    """How a tensor of the checkpoint differs from the policy's in shape or type; None if it does not."""
    if source is None:
        return f"{name} is missing there"
    if source.shape != target.shape:
        there, here = ("×".join(map(str, each.shape)) or "one number" for each in (source, target))
        return f"{name} is {there} there and {here} here"
    if (source.dtype, source.layout, source.is_meta) == (target.dtype, target.layout, target.is_meta):
        return None
    return f"{name} is of another type there, {source.dtype}, {source.layout}, {source.device}"
