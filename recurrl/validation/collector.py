"""Who steps the environments: how many processes, and what follows their faults."""

from __future__ import annotations

from recurrl.config import TrainConfig
from recurrl.errors import require
from recurrl.validation.advice import nearest_multiple


def check(config: TrainConfig) -> None:
    """Refuses workers that the collector does not have, or that the environments do not divide among."""
    name, workers, envs = config.collector.name, config.collector.num_workers, config.env.num_envs
    require(
        name != "single" or workers == 1,
        f"collector.num_workers={workers} was asked for, but collector=single collects in this process alone. Choose "
        "collector=multi_sync or collector=multi_async.",
    )
    require(
        name != "single" or config.collector.on_fault == "raise" or config.env.vectorization == "inline",
        f"collector.on_fault=restart with collector=single goes on only from faults of env.vectorization=inline, and "
        f"{config.env.vectorization} was asked for, which does not tell an environment's faults from others. Choose "
        "env.vectorization=inline, collector=multi_sync or collector.on_fault=raise.",
    )
    require(
        envs % workers == 0,
        f"env.num_envs={envs} does not divide evenly among collector.num_workers={workers}. Give a multiple of "
        f"{workers}, for example env.num_envs={nearest_multiple(envs, workers)}.",
    )
