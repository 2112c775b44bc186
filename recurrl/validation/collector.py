"""The collector's processes."""

from __future__ import annotations

from recurrl.config import TrainConfig
from recurrl.errors import require
from recurrl.validation.advice import nearest_multiple


def check(config: TrainConfig) -> None:
    """Rejects workers that the collector does not have, or that cannot share the environments evenly."""
    name, workers, envs = config.collector.name, config.collector.num_workers, config.env.num_envs
    require(
        name != "single" or workers == 1,
        f"collector.num_workers={workers} was requested, but collector=single runs in one process. Choose "
        "collector=multi_sync or collector=multi_async.",
    )
    require(
        envs % workers == 0,
        f"env.num_envs={envs} is not a multiple of collector.num_workers={workers}. Give a multiple of {workers}, for "
        f"example env.num_envs={nearest_multiple(envs, workers)}.",
    )
