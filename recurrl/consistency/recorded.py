"""Checks of the batch alone: episode starts, the chain from step to step, observations after resets.

Shape legend: N environments, T steps of a row, P pairs of observations around a reset.
"""

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from recurrl.config import EnvConfig
from recurrl.envs import make_env
from recurrl.errors import ConsistencyError
from recurrl.keys import ACTION, HIDDEN, LOG_PROB, OBSERVATION, VALUE
from recurrl.recurrent.module.keys import IS_INIT

NOT_SEEN = "The update would not see what the rollout saw:"
ENOUGH_RESETS = 5
COINCIDENCE = 1e-6
"""Below this probability, equal observations around all resets are not a coincidence."""


def check_present(batch_NT: TensorDictBase, state_keys: Sequence[Any]) -> None:
    """Checks that the batch marks episode starts and holds the recurrent states."""
    if state_keys and batch_NT.get(IS_INIT) is None:
        raise ConsistencyError(
            f"{NOT_SEEN} the batch has no entry {IS_INIT!r}, so the policy's state would leak from one episode into "
            "the next. Append torchrl.envs.InitTracker() to the environment, or build it with recurrl.envs.make_env."
        )
    for key in state_keys:
        if batch_NT.get(key) is None or batch_NT["next"].get(key) is None:
            raise ConsistencyError(
                f"{NOT_SEEN} the batch does not hold the recurrent state {key!r}, so the policy acted without memory. "
                "Append module.make_tensordict_primer() to the environment, or build it with recurrl.envs.make_env."
            )


def check_finite(batch_NT: TensorDictBase, keys: Sequence[Any]) -> None:
    """Checks that the policy's inputs and outputs are finite."""
    acted_NT = batch_NT.select(*keys, ACTION, LOG_PROB, VALUE, strict=False)
    for key, value in acted_NT.items(True, True):
        at = first(any_of(~value.isfinite()))
        if at is not None:
            raise ConsistencyError(
                f"{NOT_SEEN} {key!r} of {place(*at)} is not finite. If it comes from the environment, clip or mask it "
                "there; if from the policy, its weights or learning rate are too large."
            )


def check_marks(batch_NT: TensorDictBase, resumed: bool) -> None:
    """Checks that episode starts are marked exactly at the start of collection and after each episode's end.

    In a resumed run, which may continue episodes, a row's first step may be marked or not.
    """
    marks = batch_NT.get(IS_INIT)
    if marks is None:
        return
    is_init_NT, done_NT = marks.squeeze(-1), batch_NT["next", "done"].squeeze(-1)
    began_N1 = is_init_NT[:, :1] if resumed else torch.ones_like(done_NT[:, :1])
    started_NT = torch.cat((began_N1, done_NT[:, :-1]), 1)
    at = first(is_init_NT != started_NT)
    if at is not None:
        marked, not_marked = ("is marked", "no episode starts") if is_init_NT[at] else ("is not marked", "one starts")
        raise ConsistencyError(
            f"{NOT_SEEN} {place(*at)} {marked} by {IS_INIT!r} as the start of an episode, but {not_marked} there. "
            "Let one torchrl.envs.InitTracker(), and nothing else, write that entry."
        )


def check_chain(batch_NT: TensorDictBase, keys: Sequence[Any], state_keys: Sequence[Any]) -> None:
    """Checks that within episodes each step begins with the result of the previous one."""
    continues_NT = ~batch_NT["next", "done"].squeeze(-1)[:, :-1]
    for key in keys:
        after = batch_NT["next"].get(key)
        if after is None:
            continue
        now_NT, before_NT = batch_NT[key][:, 1:], after[:, :-1]
        at = first(any_of(now_NT != before_NT) & continues_NT)
        if at is not None:
            cause = (
                "The recurrent state was replaced (zeroed, for example) mid-episode: leave it to the policy and the "
                "primer, module.make_tensordict_primer()."
                if key in state_keys
                else "The environment or one of its transforms returns a different observation than its step did."
            )
            difference = float((now_NT[at].double() - before_NT[at].double()).abs().max())
            raise ConsistencyError(
                f"{NOT_SEEN} {key!r} of {place(at[0], at[1] + 1)} is not what the previous step of the episode led to "
                f"(difference {difference:.2g}). {cause}"
            )


def check_resets(env: EnvConfig, seed: int, batch_NT: TensorDictBase, keys: Sequence[Any]) -> int:
    """Checks that episodes do not begin with the last observation of the one before; returns the number of resets."""
    keys = [key for key in keys if batch_NT["next"].get(key) is not None]
    ended_NT = batch_NT["next", "done"].squeeze(-1)[:, :-1]
    last_P, first_P = batch_NT["next"].select(*keys)[:, :-1][ended_NT], batch_NT.select(*keys)[:, 1:][ended_NT]
    resets = last_P.shape[0]
    if resets < ENOUGH_RESETS:
        last_P, first_P = _forced_resets(env, seed, keys)
    if _is_not_reset(last_P, first_P):
        raise ConsistencyError(
            f"{NOT_SEEN} after each of {last_P.shape[0]} resets the observation {keys} equals the last one of the "
            "previous episode, bit for bit. The environment returns a wrong observation on reset, or resets itself in "
            "its last step: have reset return the new episode's first observation, and disable automatic resets. If "
            "episodes really continue where the last one ended, give consistency_check=false."
        )
    return resets


def _forced_resets(config: EnvConfig, seed: int, keys: Sequence[Any]) -> tuple[TensorDictBase, TensorDictBase]:
    """The observations before and after resets of two new copies of the environment, with random actions."""
    with closing(make_env(config, 2, seed, reveals=(OBSERVATION, HIDDEN) in keys)) as env:
        rollouts = [env.rollout(3, break_when_any_done=False) for _ in range(ENOUGH_RESETS)]
    before = [rollout["next"].select(*keys)[:, -1] for rollout in rollouts[:-1]]
    after = [rollout.select(*keys)[:, 0] for rollout in rollouts[1:]]
    return torch.cat(before), torch.cat(after)


def _is_not_reset(last_P: TensorDictBase, first_P: TensorDictBase, most: int = 64) -> bool:
    """True if the observations before and after each reset are equal, and that is not a coincidence.

    The probability that two observations are equal is estimated from those of different resets.
    """
    last_P, first_P = last_P[:most], first_P[:most]
    count = last_P.shape[0]
    equal_PP = torch.ones(count, count, dtype=torch.bool, device=last_P.device)
    for key in last_P.keys(True, True):
        equal_PP &= any_of(last_P[key].unsqueeze(1) != first_P[key].unsqueeze(0)).logical_not()
    if count < ENOUGH_RESETS or not equal_PP.diagonal().all():
        return False
    others = count * (count - 1)
    chance = (int(equal_PP.sum()) - count + 1) / (others + 1)
    return bool(chance**count < COINCIDENCE)


def any_of(mask: Tensor) -> Tensor:
    """True where any entry is true, over the dimensions after the first two."""
    return mask.flatten(2).any(-1) if mask.ndim > 2 else mask


def first(wrong_NT: Tensor) -> tuple[int, int] | None:
    """Environment and step of the earliest true entry; None if no entry is true."""
    found = wrong_NT.T.nonzero()
    return None if len(found) == 0 else (int(found[0, 1]), int(found[0, 0]))


def place(n: int, t: int) -> str:
    """A location in words, to be followed by a verb."""
    return f"environment {n}, step {t},"
