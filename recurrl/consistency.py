"""The consistency check: does the update see what the rollout saw?

First the batch itself is checked: episode starts, the chain from step to step, observations after resets. Then the
policy is rerun over it, in sequences and step by step, and its outputs are compared with the recorded ones.

Shape legend: N environments, T steps of a row, S slices, K steps of a slice, P pairs of observations around a reset.
"""

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.utils import expand_as_right
from torch import Tensor

from recurrl.algorithms.advantages import segment_ends
from recurrl.config import TrainConfig
from recurrl.envs.batched import episodes_ended
from recurrl.envs.making import make_batched_env, random_action
from recurrl.errors import ConsistencyError
from recurrl.keys import ACTION, INSERTED, IS_INIT, LOG_PROB, OBSERVATION, PREVIOUS_REWARD, PRIVILEGED, VALUE, path_of
from recurrl.policy import Policy
from recurrl.recurrent import precision

TOLERANCE = {"ieee": 1e-4, "tf32x3": 1e-3, "tf32": 3e-2, "bf16": 2e-1}
"""By precision, the difference that rounding may cause, relative to 1 + |recorded|.

Single steps and sequences add the same products in different orders. In float32, whose unit roundoff is 6e-8,
differences are 1e-7 to 1e-5; a wrong state causes 1e-2 and more. The unit roundoffs of tf32 and bf16 are 5e-4 and 4e-3.
"""

REPEATED = 1e-4
"""The largest difference, relative to 1 + |value|, between two runs of the same computation, at any precision."""

NOT_SEEN = "The update would not see what the rollout saw:"
MIN_RESETS = 5
_STEPS = (
    "Repeating the single step does not reproduce it. Either a custom cell's step depends on other rows of the batch "
    "or on what it kept from earlier calls: let it depend only on its arguments and options. Or something changed the "
    "state after the policy wrote it (zeroed it, for example), or the weights: leave both alone during collection."
)
_SEQUENCES = "Sequences and steps of the cell differ. Choose another backend; a custom step may not mix rows."
_NETWORK = (
    "The states are correct, so the network around the cell has changed since, or depends on more than one step: batch "
    "normalisation, for example, or running statistics updated by each call."
)
COINCIDENCE = 1e-6
"""Below this probability, equal observations around all resets are not a coincidence."""


def check_consistency(policy: Policy, batch_NT: TensorDictBase, config: TrainConfig, resumed: bool = False) -> str:
    """Replays the first batch of a run, and returns a line with the largest differences from the recorded entries.

    Log-probabilities and values are replayed as in the update: in sequence mode, in minibatches of slices, from the
    states stored at their beginnings. The final states of these sequences, and those after single steps from every
    stored state, must equal the recorded next states; each of these must be the state stored at the next step. The
    states are then right at all steps, and no error can hide by growing slowly. Policy, batch and random number
    generators stay as they are.

    Args:
        policy: the behaviour policy of the batch, with unchanged weights.
        batch_NT: the first rollout.
        config: the run's configuration, or this rank's share of it.
        resumed: rows may continue episodes of an earlier run; otherwise each must begin with an episode.

    Raises:
        ConsistencyError: an entry differs; the message has the first such environment and step, both values, and a
            likely cause.
        KeyError: the rollout lacks an entry that the update needs.
    """
    after = batch_NT["next"].keys(True, True)
    observed = [key for key in batch_NT.select(OBSERVATION).keys(True, True) if key in after]
    _check_starts(batch_NT, resumed)
    _check_chain(
        batch_NT, observed, "The environment or one of its transforms returns another observation than its step."
    )
    _check_chain(
        batch_NT,
        policy.input_keys,
        "The recurrent state was replaced (zeroed, for example) mid-episode. The collector must write at each step the "
        "state that the policy returned at the one before.",
    )
    # The CPU's generator is always saved; a GPU's must be named.
    with torch.random.fork_rng([policy.device] if policy.device.type == "cuda" else []):
        # The previous reward, which recurrl adds, is zero after a reset.
        resets = _check_resets(config, batch_NT, [key for key in observed if path_of(key)[-1] != PREVIOUS_REWARD])
        tolerance = TOLERANCE[precision.resolve(config.precision, policy.device)]
        differences = check_network(policy, batch_NT, config, tolerance)
    figures = ", ".join(f"{name} {value:.1e}" for name, value in differences.items())
    return (
        f"consistency check passed: the update reproduces the rollout in {batch_NT.numel()} frames with {resets} "
        f"reset{'s' * (resets != 1)}; largest differences: {figures} (tolerance {tolerance:.0e})"
    )


def _check_starts(batch_NT: TensorDictBase, resumed: bool) -> None:
    """Checks that episode starts are marked exactly where collecting began and after each episode's end.

    In a resumed run, which may continue episodes, a row's first step may be marked or not.
    """
    marked_NT1, done_NT1 = batch_NT[IS_INIT], batch_NT["next", "done"]
    began_N11 = marked_NT1[:, :1] if resumed else torch.ones_like(done_NT1[:, :1])
    started_NT1 = torch.cat((began_N11, done_NT1[:, :-1]), 1)
    advice = "The collector must write True at the first step of each episode, and False at all others."
    wrong_NT = (marked_NT1 != started_NT1).squeeze(-1)
    _reject_first(wrong_NT, IS_INIT, marked_NT1, started_NT1, f"by the ends of episodes. {advice}")


def _check_chain(batch_NT: TensorDictBase, keys: Sequence[Any], cause: str) -> None:
    """Checks that within episodes each step begins with the result of the previous one."""
    continues_NT = ~batch_NT["next", "done"].squeeze(-1)[:, :-1]
    for key in keys:
        led_to = batch_NT[key].clone()
        led_to[:, 1:][continues_NT] = batch_NT["next", key][:, :-1][continues_NT]
        wrong_NT = _any(batch_NT[key] != led_to)
        _reject_first(wrong_NT, key, batch_NT[key], led_to, f"after the previous step of its episode. {cause}")


def _check_resets(config: TrainConfig, batch_NT: TensorDictBase, keys: Sequence[Any]) -> int:
    """Checks that episodes do not begin with the last observation of the one before; returns the number of resets."""
    # An inserted step, which shows an older observation, may lie between.
    later = 2 if INSERTED in batch_NT["next"].keys() else 1  # noqa: SIM118
    ended_NT = episodes_ended(batch_NT["next"]).squeeze(-1)[:, :-later]
    last_P, first_P = batch_NT["next"].select(*keys)[:, :-later][ended_NT], batch_NT.select(*keys)[:, later:][ended_NT]
    resets = len(last_P)
    if resets < MIN_RESETS:
        last_P, first_P = _forced_resets(config, keys)
    if _coincidence(last_P, first_P) < COINCIDENCE:
        raise ConsistencyError(
            f"{NOT_SEEN} after each of {len(last_P)} resets the observation {keys} equals the last one of the "
            "previous episode, bit for bit. The environment returns a wrong observation on reset, or resets itself in "
            "its last step: have reset return the new episode's first observation, and disable automatic resets. If "
            "episodes really continue where the last one ended, set consistency_check=false."
        )
    return resets


def _forced_resets(config: TrainConfig, keys: Sequence[Any]) -> tuple[TensorDictBase, TensorDictBase]:
    """The observations before and after forced resets, from new copies of the environment with random actions."""
    # As many as a worker has, because games of several agents come in whole rows of agents.
    count = config.env.num_envs // getattr(config.collector, "num_workers", 1)
    before, after = [], []
    with closing(make_batched_env(config.env, count, config.seed, privileged=(OBSERVATION, PRIVILEGED) in keys)) as env:
        observed = env.reset_tensors(None)
        for _ in range(MIN_RESETS):
            last = env.step_tensors(random_action(env, observed))
            observed = env.reset_tensors(None)
            before.append(TensorDict({key: last[key] for key in keys}, env.batch_size))
            after.append(TensorDict({key: observed[key] for key in keys}, env.batch_size))
    return torch.cat(before), torch.cat(after)


def _coincidence(last_P: TensorDictBase, first_P: TensorDictBase, most: int = 64) -> float:
    """The probability that the observations before and after each reset are equal by chance; 1 if any differ.

    The probability that two observations are equal is estimated from those of different resets.
    """
    last_P, first_P = last_P[:most], first_P[:most]
    count = len(last_P)
    equal_PP = torch.ones(count, count, dtype=torch.bool, device=last_P.device)
    for key in last_P.keys(True, True):
        equal_PP &= ~_any(last_P[key].unsqueeze(1) != first_P[key].unsqueeze(0))
    if not equal_PP.diagonal().all():
        return 1.0
    chance = (int(equal_PP.sum()) - count + 1) / (count * (count - 1) + 1)
    return float(chance**count)


def check_network(policy: Policy, batch_NT: TensorDictBase, config: TrainConfig, tolerance: float) -> dict[str, float]:
    """Compares two replays with each other, then with the recorded entries; returns the largest difference by name."""
    replayed_NT, again_NT = (_replay(policy, batch_NT, config) for _ in range(2))
    _check_repeats(replayed_NT, again_NT)
    # The states come first, because a difference in them causes the others.
    comparisons: list[tuple[str, Any, Tensor, str]] = []
    for key in policy.state_keys:
        recorded_NT = batch_NT["next", key]
        # In sequence mode states are known at the ends of segments only.
        ends = expand_as_right(segment_ends(batch_NT, config.slice_len), recorded_NT)
        at_ends_NT = torch.where(ends, replayed_NT["sequence", key], recorded_NT)
        comparisons.append(("state", ("next", key), replayed_NT["step", key], _STEPS))
        comparisons.append(("state", ("next", key), at_ends_NT, _SEQUENCES))
    for name, key in (("log-probability", LOG_PROB), ("value", VALUE)):
        if key in replayed_NT:
            comparisons.append((name, key, replayed_NT[key], _NETWORK))
    largest: dict[str, float] = {}
    for name, key, value_NT, cause in comparisons:
        difference_NT = _difference(value_NT, batch_NT[key])
        largest[name] = max(float(difference_NT.max()), largest.get(name, 0.0))
        where = f"when replayed (tolerance {tolerance:.0e} relative to 1 + |recorded|)"
        _reject_first(difference_NT > tolerance, key, batch_NT[key], value_NT, f"{where}. {cause}")
    return largest


def _replay(policy: Policy, batch_NT: TensorDictBase, config: TrainConfig) -> TensorDictBase:
    """The policy's outputs for the recorded observations and states, in minibatches like those of the update.

    Returns:
        The log-probabilities of the recorded actions, the values, and as ``sequence`` the states at the ends of
        segments, by :meth:`Policy.sequence`. The deterministic action and as ``step`` the next state of a single step
        from each recorded state.
    """
    replayed = []
    for chosen_SK in batch_NT.reshape(-1, config.slice_len).split(config.minibatch_slices):
        # With gradients enabled, so that the backend is the one of the update.
        output = policy.sequence(*policy.inputs(chosen_SK))
        with torch.no_grad():
            step = policy.step(*policy.inputs(chosen_SK.reshape(-1)))
        after = {key: step.state[key] for key in policy.state_keys}
        entries = TensorDict({ACTION: step.action, "step": after}, [chosen_SK.numel()]).reshape(chosen_SK.batch_size)
        entries[LOG_PROB], entries["sequence"] = output.distribution.log_prob(chosen_SK[ACTION]), dict(output.state)
        if output.value is not None:
            entries[VALUE] = output.value
        replayed.append(entries.detach())
    return torch.cat(replayed).reshape(batch_NT.batch_size)


def _check_repeats(once_NT: TensorDictBase, again_NT: TensorDictBase) -> None:
    """Rejects a policy whose outputs or deterministic actions differ between two calls with the same inputs."""
    differing = [key for key in once_NT.keys(True, True) if _difference(once_NT[key], again_NT[key]).max() > REPEATED]
    if differing:
        raise ConsistencyError(
            f"{NOT_SEEN} two calls of the policy with the same observations and states differ in {differing}, so "
            "dropout or another source of noise is active, or a custom part keeps something between calls, such as a "
            "counter on self. Set dropout to 0, or call eval() on the module that has it; a custom part may use only "
            "its arguments. The mode of an actor's distribution may not draw random numbers either."
        )


def _reject_first(wrong_NT: Tensor, key: Any, recorded_NT: Tensor, other_NT: Tensor, where: str) -> None:
    """Raises for the earliest step at which ``wrong_NT`` is true, with the numbers of an entry that differ most."""
    places = wrong_NT.T.nonzero()
    if len(places) == 0:
        return
    t, n = places[0].tolist()
    recorded, other = recorded_NT[n, t].flatten(), other_NT[n, t].flatten()
    worst = _difference(other, recorded).argmax()
    raise ConsistencyError(
        f"{NOT_SEEN} {key!r} of environment {n}, step {t}, is {recorded[worst].item():.6g} in the rollout, but "
        f"{other[worst].item():.6g} {where}"
    )


def _any(mask: Tensor) -> Tensor:
    """True where any entry is true, over the dimensions after the first two."""
    return mask.flatten(2).any(-1) if mask.ndim > 2 else mask


def _difference(other: Tensor, recorded: Tensor) -> Tensor:
    """Largest difference over the dimensions after the first two, relative to 1 + |recorded|; infinite for NaN."""
    recorded = recorded.double()
    difference = ((other.double() - recorded).abs() / (1 + recorded.abs())).nan_to_num(torch.inf)
    return difference.flatten(2).amax(-1) if difference.ndim > 2 else difference
