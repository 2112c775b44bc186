"""Reruns the policy over a batch, in sequences and step by step, and compares the results with the recorded ones.

Shape legend: N environments, T steps of a row, S slices, K steps of a slice.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.utils import expand_as_right
from torch import Tensor

from recurrl.algorithms.advantages import segment_ends
from recurrl.consistency.recorded import NOT_SEEN, first, place
from recurrl.errors import ConsistencyError
from recurrl.keys import ACTION, LOG_PROB, VALUE
from recurrl.policy import Policy

REPEATED = 1e-4
"""The difference, relative to 1 + |value|, that two runs of the same computation may have, whatever its precision."""


class _Comparison(NamedTuple):
    """One entry of the batch, as recorded and as replayed.

    Attributes:
        name: of the quantity, for the line that is printed.
        key: of the recorded entry.
        replayed_NT: ``[N, T, ...]``.
        recorded_NT: likewise.
        cause: the likely cause of a difference, and what to do.
    """

    name: str
    key: Any
    replayed_NT: Tensor
    recorded_NT: Tensor
    cause: str


def check_network(
    policy: Policy, batch_NT: TensorDictBase, slice_len: int, minibatch_slices: int, tolerance: float
) -> dict[str, float]:
    """Compares two replays with each other, then with the recorded entries; returns the largest differences."""
    replayed_NT = _replay(policy, batch_NT, slice_len, minibatch_slices)
    _check_repeats(replayed_NT, _replay(policy, batch_NT, slice_len, minibatch_slices))
    largest: dict[str, float] = {}
    wrong: list[tuple[int, int, _Comparison]] = []
    for entry in _comparisons(policy, batch_NT, replayed_NT, slice_len):
        difference_NT = _difference(entry.replayed_NT, entry.recorded_NT)
        largest[entry.name] = max(float(difference_NT.max()), largest.get(entry.name, 0.0))
        at = first(difference_NT > tolerance)
        if at is not None:
            wrong.append((*at, entry))
    if wrong:
        # Report the earliest step, and the cause of the first comparison, from which the others follow.
        n, t, entry = min(wrong, key=lambda found: found[1])
        raise ConsistencyError(f"{_described(entry, n, t, tolerance)} {wrong[0][2].cause}")
    return largest


def _replay(policy: Policy, batch_NT: TensorDictBase, slice_len: int, minibatch_slices: int) -> TensorDictBase:
    """The policy's outputs for the recorded observations and states, in minibatches like those of the update.

    Returns:
        ``sequence``: the log-probabilities of the recorded actions, the values, and the states at the ends of segments,
        by :meth:`Policy.sequence`. ``step``: the deterministic action and the next state of a single step from each
        recorded state.
    """
    slices_SK = batch_NT.reshape(-1, slice_len)
    replayed = []
    for chosen_SK in slices_SK.split(minibatch_slices):
        # With gradients enabled, so that the backend is the one of the update.
        distribution, value, state, _ = policy.sequence(*policy.inputs(chosen_SK))
        sequence = {LOG_PROB: distribution.log_prob(chosen_SK[ACTION]), **({} if value is None else {VALUE: value})}
        with torch.no_grad():
            action, _, _, after, _ = policy.step(*policy.inputs(chosen_SK.reshape(-1)))
        step = TensorDict({ACTION: action, "next": dict(after)}, [chosen_SK.numel()])
        entries = {"sequence": {**sequence, "next": dict(state)}, "step": step.reshape(chosen_SK.batch_size)}
        replayed.append(TensorDict(entries, chosen_SK.batch_size).detach())
    return torch.cat(replayed).reshape(batch_NT.batch_size)


def _check_repeats(once_NT: TensorDictBase, again_NT: TensorDictBase) -> None:
    """Rejects a policy whose outputs or deterministic actions differ between two calls with the same inputs."""
    differing = [key for key in once_NT.keys(True, True) if _difference(once_NT[key], again_NT[key]).max() > REPEATED]
    if any(ACTION not in key for key in differing):
        raise ConsistencyError(
            f"{NOT_SEEN} the policy returns different outputs for the same observations and states, so dropout or "
            "another source of noise is active. Set dropout to 0, or call eval() on the module that has it."
        )
    if differing:
        raise ConsistencyError(
            "Evaluation would be random: the policy returned two different deterministic actions for the same "
            "observation. Neither Policy.step(...) without noise nor the mode of the actor's distribution may draw "
            "random numbers."
        )


def _comparisons(
    policy: Policy, batch_NT: TensorDictBase, replayed_NT: TensorDictBase, slice_len: int
) -> Iterator[_Comparison]:
    sequence_NT = replayed_NT["sequence"]
    for key in policy.state_keys:
        recorded_NT = batch_NT["next", key]
        step = (
            "Repeating the single step does not reproduce it: something changed the state after the policy wrote it "
            "(zeroed it, for example), or changed the weights. Leave both alone during collection."
        )
        yield _Comparison("state", ("next", key), replayed_NT["step", "next", key], recorded_NT, step)
        # In sequence mode states are known at the ends of segments only; elsewhere they are zero.
        ends = expand_as_right(segment_ends(batch_NT, slice_len), recorded_NT)
        at_ends_NT = torch.where(ends, sequence_NT["next", key], recorded_NT)
        sequence = "The cell computes different results in sequence mode and step by step. Choose another backend."
        yield _Comparison("state", ("next", key), at_ends_NT, recorded_NT, sequence)
    network = (
        "The states are correct, so the network around the cell has changed since, or depends on more than one step: "
        "batch normalisation, for example, or running statistics updated by each call."
    )
    yield _Comparison("log-probability", LOG_PROB, sequence_NT[LOG_PROB], batch_NT[LOG_PROB], network)
    if batch_NT.get(VALUE) is not None:
        yield _Comparison("value", VALUE, sequence_NT[VALUE], batch_NT[VALUE], network)


def _described(entry: _Comparison, n: int, t: int, tolerance: float) -> str:
    replayed, recorded = entry.replayed_NT[n, t].flatten(), entry.recorded_NT[n, t].flatten()
    worst = int(_difference(replayed, recorded).argmax())
    return (
        f"{NOT_SEEN} {entry.key!r} of {place(n, t)} was {float(recorded[worst]):.6g} when collected but is "
        f"{float(replayed[worst]):.6g} when replayed (tolerance {tolerance:.0e} relative to 1 + |recorded|)."
    )


def _difference(replayed: Tensor, recorded: Tensor) -> Tensor:
    """Largest difference over the dimensions after the first two, relative to 1 + |recorded|; infinite for NaN."""
    recorded = recorded.double()
    difference = ((replayed.double() - recorded).abs() / (1 + recorded.abs())).nan_to_num(torch.inf)
    return difference.flatten(2).amax(-1) if difference.ndim > 2 else difference
