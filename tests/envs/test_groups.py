"""Groups: their members' episodes start from the same states, row by row."""

import gymnasium
import numpy as np
import pytest
import torch
from collected import fresh_policy, rollouts
from counting_env import Counting
from rejections import error_of

from recurrl.build import make_collector, make_policy_for

GRPO = (
    *("algorithm=grpo", "algorithm.group_size=2", "env.num_envs=4", "frames_per_batch=400"),
    *("slice_len=10", "minibatch_slices=4", "cell.hidden_size=8", "encoder.sizes=[8]"),
)


def test_members_start_their_nth_episodes_from_states_that_no_other_group_row_or_episode_has(compose):
    first, config = [], compose(*GRPO)
    for batch in rollouts(config, fresh_policy(config), 3):
        assert batch["is_init"][:, 0].all()
        assert batch["recurrent_state"][:, 0].abs().max() == 0
        starts = [row["observation"][row["is_init"].squeeze(-1)] for row in batch]
        for a, b in ((0, 1), (2, 3)):
            both = min(len(starts[a]), len(starts[b]))
            assert both > 1
            assert torch.equal(starts[a][:both], starts[b][:both])
            first += [starts[a], starts[b][both:]]
    assert len(torch.cat(first).unique(dim=0)) == len(torch.cat(first))


class Lottery(Counting):
    """Draws something from a generator of its own: what is seen at a reset, or only what follows."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))

    def __init__(self, hidden):
        self.hidden, self.drawn = hidden, np.random.default_rng()

    def observation(self):
        if self.steps == 0:
            self.state = self.drawn.uniform(-1, 1, 2).astype(np.float32)
        return super().observation() if self.hidden and self.steps == 0 else self.state


@pytest.mark.parametrize(("hidden", "when"), [(False, "after reset 1"), (True, "1 steps after reset 1")])
def test_an_environment_that_ignores_reset_seeds_is_rejected(hidden, when, compose, register):
    config = compose(*GRPO, "env=gym", f"env.id={register(Lottery)}", f"+env.kwargs.hidden={hidden}")
    assert error_of(make_collector, config, make_policy_for(config)) == (
        "env.id=Registered-v0 ignores reset seeds: two copies with the same seeds and actions differ in 'observation' "
        f"{when}. algorithm=grpo compares episodes that start from the same state. Have the environment draw from the "
        "generator seeded by reset(seed=...) (Gymnasium's self.np_random), or choose algorithm=ppo."
    )


@pytest.mark.parametrize("env", ["pendulum_no_velocity", "repeat_first", "repeat_previous"])
def test_environments_that_use_reset_seeds_are_accepted(env, compose):
    config = compose(*GRPO, f"env={env}")
    make_collector(config, make_policy_for(config)).shutdown()
