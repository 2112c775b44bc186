"""Groups: their members' episodes start from the same states, row by row."""

import gymnasium
import numpy as np
import pytest
import torch
from collected import fresh_policy, rollouts
from hypothesis import given, settings
from hypothesis import strategies as st
from rejections import error_of

from recurrl.build import make_collector, make_policy_for
from recurrl.envs.inline import InlineEnv

GRPO = (
    *("algorithm=grpo", "algorithm.group_size=2", "env.num_envs=4", "frames_per_batch=160"),
    *("slice_len=8", "minibatch_slices=4", "cell.hidden_size=8", "encoder.sizes=[8]"),
)


class Clock(gymnasium.Env):
    """Shows the seed of its episode, and ends after that many steps."""

    observation_space = gymnasium.spaces.Box(0, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, ends):
        self.ends = iter(ends)

    def reset(self, *, seed=None, options=None):
        self.seed = np.array([seed or 0], np.float64)
        return self.seed, {}

    def step(self, action):
        return self.seed, 0.0, next(self.ends), False, {}


@settings(max_examples=50, deadline=None)
@given(ends=st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=2, max_size=2))
def test_members_share_seeds_that_no_other_group_row_or_episode_has(ends):
    """Two members and one of another group, over two rows of three steps."""
    env = InlineEnv([Clock(each) for each in (ends[0], ends[1], ends[0])], "Clock-v0")
    env.start_in_groups(2, seed=5)
    found = {}
    for row in range(2):
        episodes, done = [-1] * 3, torch.ones(3, 1, dtype=torch.bool)
        shown = env.reset_tensors(None)
        for step in range(4):
            for i in done.flatten().nonzero().flatten().tolist():
                episodes[i] += 1
                found.setdefault((i // 2, row, episodes[i]), set()).add(float(shown["observation"][i]))
            if step < 3:
                done = env.step_tensors(torch.zeros(3, dtype=torch.int64))["done"]
                shown = env.reset_tensors(done)
    assert all(len(seeds) == 1 for seeds in found.values())
    assert len(set.union(*found.values())) == len(found)


def test_the_nth_episodes_of_a_groups_rows_start_from_the_same_state_and_those_of_others_do_not(compose):
    first, config = [], compose(*GRPO)
    for batch in rollouts(config, fresh_policy(config), 3):
        assert batch["is_init"][:, 0].all()
        assert batch["recurrent_state"][:, 0].abs().max() == 0
        starts = [row["observation"][row["is_init"].squeeze(-1)] for row in batch]
        for a, b in ((0, 1), (2, 3)):
            both = min(len(starts[a]), len(starts[b]))
            assert both > 0
            assert torch.equal(starts[a][:both], starts[b][:both])
        first += [starts[0][0], starts[2][0]]
    assert len(torch.stack(first).unique(dim=0)) == 6


class Lottery(gymnasium.Env):
    """Draws something from a generator of its own: what is seen at a reset, or only what follows."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, hidden):
        self.hidden = hidden
        self.drawn = np.random.default_rng()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.drawn.uniform(-1, 1, 2).astype(np.float32)
        return (np.zeros(2, np.float32) if self.hidden else self.state), {}

    def step(self, action):
        return self.state, 0.0, False, False, {}


@pytest.mark.parametrize(("hidden", "when"), [(False, "after reset 1"), (True, "1 steps after reset 1")])
def test_an_environment_that_ignores_reset_seeds_is_rejected(hidden, when, compose, register):
    config = compose(*GRPO, "env=gym", f"env.id={register(Lottery)}", f"+env.kwargs.hidden={hidden}")
    assert error_of(make_collector, config, make_policy_for(config)) == (
        "env.id=Registered-v0 ignores reset seeds: two copies with the same seeds and actions differ in 'observation' "
        f"{when}. algorithm=grpo compares episodes that start from the same state. Have the environment draw from the "
        "generator seeded by reset(seed=...) (Gymnasium's self.np_random), or choose algorithm=ppo."
    )


@pytest.mark.parametrize("env", ["cartpole_no_velocity", "pendulum_no_velocity", "repeat_first", "repeat_previous"])
def test_environments_that_use_reset_seeds_are_accepted(env, compose):
    config = compose(*GRPO, f"env={env}")
    for package in config.env.packages:
        pytest.importorskip(package)
    make_collector(config, make_policy_for(config)).shutdown()
