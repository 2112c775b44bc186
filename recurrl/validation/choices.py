"""The allowed names of each key."""

from __future__ import annotations

from recurrl.config import NO_CELL, STATE_POLICIES, VECTORIZATIONS, TrainConfig
from recurrl.config.keys import typed_value
from recurrl.errors import require
from recurrl.recurrent import precision
from recurrl.recurrent.backends import RECOMPUTE, backend_names
from recurrl.recurrent.cells import cell_names

CHOICES = {
    "state": STATE_POLICIES,
    "lr_schedule": ("linear", "adaptive"),
    "env.vectorization": VECTORIZATIONS,
    "cell.name": (*cell_names(), NO_CELL),
    "backend.name": backend_names(),
    "recompute.name": RECOMPUTE,
    "precision.name": precision.MODES,
    "collector.name": ("single", "multi_sync", "multi_async"),
    "collector.on_fault": ("raise", "restart"),
    "logger.name": ("csv", "tensorboard", "wandb"),
    "logger.mode": ("auto", "online", "offline"),
    "policy.image_encoder": ("nature", "impala"),
    "policy.bounded_action": ("clip", "tanh"),
    "algorithm.objective": ("clip", "kl", "plain"),
    "algorithm.critic": ("shared", "recurrent", "feedforward"),
    "algorithm.critic_loss": ("l2", "smooth_l1"),
    "algorithm.normalize_advantage": ("none", "minibatch", "batch"),
    "algorithm.advantage": ("outcome", "process"),
    "algorithm.aggregation": ("step", "episode"),
}

_IN_PROCESSES = "collector=multi_sync collector.num_workers=N, which runs the environments in N processes"
REMOVED = {
    ("env.vectorization", "serial"): "env.vectorization=inline",
    ("env.vectorization", "gymnasium"): "env.vectorization=inline",
    ("env.vectorization", "parallel"): _IN_PROCESSES,
}
"""Removed names and their replacements."""


def check(config: TrainConfig) -> None:
    """Rejects unknown names."""
    for (key, name), instead in REMOVED.items():
        require(typed_value(config, key) != name, f"{key}={name} was removed. Choose {instead}.")
    for key, names in CHOICES.items():
        value = typed_value(config, key)
        require(value is None or value in names, f"{key}={value} does not exist. Choose one of: {', '.join(names)}.")
