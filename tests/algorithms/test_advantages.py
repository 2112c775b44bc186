"""Advantages against a plain-Python definition that knows terminations and truncations: GAE has ratios of one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from recurrl.algorithms.advantages import gae, next_values, standardized
from recurrl.algorithms.importance import clipped_surrogate, mean_of
from recurrl.policy.policy import StepOutput

GAMMA = 0.9
CONTINUES, TERMINATED, TRUNCATED = range(3)


def plain_vtrace(rewards, values, bootstraps, ends, ratios, lmbda):
    """One row of targets and weighted advantages: the sum of equation 1 of Espeholt et al. 2018, with λ c for c.

    v_s = V(x_s) + Σ_t γ^(t−s) (Π_{i<t} λ min(1, ratio_i)) min(1, ratio_t) (r_t + γ V(x_t+1) − V(x_t)), to the end of
    the episode or row.
    """
    steps = len(rewards)
    targets, errors = list(values), []
    for t in range(steps):
        cut = ends[t] != CONTINUES or t == steps - 1
        following = 0.0 if ends[t] == TERMINATED else bootstraps[t] if cut else values[t + 1]
        errors.append(rewards[t] + GAMMA * following - values[t])
    for s in range(steps):
        trace = 1.0
        for t in range(s, steps):
            targets[s] += trace * min(1.0, ratios[t]) * errors[t]
            if ends[t] != CONTINUES:
                break
            trace *= GAMMA * lmbda * min(1.0, ratios[t])
    advantages = errors[:]
    for s in range(steps - 1):
        if ends[s] == CONTINUES:
            advantages[s] += GAMMA * lmbda * (targets[s + 1] - values[s + 1])
    advantages = [min(1.0, ratio) * advantage for ratio, advantage in zip(ratios, advantages, strict=True)]
    return targets, advantages


class ValueOfObservation:
    """Stands in for a policy: the value of an observation is the observation."""

    input_keys = ()

    def step(self, observation, *_):
        return StepOutput(None, observation, observation, {}, None, observation)


@st.composite
def rows_with_ends(draw):
    """Rows, their rewards, and both as lists: rewards, values, bootstraps and ends of each row."""
    rows, steps = draw(st.integers(1, 4)), draw(st.integers(1, 12))
    count = rows * steps
    numbers = st.lists(st.floats(-5, 5, width=32), min_size=count, max_size=count)
    rewards, values, afters = (torch.tensor(draw(numbers)).double().reshape(rows, steps) for _ in range(3))
    kinds = st.lists(st.sampled_from((CONTINUES, TERMINATED, TRUNCATED)), min_size=count, max_size=count)
    ends = torch.tensor(draw(kinds)).reshape(rows, steps)
    done, terminated = (ends != CONTINUES).unsqueeze(-1), (ends == TERMINATED).unsqueeze(-1)
    after = {"observation": afters.unsqueeze(-1), "done": done, "terminated": terminated}
    batch = TensorDict({"state_value": values.unsqueeze(-1), "next": after}, [rows, steps])
    return batch, rewards, list(zip(*(x.tolist() for x in (rewards, values, afters, ends)), strict=True))


@pytest.mark.parametrize("on_policy", [True, False])
@settings(max_examples=100, deadline=None)
@given(rollout=rows_with_ends(), lmbda=st.sampled_from((0.0, 0.8, 1.0)), seed=st.integers(0, 1000))
def test_advantages_and_targets_equal_the_definition(on_policy, rollout, lmbda, seed):
    batch, rewards, lists = rollout
    log_ratio = torch.randn(rewards.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    ratio = (log_ratio * (not on_policy)).exp()
    ratios = None if on_policy else ratio.unsqueeze(-1)
    after = next_values(batch, ValueOfObservation())
    advantage, target = gae(batch, rewards.unsqueeze(-1), after, GAMMA, lmbda, ratios)
    plain = [plain_vtrace(*row, of_row, lmbda) for row, of_row in zip(lists, ratio.tolist(), strict=True)]
    expected = torch.tensor(plain, dtype=torch.float64).unsqueeze(-1).unbind(1)
    torch.testing.assert_close((target, advantage), expected, rtol=1e-9, atol=1e-9)


FLAT, STEPS = torch.ones(8, 8), torch.ones(8, 8, 1)  # as many rows as steps, so that torch would broadcast them
ROWS = TensorDict({"state_value": STEPS, "next": {"done": STEPS > 1, "terminated": STEPS > 1}}, [8, 8])
BROADCAST = {
    "gae": lambda: gae(ROWS, FLAT, STEPS, GAMMA, 1.0),
    "next_values": lambda: next_values(ROWS.clone().set("state_value", FLAT), ValueOfObservation()),
    "standardized": lambda: standardized(STEPS, FLAT > 0),
    "clipped_surrogate.* torch's Independent": lambda: clipped_surrogate(FLAT, STEPS, (-0.2, 0.2)),
    "mean_of.*value .8, 8., mask": lambda: mean_of(FLAT, STEPS),
    "mean_of.*value .8, 8, 8": lambda: mean_of(FLAT * STEPS, None),
}


@pytest.mark.parametrize("function", BROADCAST)
def test_tensors_that_would_be_broadcast_are_an_error_with_their_shapes(function):
    with pytest.raises(ValueError, match=f"The tensors of {function}"):
        BROADCAST[function]()
