"""Advantages relative to a group, against a definition in plain Python."""

import math
from itertools import pairwise
from statistics import fmean, stdev
from types import SimpleNamespace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from recurrl.algorithms.grpo import EPISODE_LOSS_STEPS, add_group_advantages
from recurrl.keys import ADVANTAGE, LOSS_MASK


def options(size=2, gamma=1.0, advantage="outcome", std=True, drop=True):
    return SimpleNamespace(group_size=size, gamma=gamma, advantage=advantage, divide_by_std=std, drop_flat_groups=drop)


def rows_of(starts, steps):
    is_init = torch.zeros(len(starts), steps, 1, dtype=torch.bool)
    for row, begun in enumerate(starts):
        is_init[row, begun] = True
    return TensorDict({"is_init": is_init}, [len(starts), steps])


def horizons(starts, steps, size):
    """Of each group and episode index, over how many steps which rows are compared."""
    compared = {}
    for group in range(len(starts) // size):
        members = range(group * size, (group + 1) * size)
        for index in range(max(len(starts[row]) for row in members)):
            begun = sorted((starts[row][index], row) for row in members if index < len(starts[row]))
            best = (0, 0)
            for count in range(2, len(begun) + 1):
                frames = count * (steps - begun[count - 1][0])
                if frames > best[0]:
                    best = (frames, count)
            if best[1]:
                latest = begun[best[1] - 1][0]
                compared[group, index] = steps - latest, [row for start, row in begun if start <= latest]
    return compared


def plain(starts, rewards, size, gamma, kind, std, drop):
    """Advantages, and which steps count."""
    steps = len(rewards[0])
    advantages = [[0.0] * steps for _ in rewards]
    counted = [[False] * steps for _ in rewards]
    for (_, index), (horizon, members) in horizons(starts, steps, size).items():
        to_go = {}
        for row in members:
            begin = starts[row][index]
            end = starts[row][index + 1] if index + 1 < len(starts[row]) else steps
            cut = rewards[row][begin : min(end, begin + horizon)]
            to_go[row] = [sum(gamma**k * r for k, r in enumerate(cut[t:])) for t in range(len(cut))]
        relative = {row: [0.0] * len(values) for row, values in to_go.items()}
        for t in range(horizon):
            peers = [row for row in members if t < len(to_go[row])]
            at, others = (0, members) if kind == "outcome" else (t, peers)
            compared = {row: to_go[row][at] for row in others}
            values = list(compared.values())
            if not values or max(values) == min(values):
                continue
            for row in peers:
                relative[row][t] = (compared[row] - fmean(values)) / (stdev(values) if std else 1.0)
        flat = all(value == 0 for values in relative.values() for value in values)
        for row, values in relative.items():
            for t, value in enumerate(values):
                advantages[row][starts[row][index] + t] = value
                counted[row][starts[row][index] + t] = not (drop and flat)
    return advantages, counted


KINDS = st.sampled_from(["outcome", "process"])
CHOICES = st.tuples(st.integers(2, 4), st.sampled_from([1.0, 0.9]), KINDS, st.booleans(), st.booleans())
"""The size of groups, gamma, and the other options."""


@settings(max_examples=100, deadline=None)
@given(data=st.data(), groups=st.integers(1, 3), steps=st.integers(1, 12), chosen=CHOICES)
def test_group_advantages_equal_the_definition(data, groups, steps, chosen):
    rows = groups * chosen[0]
    later = st.sets(st.integers(1, steps - 1), max_size=4) if steps > 1 else st.just(())
    starts = [[0, *sorted(data.draw(later))] for _ in range(rows)]
    rewards = [[float(data.draw(st.integers(-2, 2))) for _ in range(steps)] for _ in range(rows)]
    batch = rows_of(starts, steps)
    add_group_advantages(batch, torch.tensor(rewards, dtype=torch.float64), options(*chosen))
    advantages, counted = plain(starts, rewards, *chosen)
    assert batch[LOSS_MASK].squeeze(-1).tolist() == counted
    for row, begun in enumerate(starts):
        for begin, end in pairwise([*begun, steps]):
            assert set(batch[EPISODE_LOSS_STEPS][row, begin:end].flatten().tolist()) == {sum(counted[row][begin:end])}
    expected = torch.tensor(advantages, dtype=torch.float64)
    torch.testing.assert_close(batch[ADVANTAGE].squeeze(-1), expected, rtol=1e-9, atol=1e-9)


def test_a_group_without_spread_has_no_advantage_and_is_counted_as_dropped():
    batch = rows_of([[0], [0], [0], [0]], steps=3)
    reward = torch.tensor([[0.1, 0.2, 0.3]] * 2 + [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    for drop in (False, True):
        metrics = add_group_advantages(batch, reward, options(drop=drop))
        assert (metrics["group/groups"], metrics["group/without_spread"], metrics["group/dropped"]) == (2, 1, drop)
        assert batch[ADVANTAGE][:2].abs().max() == 0
        assert batch[LOSS_MASK].flatten(1)[:, 0].tolist() == [not drop, not drop, True, True]
    half = math.sqrt(0.5)
    torch.testing.assert_close(batch[ADVANTAGE][2:].flatten(1), torch.tensor([[half] * 3, [-half] * 3]))


def test_a_step_that_the_environment_inserted_does_not_count():
    batch = rows_of([[0, 2, 3], [0, 2, 3]], steps=5)
    batch[LOSS_MASK] = torch.tensor([True, True, False, True, True]).expand(2, 5).unsqueeze(-1).clone()
    add_group_advantages(batch, torch.randn(2, 5), options(drop=False))
    assert batch[LOSS_MASK].squeeze(-1).tolist() == [[True, True, False, True, True]] * 2


def test_rewards_that_differ_in_their_last_digits_alone_are_no_spread():
    batch = rows_of([[0], [0]], steps=3)
    reward = torch.tensor([[0.1, 0.2, 0.3], [0.3, 0.2, 0.1]], dtype=torch.float64)
    assert add_group_advantages(batch, reward, options())["group/dropped"] == 1
    assert not batch[LOSS_MASK].any()
