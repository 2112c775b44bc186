"""What a collector goes on from between two batches, for runs that go on in another process."""

from __future__ import annotations

import logging
from typing import Any

from torchrl.collectors import BaseCollector, Collector
from torchrl.envs import EnvBase, TransformedEnv

from recurrl.collector.restarts import RestartingCollector
from recurrl.environment_state import UnsavableError
from recurrl.envs import TensorEnv

logger = logging.getLogger(__name__)


class Carry:
    """The episodes under way: observations, recurrent states, step counts and returns, and the environments' own state.

    Where an environment cannot give its state, the run that goes on begins new episodes, and says so.

    Args:
        collector: whose episodes they are.
    """

    def __init__(self, collector: BaseCollector | RestartingCollector) -> None:
        self._collector = collector

    def state_dict(self) -> dict[str, Any]:
        """Of plain values and tensors; ``why_not`` holds the reason where the environments cannot give their state."""
        try:
            collector, env = self._parts()
            episodes = env.episodes()
        except UnsavableError as reason:
            return {"why_not": str(reason)}
        carrier = {key: value.clone() for key, value in collector._carrier.items(True, True)}
        return {"why_not": None, "episodes": episodes, "carrier": carrier}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there.

        Raises:
            UnsavableError: the environments are not made as those that were saved.
        """
        if state["why_not"] is not None:
            logger.warning("The episodes that were under way begin anew: %s.", state["why_not"])
            return
        collector, env = self._parts()
        env.restore_episodes(state["episodes"])
        collector._carrier.update(state["carrier"])

    def _parts(self) -> tuple[Collector, TensorEnv]:
        collector = self._collector
        if isinstance(collector, RestartingCollector):
            collector = collector.current
        if not isinstance(collector, Collector):
            raise UnsavableError(f"the environments are in the processes of a {type(collector).__name__}")
        env: EnvBase = collector.env
        env = env.base_env if isinstance(env, TransformedEnv) else env
        if not isinstance(env, TensorEnv):
            raise UnsavableError(f"TorchRL's {type(env).__name__} does not give the state of its environments")
        return collector, env
