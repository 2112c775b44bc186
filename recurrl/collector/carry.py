"""What a collector goes on from between two batches, for runs that go on in another process.

These are the episodes under way: observations, recurrent states, step counts and returns, and the environments' own
state. Where an environment cannot give its state, the run that goes on begins new episodes, and says so.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torchrl.collectors import Collector
from torchrl.envs import TransformedEnv

from recurrl.environment_state import UnsavableError
from recurrl.envs import TensorEnv

logger = logging.getLogger(__name__)


class Saveable(Protocol):
    """A collector of ours."""

    def state_dict(self) -> dict[str, Any]:
        """What it goes on from; see :func:`episodes_of`."""

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Goes on from there."""


def episodes_of(collector: Collector) -> dict[str, Any]:
    """Of plain values and tensors; ``why_not`` holds the reason where the environments cannot give their state."""
    try:
        episodes = _environment(collector).episodes()
    except UnsavableError as reason:
        return lost(str(reason))
    carrier = {key: value.clone() for key, value in collector._carrier.items(True, True)}
    return {"why_not": None, "episodes": episodes, "carrier": carrier}


def restore_episodes(collector: Collector, state: Mapping[str, Any]) -> None:
    """Goes on from what :func:`episodes_of` gave; where that was nothing, from the episodes that have begun here.

    Raises:
        UnsavableError: the environments are not made as those that were saved.
    """
    if state["why_not"] is None:
        _environment(collector).restore_episodes(state["episodes"])
        collector._carrier.update(state["carrier"])


def check(collector: Saveable) -> list[str]:
    """Saves the episodes under way and restores them: a line that says why that cannot be done, or none."""
    try:
        state = collector.state_dict()
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        why_not = state["why_not"]
        if why_not is None:
            collector.load_state_dict(torch.load(file, weights_only=True))
    except UnsavableError as error:
        why_not = str(error)
    if why_not is None:
        return []
    return [f"Checkpoints do not hold the episodes under way; a resumed run starts new ones. {why_not}."]


def lost(why_not: str) -> dict[str, Any]:
    """In place of episodes that cannot be given."""
    return {"why_not": why_not}


def warn_if_lost(state: Mapping[str, Any]) -> None:
    """Says why episodes begin anew, if they do."""
    if state["why_not"] is not None:
        logger.warning("The episodes that were under way begin anew: %s.", state["why_not"])


def _environment(collector: Collector) -> TensorEnv:
    env = collector.env.base_env if isinstance(collector.env, TransformedEnv) else collector.env
    if not isinstance(env, TensorEnv):
        raise UnsavableError(f"TorchRL's {type(env).__name__} does not give the state of its environments")
    return env
