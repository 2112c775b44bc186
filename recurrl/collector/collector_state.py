"""The state of a collector between two batches, for resuming in another process.

It consists of the unfinished episodes: observations, recurrent states, step counts and returns, and the environments'
own state. If an environment does not expose its state, the resumed run begins new episodes, and logs that.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from torchrl.checkpoint import GlobalRNGState
from torchrl.collectors import Collector
from torchrl.envs import TransformedEnv

from recurrl.collector.rollouts import RolloutCollector
from recurrl.envs import TensorEnv
from recurrl.envs.saved_state import UnsavableError
from recurrl.runtime.in_bytes import read, written

logger = logging.getLogger(__name__)


def episodes_of(collector: Collector) -> dict[str, Any]:
    """Plain values and tensors; ``why_not`` holds the reason if the environments do not expose their state."""
    try:
        episodes = _environment(collector).episodes()
    except UnsavableError as reason:
        return lost(str(reason))
    carrier = {key: value.clone() for key, value in collector._carrier.items(True, True)}
    return {"why_not": None, "episodes": episodes, "carrier": carrier}


def restore_episodes(collector: Collector, state: Mapping[str, Any]) -> None:
    """Restores what :func:`episodes_of` returned; without episodes, keeps those begun here.

    Raises:
        UnsavableError: the environments are constructed differently from the saved ones.
    """
    if state["why_not"] is None:
        _environment(collector).restore_episodes(state["episodes"])
        collector._carrier.update(state["carrier"])


def check(collector: RolloutCollector) -> list[str]:
    """Tries to save and restore the unfinished episodes. Returns a line that says why, if that fails."""
    try:
        state = read(written(collector.state_dict()))
        why_not = state["why_not"]
        if why_not is None:
            collector.load_state_dict(state)
    except UnsavableError as error:
        why_not = str(error)
    if why_not is None:
        return []
    return [f"Checkpoints cannot hold unfinished episodes; a resumed run starts new ones. {why_not}."]


def saved(collector: Collector) -> bytes:
    """The state of a worker's collector with the process's random numbers, as ``torch.save`` writes it."""
    # As bytes, because each tensor would be sent through a file of its own.
    return written({**collector.state_dict(), "rng": GlobalRNGState().state_dict()})


def restore(collector: Collector, state: bytes) -> None:
    """Restores what :func:`saved` returned."""
    found = read(state)
    restore_episodes(collector, found)
    GlobalRNGState().load_state_dict(found["rng"])


def of_workers(states: Sequence[bytes]) -> dict[str, Any]:
    """The state of a collector from what :func:`saved` returned in each of its workers."""
    workers = [read(state) for state in states]
    return {"why_not": next((state["why_not"] for state in workers if state["why_not"]), None), "workers": workers}


def to_workers(state: Mapping[str, Any]) -> list[bytes]:
    """What each worker restores of it; empty for a collector that failed. The log says if episodes are lost."""
    warn_if_lost(state)
    return [written(each) for each in state.get("workers", ())]


def lost(why_not: str) -> dict[str, Any]:
    """A state without episodes, with the reason."""
    return {"why_not": why_not}


def warn_if_lost(state: Mapping[str, Any]) -> None:
    """Logs why unfinished episodes are restarted, if they are."""
    if state["why_not"] is not None:
        logger.warning("Unfinished episodes are restarted: %s.", state["why_not"])


def _environment(collector: Collector) -> TensorEnv:
    env = collector.env.base_env if isinstance(collector.env, TransformedEnv) else collector.env
    if not isinstance(env, TensorEnv):
        raise UnsavableError(f"TorchRL's {type(env).__name__} does not expose the state of its environments")
    return env
