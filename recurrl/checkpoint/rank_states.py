"""The states of several ranks in one checkpoint, which another number of ranks can resume too.

Rank 0 writes and reads the files. Its own states are stored as in a run of one process; the component ``ranks``
holds the states of the other ranks.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from recurrl.errors import RunError
from recurrl.runtime.ranks import world
from recurrl.runtime.seeds import seed_process
from recurrl.runtime.serialization import Stateful, from_bytes, to_bytes

RANKS, SCALER = "ranks", "reward_scaler"
EPISODES = "collector_state"
"""The component that holds the unfinished episodes."""
OWN = ("rng", SCALER, "buffer", "teacher", EPISODES)
"""The components that differ from rank to rank."""
OF_RANK_0 = ("callbacks", "summary")
"""The components saved and restored on rank 0 only. Those in neither tuple are the same on all ranks."""

State = dict[str, Any]


def gathered_states(components: Mapping[str, Stateful]) -> dict[str, Any]:
    """On rank 0, what differs in the other ranks' states, as one component; otherwise empty. Collective.

    Raises:
        RunError: the policies or algorithms of the ranks are no longer the same.
    """
    module_states = ((name, components[name].state_dict()) for name in ("policy", "algorithm") if name in components)
    entries = {f"{name}.{key}": entry for name, state in module_states for key, entry in state.items()}
    sizes = {name: float(entry.double().abs().sum()) for name, entry in entries.items() if isinstance(entry, Tensor)}
    own = to_bytes(_states(components, OWN)) if world().rank > 0 else b""
    _, *others = world().gather_objects((sizes, own))  # only rank 0 gets those of others
    for rank, (theirs, _) in enumerate(others, start=1):
        # With a tolerance, because processors of different kinds round differently.
        differing = [name for name, size in sizes.items() if not math.isclose(size, theirs[name], rel_tol=1e-3)]
        if differing:
            raise RunError(
                f"Rank 0 and rank {rank} differ in {', '.join(differing)}. All ranks share parameters, but counts and "
                "averages that a module keeps differ between ranks. Have it use recurrl.runtime.statistics or "
                "recurrl.policy.normalization.RunningMoments, or train in one process."
            )
    return {RANKS: [from_bytes(state) for _, state in others]} if others else {}


def broadcast_states(components: Mapping[str, Stateful], own: Sequence[State] = (), seeds: Sequence[int] = ()) -> None:
    """Sends all ranks rank 0's state of the components that are the same on all, and each rank its own. Collective.

    Args:
        components: the run's components.
        own: on rank 0, for each rank, the states of components that differ; a component without one keeps its state.
        seeds: on rank 0, a seed for each rank's random numbers; empty to keep them.
    """
    common = [name for name in components if name not in (*OWN, *OF_RANK_0)]
    message = (to_bytes(_states(components, common)), [to_bytes(each) for each in own], list(seeds))
    states, states_of_ranks, seeds = world().broadcast(message if world().rank == 0 else None)
    restored = from_bytes(states_of_ranks[world().rank]) if states_of_ranks else {}
    if world().rank > 0:
        restored |= from_bytes(states)
    if seeds:
        seed_process(seeds[world().rank])
    for name, state in restored.items():
        if name in components:
            components[name].load_state_dict(state)


def _states(components: Mapping[str, Stateful], names: Sequence[str]) -> State:
    return {name: components[name].state_dict() for name in names if name in components}
