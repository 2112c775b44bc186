"""The collector's worker processes."""

from __future__ import annotations

from recurrl.config import TrainConfig, WorkersConfig
from recurrl.errors import require
from recurrl.validation.advice import nearest_multiple


def check(config: TrainConfig) -> None:
    """Rejects workers that cannot share the environments evenly."""
    if not isinstance(config.collector, WorkersConfig):
        return
    workers, envs = config.collector.num_workers, config.env.num_envs
    require(
        envs % workers == 0,
        f"env.num_envs={envs} is not a multiple of collector.num_workers={workers}. Give a multiple of {workers}, for "
        f"example env.num_envs={nearest_multiple(envs, workers)}.",
    )
