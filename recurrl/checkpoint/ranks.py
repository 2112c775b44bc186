"""What the ranks of a run have of their own in its checkpoints, and its division among another number of ranks.

Rank 0 writes and reads the files. Its own parts are where those of a run alone are; the component ``ranks`` holds those
of the others.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from recurrl.checkpoint import files
from recurrl.checkpoint.files import Held
from recurrl.errors import ConfigError, RunError
from recurrl.runtime.in_bytes import read, written
from recurrl.runtime.ranks import world
from recurrl.runtime.seeds import seed_process

RANKS, SCALER, SEED = "ranks", "reward_scaler", "seed"
EPISODES = "collector_state"
"""The component that holds the unfinished episodes."""
OWN = ("rng", SCALER, "buffer", EPISODES)
"""The components that differ from rank to rank."""
COMMON = ("policy", "optimizer", "algorithm", "learner", "backends")
"""Those that are the same on all."""
_RETURNS = "discounted_return"

logger = logging.getLogger(__name__)
State = dict[str, Any]


def own_states(parts: Mapping[str, Any]) -> list[State]:
    """On rank 0, the states of the other ranks' own parts. Called on all of them.

    Raises:
        RunError: the policies of the ranks are no longer the same.
    """
    sizes = {name: float(value.double().abs().sum()) for name, value in parts["policy"].state_dict().items()}
    if world().rank > 0:
        world().gather((sizes, written({name: parts[name].state_dict() for name in OWN if name in parts})))
        return []
    _, *others = world().gather((sizes, b""))
    for rank, (theirs, _) in enumerate(others, start=1):
        # Not equal: processors of different kinds round differently.
        differing = [name for name, size in sizes.items() if not math.isclose(size, theirs[name], rel_tol=1e-3)]
        if differing:
            raise RunError(
                f"The policies of rank 0 and rank {rank} differ in {', '.join(differing)}. Ranks have the same "
                "parameters, but a module that counts or averages on its own does so on each: have it use "
                "recurrl.policy.normalization.RunningMoments, or train in one process."
            )
    return [read(each) for _, each in others]


def begin(parts: Mapping[str, Any], own: Sequence[State] | None = None) -> None:
    """Gives the other ranks rank 0's state, so that they begin alike, and each its own state if there is one."""
    if world().size == 1:
        return
    if world().rank > 0:
        common, mine = read(world().broadcast()), read(world().broadcast()[world().rank])
        for name in COMMON:
            parts[name].load_state_dict(common[name])
        _take(parts, mine)
        return
    world().broadcast(written({name: parts[name].state_dict() for name in COMMON}))
    world().broadcast([written(each) for each in own or [{}] * world().size])


def _take(parts: Mapping[str, Any], own: State) -> None:
    if SEED in own:
        seed_process(own.pop(SEED))
    for name, state in own.items():
        if name in parts:
            parts[name].load_state_dict(state)


def load(
    path: Path, saved: int, into: Mapping[str, Any], changes: Mapping[str, tuple[Any, Any]], seeds: Sequence[int]
) -> None:
    """Loads a checkpoint of or into a run of several ranks, on rank 0; the others call :func:`begin`.

    With the same number of ranks each gets what it had. With another number, environments and their episodes are
    divided again where they can be, random numbers are new, and the log says what starts over.

    Args:
        path: of the checkpoint.
        saved: the number of ranks that it is of.
        into: the components of the run.
        changes: as for :func:`recurrl.checkpoint.files.load`.
        seeds: of new random numbers, one for each rank.

    Raises:
        ConfigError: it does not fit the configuration.
    """
    others = Held([])
    with_ranks = {RANKS: others} if saved > 1 else {}
    if saved == world().size:
        files.load(path, {**into, **with_ranks}, changes)
        begin(into, [{}, *({name: each for name, each in state.items() if name in into} for state in others.state)])
        return
    own = {name: Held() for name in OWN if name in into}
    files.load(path, {**into, **own, **with_ranks}, changes)
    shares = divided([{name: held.state for name, held in own.items()}, *others.state], world().size, path)
    for share, seed in zip(shares, seeds, strict=True):
        share[SEED] = seed
    begin(into, [{}, *shares[1:]])
    _take(into, shares[0])


def divided(states: Sequence[State], size: int, path: Path) -> list[State]:
    """The states of another number of ranks, without their random numbers.

    Raises:
        ConfigError: the number of environments does not divide among them.
    """
    logger.warning("%s is of %d ranks, and there are %d now: random numbers are new.", path, len(states), size)
    scalers = [state[SCALER] for state in states]
    returns = torch.cat([scaler[_RETURNS] for scaler in scalers])
    if len(returns) % size:
        raise ConfigError(
            f"The checkpoint {path} is of {len(returns)} environments, which do not divide among {size} ranks. Start a "
            "number of ranks that divides them."
        )
    shares: list[State] = [{SCALER: {**scalers[0], _RETURNS: part}} for part in returns.chunk(size)]
    if "buffer" in states[0]:
        logger.warning("The replay buffer starts empty.")
    if EPISODES in states[0]:
        for share, episodes in zip(shares, _divided_episodes([state[EPISODES] for state in states], size), strict=True):
            share[EPISODES] = episodes
    return shares


def _divided_episodes(states: Sequence[State], size: int) -> list[State]:
    """The unfinished episodes, if they were saved by environment or worker; else the reason for new ones."""
    restarts = sum(state.get("restarts", 0) for state in states)
    why_not = next((state["why_not"] for state in states if state["why_not"]), None)
    workers = sum(len(state.get("workers", ())) for state in states)
    shares: list[State] = [{} for _ in range(size)]
    if why_not is None and all("environments" in state.get("episodes", {}) for state in states):
        shares = _split([{"episodes": state["episodes"], "carrier": state["carrier"]} for state in states], size)
    elif why_not is None and workers % size == 0 and "workers" in states[0]:
        shares = _split([{"workers": state["workers"]} for state in states], size)
        for ahead in zip(*(state.get("ahead", ()) for state in states), strict=True):
            for share, rows in zip(shares, _split(ahead, size), strict=True):
                share.setdefault("ahead", []).append(rows)
    elif why_not is None:
        why_not = f"those of {len(states)} ranks were saved together, and cannot be divided among {size}"
    return [{"why_not": why_not, "restarts": restarts * (i == 0), **share} for i, share in enumerate(shares)]


def _split(states: Sequence[Any], size: int) -> list[Any]:
    """States of each rank, with lists and tensors over environments or workers, divided among ``size`` ranks."""
    first = states[0]
    if isinstance(first, Mapping):
        parts = {key: _split([state[key] for state in states], size) for key in first}
        return [{key: of[rank] for key, of in parts.items()} for rank in range(size)]
    if isinstance(first, torch.Tensor):
        return list(torch.cat(list(states)).chunk(size))
    whole = [each for state in states for each in state]
    count = len(whole) // size
    return [whole[rank * count : (rank + 1) * count] for rank in range(size)]
