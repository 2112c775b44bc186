"""The start-up check: does the update see what the rollout saw?

It replays the first batch as learning will, and looks at what a replay alone would not show: the marks of episode
starts, the chain from step to step, the observations after resets, and whether the policy repeats itself.

Shape legend: N environments, T steps of a row, S slices, K steps of a slice, P pairs of observations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.utils import expand_as_right
from torch import Tensor
from torchrl.envs import ExplorationType, set_exploration_type

from recurrl.config import TrainConfig
from recurrl.envs import make_env
from recurrl.errors import ReplayError
from recurrl.policy import ACTION, LOG_PROB, VALUE, ActorCritic
from recurrl.recurrent import precision, set_recurrent_mode
from recurrl.recurrent.module import IS_INIT

TOLERANCE = {"ieee": 1e-4, "tf32x3": 1e-3, "tf32": 3e-2, "bf16": 2e-1}
"""By precision, the difference that rounding may make, relative to 1 + |recorded|.

A step and a sequence add the same products in another order. In float32, whose unit is 6e-8, that has been seen to make
1e-6 to 1e-5 over a thousand steps; a wrong state makes 1e-2 and more. tf32 and bf16 have units of 5e-4 and 4e-3.
"""

_ENOUGH_RESETS = 5
_CHANCE = 1e-6

_NOT_SEEN = "The update would not see what the rollout saw:"


def check_replay(config: TrainConfig, policy: ActorCritic, batch_NT: TensorDictBase) -> str:
    """Replays the first batch of a run, and returns one line on how near it comes to what collection recorded.

    Log-probabilities and values are replayed in sequence mode, in minibatches of slices from the states stored at their
    beginnings, by the computation the update uses. The states they end with, and those that single steps lead to from
    every stored state, must be the recorded ones; each of these must be the state stored at the next step. So the
    states are right at all steps, and an error cannot hide by growing slowly. Neither the policy, the batch nor the
    random numbers to come are changed.

    Args:
        config: the run's configuration.
        policy: the policy that collected the batch, with the weights it had.
        batch_NT: the collector's first batch, in which every row begins with an episode.

    Raises:
        ReplayError: naming the first entry, environment and step that differ, the figures, and a likely cause.
    """
    device = torch.device(config.device)
    keys = [key for key in policy.acting().in_keys if key != IS_INIT]
    _check_present(batch_NT, policy)
    _check_finite(batch_NT, keys)
    _check_marks(batch_NT)
    _check_chain(batch_NT, keys, policy)
    # On the CPU there is no device to save the generator of.
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        resets = _check_resets(config, batch_NT, [key for key in keys if key not in policy.state_keys])
        tolerance = TOLERANCE[precision.resolve(config.precision.name, device)]
        differences = _check_network(config, policy, batch_NT, tolerance)
    figures = ", ".join(f"{name} {value:.1e}" for name, value in differences.items())
    return (
        f"replay check: {batch_NT.numel()} frames with {resets} resets are replayed as they were collected; largest "
        f"differences: {figures} (tolerance {tolerance:.0e})"
    )


def _check_present(batch_NT: TensorDictBase, policy: ActorCritic) -> None:
    if policy.state_keys and batch_NT.get(IS_INIT) is None:
        raise ReplayError(
            f"{_NOT_SEEN} the batch has no entry {IS_INIT!r}, so the policy's state would leak from one episode into "
            "the next. Append torchrl.envs.InitTracker() to the environment, or build it with recurrl.envs.make_env."
        )
    for key in policy.state_keys:
        if batch_NT.get(key) is None or batch_NT["next"].get(key) is None:
            raise ReplayError(
                f"{_NOT_SEEN} the batch does not hold the recurrent state {key!r}, so the policy acted without memory. "
                "Append module.make_tensordict_primer() to the environment, or build it with recurrl.envs.make_env."
            )


def _check_finite(batch_NT: TensorDictBase, keys: list[Any]) -> None:
    for key in (*keys, ACTION, LOG_PROB, VALUE):
        value = batch_NT.get(key)
        if not isinstance(value, Tensor) or not value.is_floating_point():
            continue
        at = _first(_any(~value.isfinite()))
        if at is not None:
            raise ReplayError(
                f"{_NOT_SEEN} {key!r} of {_place(*at)} is not finite. If it comes from the environment, clip or mask "
                "it there; if from the policy, its weights or its learning rate are too large."
            )


def _check_marks(batch_NT: TensorDictBase) -> None:
    """Whether episodes are marked as started exactly where the collection began and after an episode's end."""
    marks = batch_NT.get(IS_INIT)
    if marks is None:
        return
    is_init_NT, done_NT = marks.squeeze(-1), batch_NT["next", "done"].squeeze(-1)
    started_NT = torch.cat((torch.ones_like(done_NT[:, :1]), done_NT[:, :-1]), 1)
    at = _first(is_init_NT != started_NT)
    if at is not None:
        marked, not_marked = ("is marked", "no episode starts") if is_init_NT[at] else ("is not marked", "one starts")
        raise ReplayError(
            f"{_NOT_SEEN} {_place(*at)} {marked} by {IS_INIT!r} as the start of an episode, but {not_marked} there. "
            "Let one torchrl.envs.InitTracker(), and nothing else, write that entry."
        )


def _check_chain(batch_NT: TensorDictBase, keys: list[Any], policy: ActorCritic) -> None:
    """Whether within episodes each step begins with what the one before it led to."""
    goes_on_NT = ~batch_NT["next", "done"].squeeze(-1)[:, :-1]
    for key in keys:
        after = batch_NT["next"].get(key)
        if after is None:
            continue
        now_NT, before_NT = batch_NT[key][:, 1:], after[:, :-1]
        at = _first(_any(now_NT != before_NT) & goes_on_NT)
        if at is not None:
            cause = (
                "The recurrent state was replaced in mid-episode, for example zeroed: leave it to the policy and to "
                "the primer, module.make_tensordict_primer()."
                if key in policy.state_keys
                else "The environment, or a transform of it, hands out another observation than the one that its step "
                "returned."
            )
            difference = float((now_NT[at].double() - before_NT[at].double()).abs().max())
            raise ReplayError(
                f"{_NOT_SEEN} {key!r} of {_place(at[0], at[1] + 1)} is not what the step before led to, within an "
                f"episode (difference {difference:.2g}). {cause}"
            )


def _check_resets(config: TrainConfig, batch_NT: TensorDictBase, keys: list[Any]) -> int:
    """Whether episodes begin with an observation of their own, and how many resets say so."""
    keys = [key for key in keys if batch_NT["next"].get(key) is not None]
    ended_NT = batch_NT["next", "done"].squeeze(-1)[:, :-1]
    last_P, first_P = batch_NT["next"].select(*keys)[:, :-1][ended_NT], batch_NT.select(*keys)[:, 1:][ended_NT]
    resets = last_P.shape[0]
    if resets < _ENOUGH_RESETS:
        last_P, first_P = _forced_resets(config, keys)
    if _is_handed_on(last_P, first_P):
        raise ReplayError(
            f"{_NOT_SEEN} after each of {last_P.shape[0]} resets the observation {keys} is the last one of the episode "
            "before, bit for bit. The environment hands out a wrong observation when it resets, or resets itself in "
            "its last step: let reset return the new episode's first observation, and switch off automatic resets. If "
            "episodes really go on where the last one ended, give replay_check=false."
        )
    return resets


def _forced_resets(config: TrainConfig, keys: list[Any]) -> tuple[TensorDictBase, TensorDictBase]:
    """The last and the first observations around resets of two new copies of the environment, acting at random."""
    env = make_env(replace(config.env, vectorization="inline"), 2, config.seed)
    try:
        plays = [env.rollout(3, break_when_any_done=False) for _ in range(_ENOUGH_RESETS)]
    finally:
        env.close()
    last = [play["next"].select(*keys)[:, -1] for play in plays[:-1]]
    first = [play.select(*keys)[:, 0] for play in plays[1:]]
    return torch.cat(last), torch.cat(first)


def _is_handed_on(last_P: TensorDictBase, first_P: TensorDictBase, most: int = 64) -> bool:
    """Whether all of the pairs are equal, and that is no coincidence.

    The chance that two observations are equal is taken from the pairs that do not belong together.
    """
    last_P, first_P = last_P[:most], first_P[:most]
    count = last_P.shape[0]
    equal_PP = torch.ones(count, count, dtype=torch.bool, device=last_P.device)
    for key in last_P.keys(True, True):
        equal_PP &= _any(last_P[key].unsqueeze(1) != first_P[key].unsqueeze(0)).logical_not()
    if count < _ENOUGH_RESETS or not equal_PP.diagonal().all():
        return False
    others = count * (count - 1)
    chance = (int(equal_PP.sum()) - count + 1) / (others + 1)
    return bool(chance**count < _CHANCE)


class _Comparison(NamedTuple):
    """One entry of the batch, as recorded and as replayed.

    Attributes:
        name: what it is, for the line that is printed.
        key: where it is recorded.
        replayed_NT: with further dimensions, like the next.
        recorded_NT: what collection wrote.
        cause: what it means if they differ.
    """

    name: str
    key: Any
    replayed_NT: Tensor
    recorded_NT: Tensor
    cause: str


def _check_network(
    config: TrainConfig, policy: ActorCritic, batch_NT: TensorDictBase, tolerance: float
) -> dict[str, float]:
    """Compares two replays with one another, then with what was recorded; returns the largest differences."""
    replayed_NT = _replay(config, policy, batch_NT)
    _check_repeats(replayed_NT, _replay(config, policy, batch_NT), tolerance)
    largest: dict[str, float] = {}
    wrong: list[tuple[int, int, _Comparison]] = []
    for entry in _comparisons(policy, batch_NT, replayed_NT, config.slice_len):
        difference_NT = _difference(entry.replayed_NT, entry.recorded_NT)
        largest[entry.name] = max(float(difference_NT.max()), largest.get(entry.name, 0.0))
        at = _first(difference_NT > tolerance)
        if at is not None:
            wrong.append((*at, entry))
    if wrong:
        # The earliest step is named; the cause is that of the first comparison, from which the others follow.
        n, t, entry = min(wrong, key=lambda found: found[1])
        raise ReplayError(f"{_sentence(entry, n, t, tolerance)} {wrong[0][2].cause}")
    return largest


def _replay(config: TrainConfig, policy: ActorCritic, batch_NT: TensorDictBase) -> TensorDictBase:
    """What the policy gives for the recorded observations and states, in minibatches like those of the update.

    Returns:
        ``log_prob`` of the recorded actions; in ``sequence`` actions, values, and the states where segments end, by
        sequence mode; in ``step`` the states that a single step from each recorded state leads to.
    """
    acting, actor = policy.acting(), policy.actor()
    slices_SK = batch_NT.select(*acting.in_keys, ACTION).reshape(-1, config.slice_len)
    replayed = []
    for chosen_SK in slices_SK.split(config.minibatch_slices):
        inputs_SK = chosen_SK.select(*acting.in_keys)
        # With gradients, though none are asked for: the update's own computation, which may be by another backend.
        with set_recurrent_mode(True), set_exploration_type(ExplorationType.DETERMINISTIC):
            log_prob_SK = actor.log_prob(chosen_SK.copy()).detach()
            sequence_SK = acting(inputs_SK.copy()).select(ACTION, VALUE, "next", strict=False).detach()
        with set_recurrent_mode(False), set_exploration_type(ExplorationType.DETERMINISTIC), torch.no_grad():
            step = acting(inputs_SK.flatten()).select("next", strict=False)
        entries = {"log_prob": log_prob_SK, "sequence": sequence_SK, "step": step.reshape(chosen_SK.batch_size)}
        replayed.append(TensorDict(entries, chosen_SK.batch_size))
    return torch.cat(replayed).reshape(batch_NT.batch_size)


def _check_repeats(once_NT: TensorDictBase, again_NT: TensorDictBase, tolerance: float) -> None:
    """Whether the same input gives the same output, and the deterministic policy the same action."""
    differing = [key for key in once_NT.keys(True, True) if _difference(once_NT[key], again_NT[key]).max() > tolerance]
    if any(ACTION not in key for key in differing):
        raise ReplayError(
            f"{_NOT_SEEN} the policy gives different outputs for the same observations and states, so dropout or "
            "another source of noise is on. Set dropout to 0, or call eval() on the module that has it."
        )
    if differing:
        raise ReplayError(
            "Evaluation would be a matter of luck: asked twice for its most probable action, the policy gives two "
            "different ones. Let the actor draw actions by a ProbabilisticTensorDictModule alone, which heeds "
            "set_exploration_type(ExplorationType.DETERMINISTIC)."
        )


def _comparisons(
    policy: ActorCritic, batch_NT: TensorDictBase, replayed_NT: TensorDictBase, slice_len: int
) -> Iterator[_Comparison]:
    sequence_NT = replayed_NT["sequence"]
    for key in policy.state_keys:
        recorded_NT = batch_NT["next", key]
        step = "The state was changed after the policy wrote it, for example zeroed: leave it to the policy."
        yield _Comparison("state", ("next", key), replayed_NT["step", "next", key], recorded_NT, step)
        # In sequence mode states are known where segments end only; elsewhere they are zero.
        ends = expand_as_right(_segment_ends(batch_NT, slice_len), recorded_NT)
        at_ends_NT = torch.where(ends, sequence_NT["next", key], recorded_NT)
        sequence = "In sequence mode the cell computes something else than step by step. Choose another backend."
        yield _Comparison("state", ("next", key), at_ends_NT, recorded_NT, sequence)
    network = (
        "The states are right, so the network around the cell has changed since, or looks at more than one step: batch "
        "normalisation, for example, or running statistics that are updated when it is called."
    )
    yield _Comparison("log-probability", LOG_PROB, replayed_NT["log_prob"], batch_NT[LOG_PROB], network)
    if batch_NT.get(VALUE) is not None:
        yield _Comparison("value", VALUE, sequence_NT[VALUE], batch_NT[VALUE], network)


def _segment_ends(batch_NT: TensorDictBase, slice_len: int) -> Tensor:
    ends_NT = batch_NT["next", "done"].squeeze(-1).clone()
    ends_NT[:, slice_len - 1 :: slice_len] = True
    return ends_NT


def _sentence(entry: _Comparison, n: int, t: int, tolerance: float) -> str:
    replayed, recorded = entry.replayed_NT[n, t].flatten(), entry.recorded_NT[n, t].flatten()
    worst = int(_difference(replayed, recorded).argmax())
    return (
        f"{_NOT_SEEN} {entry.key!r} of {_place(n, t)} was {float(recorded[worst]):.6g} when collected and is "
        f"{float(replayed[worst]):.6g} when replayed (tolerance {tolerance:.0e} of 1 + the recorded)."
    )


def _difference(replayed: Tensor, recorded: Tensor) -> Tensor:
    """Largest difference over the dimensions after the first two, relative to 1 + |recorded|; infinite for NaN."""
    recorded = recorded.double()
    difference = ((replayed.double() - recorded).abs() / (1 + recorded.abs())).nan_to_num(torch.inf)
    return difference.flatten(2).amax(-1) if difference.ndim > 2 else difference


def _any(mask: Tensor) -> Tensor:
    """Whether any entry is true, over the dimensions after the first two."""
    return mask.flatten(2).any(-1) if mask.ndim > 2 else mask


def _first(wrong_NT: Tensor) -> tuple[int, int] | None:
    """Environment and step of the earliest entry that is true."""
    found = wrong_NT.T.nonzero()
    return None if len(found) == 0 else (int(found[0, 1]), int(found[0, 0]))


def _place(n: int, t: int) -> str:
    return f"environment {n}, step {t},"
