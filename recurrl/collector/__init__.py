"""Steps environments with a policy and hands out ``[N, T]`` batches, rows in time order.

One module per choice of ``collector``, with ``make(config, policy)``.
"""

from __future__ import annotations

from dataclasses import replace

from torchrl.collectors import BaseCollector

from recurrl.collector.restarts import RestartingCollector
from recurrl.collector.seeds import seed_after
from recurrl.config import TrainConfig
from recurrl.config.plugins import factory
from recurrl.policy import Policy


def make_collector(config: TrainConfig, policy: Policy, frames: int = 0) -> BaseCollector | RestartingCollector:
    """The configured collector. Each batch holds ``frames_per_batch`` frames; episodes continue from one to the next.

    Its ``state_dict`` lets another process continue from it, as far as its environments expose their state.

    Args:
        config: the run's configuration.
        policy: the acting policy.
        frames: frames seen by the run. A resumed run uses new random numbers.

    Raises:
        ConfigError: the environment cannot be made, or would not carry the policy's states.
    """
    make = factory("collector", config.collector.name)
    config = replace(config, seed=seed_after(config.seed, frames))
    if config.collector.on_fault == "restart":
        return RestartingCollector(config, lambda seeded: make(seeded.collector, seeded, policy))
    collector: BaseCollector = make(config.collector, config, policy)
    return collector


def collection_metrics(collector: BaseCollector | RestartingCollector) -> dict[str, float]:
    """Metrics of the last batch's collection."""
    if isinstance(collector, RestartingCollector):
        return {**collection_metrics(collector.current), "collect/restarts": float(collector.restarts)}
    staleness = getattr(collector, "staleness", None)
    return {} if staleness is None else {"collect/staleness": staleness}
