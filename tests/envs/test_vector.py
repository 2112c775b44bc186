"""Vector environments that step all their environments in one call."""

from copy import deepcopy
from functools import partial

import numpy as np
import pytest
import torch
from collected import fresh_policy, rollouts
from counting_env import Counting
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from gymnasium.vector.utils import concatenate
from rejections import error_of

from recurrl.envs import make_env
from recurrl.errors import ConfigError, EnvError


class Clock(Counting):
    """Shows its number, its episode and the step within, as several entries or as one; an episode has number + 2 steps.

    The reward is ten times the episode plus the step that it is for.
    """

    observation_space = spaces.Box(0, 1e6, (3,), np.float32)

    def __init__(self, number, entries=False):
        self.number, self.episode, self.length, self.entries = number, -1, number + 2, entries
        if entries:
            inner = spaces.Dict({"even": spaces.Discrete(2)})
            self.observation_space = spaces.Dict({"clock": Clock.observation_space, "inner": inner})

    def reset(self, **options):
        self.episode += 1
        return super().reset(**options)

    def observation(self):
        clock = np.float32([self.number, self.episode, self.steps])
        return {"clock": clock, "inner": {"even": self.steps % 2}} if self.entries else clock

    def reward(self, action):
        return 10.0 * self.episode + self.steps

    def ended(self):
        return False, self.steps == self.length


class Clocks(SyncVectorEnv):
    """Clocks with the numbers from 0, whose final observations are an array of objects or, ``together``, a batch."""

    def __init__(self, num_envs, mode="SameStep", together=False, entries=False):
        super().__init__([partial(Clock, number, entries) for number in range(num_envs)], autoreset_mode=mode)
        self.together = together

    def reset(self, *, seed=None, options=None):
        mask = None if options is None else options["reset_mask"]
        for clock in self.envs if mask is None else ():
            clock.episode = -1
        observation, info = super().reset(seed=seed, options=options)
        if mask is not None:
            # Nobody may look at what is not reset.
            (observation["clock"] if isinstance(observation, dict) else observation)[~mask] = 1e6
        return observation, info

    def step(self, actions):
        observation, *results, info = super().step(actions)
        if self.together and "final_obs" in info:
            pairs = zip(self.envs, info["final_obs"], strict=True)
            last = [clock.observation() if final is None else final for clock, final in pairs]
            info["final_obs"] = concatenate(self.single_observation_space, last, deepcopy(observation))
        return observation, *results, info


WAYS = {
    "resets on demand": {"mode": "Disabled"},
    "resets at once, final observations apart": {"mode": "SameStep"},
    "resets at once, final observations together": {"mode": "SameStep", "together": True},
    "resets in the next step": {"mode": "NextStep"},
    "several entries on demand": {"mode": "Disabled", "entries": True},
    "several entries at once, apart": {"mode": "SameStep", "entries": True},
    "several entries at once, together": {"mode": "SameStep", "entries": True, "together": True},
}


@pytest.mark.parametrize("kwargs", WAYS.values(), ids=WAYS)
def test_rows_hold_every_step_of_every_episode_and_nothing_else(kwargs, compose):
    small = ("env.num_envs=3", "frames_per_batch=60", "cell.hidden_size=4", "encoder.sizes=[4]")
    config = compose("env=gym", f"env.id={__name__}:Clocks", *small, **kwargs)
    all_rows = torch.cat([rows.clone() for rows in rollouts(config, fresh_policy(config), 2)], 1)
    inserted = all_rows["next"].get("inserted", torch.zeros_like(all_rows["is_init"])).squeeze(-1)
    key = "observation" if all_rows["observation"].__class__ is torch.Tensor else ("observation", "clock")
    for i in range(3):
        length = i + 2
        inserted_at = [*range(length, 40, length + 1)] if kwargs["mode"] == "NextStep" else []
        assert inserted[i].nonzero().flatten().tolist() == inserted_at
        row = all_rows[i][~inserted[i]]
        steps = [(episode, time) for episode in range(40) for time in range(length)][: len(row)]
        expected = torch.tensor([(i, episode, time) for episode, time in steps], dtype=torch.float32)
        torch.testing.assert_close(row[key], expected, rtol=0, atol=0)
        torch.testing.assert_close(row["next"][key], expected + torch.tensor([0.0, 0.0, 1.0]), rtol=0, atol=0)
        reward = torch.tensor([10.0 * episode + time + 1 for episode, time in steps])
        torch.testing.assert_close(row["next", "reward"][:, 0], reward, rtol=0, atol=0)
        ends = torch.tensor([time == length - 1 for _, time in steps])
        assert torch.equal(row["next", "truncated"][:, 0], ends)
        assert not row["next", "terminated"].any()
        assert torch.equal(row["is_init"][:, 0], torch.tensor([time == 0 for _, time in steps]))
        assert torch.equal(row["next", "step_count"][:, 0], torch.tensor([time + 1 for _, time in steps]))
        returns = [sum(10.0 * episode + t + 1 for t in range(time + 1)) for episode, time in steps]
        torch.testing.assert_close(row["next", "episode_reward"][:, 0], torch.tensor(returns).double(), rtol=0, atol=0)


class Spoilt(Clocks):
    """Misbehaves in its third step."""

    def __init__(self, num_envs, failure):
        super().__init__(num_envs)
        self.failure, self.steps = failure, 0

    def reset(self, **options):
        if self.failure == "reset":
            raise KeyError("no map")
        return super().reset(**options)

    def step(self, actions):
        self.steps += 1
        observation, reward, terminated, truncated, info = super().step(actions)
        if self.failure == "final":
            info.pop("final_obs", None)
        if self.steps == 3:
            if self.failure == "raises":
                raise RuntimeError("the simulator crashed")
            replaced = {"shape": observation[:, :2], "dtype": observation.astype(str)}
            observation = replaced.get(self.failure, observation)
            if self.failure == "observation":
                observation[1, 2] = np.nan
            if self.failure == "reward":
                reward[2] = np.inf
            reward = reward[:1] if self.failure == "rewards" else reward
            truncated = np.stack([truncated] * 2, 1) if self.failure == "flags" else truncated
            if self.failure == "final of objects":
                info["final_obs"] = observation.astype(object)
            if self.failure == "final of none":
                info["final_obs"] = np.array([], object)
            if self.failure == "final observation":
                info["final_obs"][1][0] = np.nan
        return observation, reward, terminated, truncated, info


AT, GAVE = "(test_vector:Spoilt), at step 3,", "gave the observation 'observation' the shape"
NAN = f"{AT} returned a non-finite value of observation 'observation':"
NEITHER = (
    f"{AT} returned an info['final_obs'] that is neither a batch of observations nor an array of objects, one "
    "observation per environment whose episode ended:"
)
MESSAGES = {
    "raises": f"The vector environment of 4 {AT} raised RuntimeError in step: the simulator",
    "reset": "raised KeyError in reset: 'no map'.",
    "reward": f"Environment 2 of 4 {AT} returned a non-finite reward: inf.",
    "observation": f"Environment 1 of 4 {NAN} [ 1.  1. nan].",
    "final observation": f"Environment 1 of 4 {NAN} [nan  0.  3.].",
    "shape": f"{AT} {GAVE} (4, 2) and the dtype float32, but its space has (4, 3) and float32.",
    "dtype": f"{AT} {GAVE} (4, 3) and the dtype <U32, but its space has (4, 3) and",
    "rewards": f"The vector environment of 4 {AT} returned rewards of shape (1,). Have step",
    "flags": f"Environment 0 of 4 {AT} returned truncated=array([False, False]) of type ndarray. Have step",
    "final of objects": f"{NEITHER} {GAVE} (3,) and the dtype object",
    "final of none": f"{NEITHER} index 1 is out of bounds",
    "final": "at step 2, ended episodes without info['final_obs'], which autoreset mode SAME_STEP requires.",
}


@pytest.mark.parametrize("failure", MESSAGES)
def test_an_error_names_the_environment_and_its_step(failure, of):
    play = make_env(of("Spoilt", failure=failure), 4, seed=0).rollout
    assert MESSAGES[failure] in error_of(play, 4, break_when_any_done=False, kind=EnvError)


def test_an_id_with_nothing_but_a_vector_environment_is_rejected(rejected, register):
    assert rejected("env=gym", f"env.id={register(Clocks, entry_point='vector_entry_point')}") == (
        "env.id=Registered-v0 is registered only with a vector_entry_point, which makes no single environments. Set "
        "env.id to the class of its vector environment, as module:Class."
    )


def undeclared(num_envs):
    clocks = Clocks(num_envs)
    clocks.metadata = {}
    return clocks


def test_a_vector_that_does_not_declare_when_it_resets_is_rejected(of):
    assert error_of(make_env, of("undeclared"), 2, seed=0) == (
        "The vector environment of env.id=test_vector:undeclared must declare when it resets, "
        "metadata['autoreset_mode'] (got None). Choose one of AutoresetMode.SAME_STEP, AutoresetMode.DISABLED, "
        "AutoresetMode.NEXT_STEP."
    )


def test_same_step_autoreset_cannot_reset_mid_episode(of):
    env = make_env(of("Clocks"), 2, seed=0).base_env
    env.reset_tensors(None)
    env.step_tensors(torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ConfigError, match="resets its environments automatically when their episodes end"):
        env.reset_tensors(torch.tensor([[True], [False]]))
