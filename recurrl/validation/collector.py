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
        envs % workers == 0,
        f"env.num_envs={envs} does not divide evenly among collector.num_workers={workers}. Give a multiple of "
        f"{workers}, for example env.num_envs={nearest_multiple(envs, workers)}.",
    )
