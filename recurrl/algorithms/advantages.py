"""GAE from the values stored in the rollout, and V-trace from values that the current policy recomputes.

Shape legend: N environments, T steps of a row, B rows.
"""

from collections.abc import Callable
from operator import attrgetter

import torch
from tensordict import TensorDictBase
from tensordict.utils import expand_as_right
from torch import Tensor

from recurrl.algorithms.importance import check_shapes
from recurrl.errors import ConfigError
from recurrl.keys import ACTION, FINAL_UNKNOWN, LOG_PROB, OBSERVATION, VALUE
from recurrl.policy.policy import Policy, StepOutput
from recurrl.recurrent.linear_recurrence import scan_from_zero
from recurrl.runtime.statistics import masked, mean_and_std, summary


def gae(
    rows_NT: TensorDictBase, reward: Tensor, next_value: Tensor, gamma: float, lmbda: float, ratio: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Advantages A, and the value targets A + V, ``[N, T, 1]``: generalised advantages or, given ratios, V-trace.

    With the TD error δ and the ratio ρ, ``A[t] = min(1, ρ[t]) (δ[t] + γ λ A[t+1])``. Without ratios, these are the
    advantages of Schulman et al. 2016, https://arxiv.org/abs/1506.02438. With them, A + V is the target of Espeholt et
    al. 2018, https://arxiv.org/abs/1802.01561 (equation 1 with ρ̄ = c̄ = 1, and λ as in remark 2), and A is what their
    policy's gradient is weighted by, with λ too.

    Args:
        rows_NT: rows whose ``state_value`` is V, the value of the observation before each step. No advantage crosses
            the end of an episode.
        reward: ``[N, T, 1]``, like all other tensors.
        next_value: the value of the observation after each step, see :func:`next_values`.
        gamma: discount per step.
        lmbda: λ.
        ratio: ρ = π(a) / π_behaviour(a), where older weights collected the rows.

    Raises:
        ConfigError: the rows have no values.
        ValueError: a tensor has another shape.
    """
    value, done = _present(rows_NT.get(VALUE)), rows_NT["next", "done"]
    check_shapes("gae", reward=reward, next_value=next_value, ratio=ratio, state_value=value, done=done)
    error = reward + gamma * next_value - value
    carried = gamma * lmbda * (~done).to(value.dtype)
    if ratio is not None:
        weight = ratio.clamp(max=1.0)
        error, carried = weight * error, weight * carried
    advantage = discounted_sum(error, carried)
    return advantage, advantage + value


@torch.no_grad()
def reevaluate(rows_NT: TensorDictBase, policy: Policy) -> Tensor:
    """Re-evaluates rows of older weights in place, and returns the importance ratios ``[N, T, 1]`` for :func:`gae`.

    Runs the policy once over rows ``[N, T]``, from the states stored at their beginnings. Its log-probabilities and
    values replace those of the rows, and its states replace the next states at the ends of episodes and rows. The
    ratios are those of the policy's probabilities to the behaviour policy's.
    """
    output = policy.sequence(*policy.inputs(rows_NT))
    rows_NT.set(VALUE, output.value)
    ends_NT = segment_ends(rows_NT, rows_NT.batch_size[1])
    for key in policy.state_keys:
        then = rows_NT["next", key]
        rows_NT.set(("next", key), torch.where(expand_as_right(ends_NT, then), output.state[key], then))
    log_prob = output.distribution.log_prob(rows_NT[ACTION])
    ratio = (log_prob - rows_NT[LOG_PROB]).exp().unsqueeze(-1)
    rows_NT.set(LOG_PROB, log_prob)
    return ratio


def segment_ends(rows_NT: TensorDictBase, slice_len: int) -> Tensor:
    """``[N, T]``: true at the last step of each episode and of each slice of ``slice_len`` steps."""
    ends_NT: Tensor = rows_NT["next", "done"].squeeze(-1).clone()
    ends_NT[:, slice_len - 1 :: slice_len] = True
    return ends_NT


def discounted_sum(value_NT1: Tensor, factor_NT1: Tensor) -> Tensor:
    """``sum[t] = value[t] + factor[t] · sum[t+1]``."""
    return scan_from_zero(factor_NT1.flip(1), value_NT1.flip(1)).flip(1)


def standardized(advantage: Tensor, mask: Tensor | None = None) -> Tensor:
    """Advantages shifted and scaled to mean 0 and standard deviation 1 over the steps where the mask is true.

    Raises:
        ValueError: the mask is of another shape.
    """
    check_shapes("standardized", advantage=advantage, mask=mask)
    mean, std = mean_and_std(masked(advantage, mask))
    return (advantage - mean) / std.clamp(min=1e-4)


def advantage_metrics(advantage: Tensor) -> dict[str, float]:
    """Statistics of advantages; NaN if there are none."""
    return {f"advantage/{name}": value for name, value in summary(advantage)._asdict().items()}


@torch.no_grad()
def next_values(
    rows_NT: TensorDictBase, policy: Policy, value_of: Callable[[StepOutput], Tensor] = attrgetter("value")
) -> Tensor:
    """The value ``[N, T, 1]`` of the observation after each step; zero where the episode terminated.

    Within an episode it is the value stored at the next step. At truncations and at the ends of rows the critic
    computes it from the next observation and recurrent state, in one call for all of them. Where an environment does
    not give the last observation of a truncated episode, the value of the observation before it is used.

    Args:
        rows_NT: rows whose ``state_value`` is the critic's.
        policy: the policy that takes a step from each next observation.
        value_of: the critic: maps what :meth:`Policy.step` returns to values ``[B, 1]``.

    Raises:
        ConfigError: the rows have no values, or the policy has no critic.
        ValueError: the values in the rows are not ``[N, T, 1]``.
    """
    value, after = _present(rows_NT.get(VALUE)), rows_NT["next"]
    check_shapes("next_values", state_value=value, terminated=after["terminated"])
    result = torch.cat((value[:, 1:], torch.zeros_like(value[:, :1])), 1)
    bootstrap_NT = segment_ends(rows_NT, rows_NT.batch_size[1]) & ~after["terminated"].squeeze(-1)
    result[after["terminated"]] = 0.0
    if bootstrap_NT.any():
        # Without is_init: the next observation continues the episode.
        following = after.select(OBSERVATION, *policy.input_keys)[bootstrap_NT]
        state = {key: following[key] for key in policy.input_keys}
        result[bootstrap_NT] = _present(value_of(policy.step(following[OBSERVATION], state)))
    if FINAL_UNKNOWN in after:
        result = torch.where(after[FINAL_UNKNOWN] & ~after["terminated"], value, result)
    return result


def _present(values: Tensor | None) -> Tensor:
    if values is None:
        raise ConfigError(
            "gae and next_values must have a critic's values (got none). Declare critic_kind in the algorithm's "
            f"options, or write your own values into the rows as {VALUE} and pass your critic to next_values."
        )
    return values
