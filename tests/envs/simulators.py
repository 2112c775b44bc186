"""One task in every form that simulators of many environments have: a point that drifts away and is pushed back.

Where an episode starts follows from the environment's number and from how many episodes it has begun since its seed, so
that all forms play the same episodes.
"""

import math

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDict

from recurrl.envs import Source
from recurrl.envs.gymnasium_envs import InlineEnv

LENGTH = 6
"""Steps of an episode: then those of even environments are truncated, and odd ones terminate."""


def start(number, episode):
    """Positions ``[..., 2]``, in float64."""
    phase = 12.9898 * number + 78.233 * episode
    return torch.stack((torch.sin(phase), torch.cos(1.7 * phase)), -1)


def moved(position, action):
    """The next position and the reward."""
    after = 1.1 * position + 0.1 * torch.tanh(action.double())
    return after, 1.0 - after.square().sum(-1)


class Point(gymnasium.Env):
    """One environment of Gymnasium's interface."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def __init__(self, number):
        self.number, self.episode = number, 0

    def reset(self, *, seed=None, options=None):
        self.episode = 0 if seed is not None else self.episode + 1
        self.time = 0
        self.position = start(*torch.tensor([self.number, self.episode], dtype=torch.float64))
        return self.position.float().numpy(), {}

    def step(self, action):
        self.time += 1
        self.position, reward = moved(self.position, torch.as_tensor(action))
        over, truncates = self.time == LENGTH, self.number % 2 == 0
        return self.position.float().numpy(), float(reward), over and not truncates, over and truncates, {}


class Points(Source):
    """Single ones, one after the other."""

    def make(self, num_envs):
        return InlineEnv([Point(i) for i in range(num_envs)], self.options.id)


class Simulation:
    """All of them as tensors, with Isaac Lab's five results.

    Args:
        num_envs: environments.
        resets: when those that ended restart.
        final: with resets in the same step, ``info["final_obs"]`` is there.
        groups: observations are a dict of the groups ``policy`` and ``critic``, which also sees the time.
    """

    made = 0
    """How many there have been. The simulators of many packages cannot be made twice in a process."""

    def __init__(self, num_envs, resets="same_step", final=True, groups=False, device="cpu"):
        Simulation.made += 1
        self.num_envs, self.resets, self.final, self.groups, self.device = num_envs, resets, final, groups, device
        self.num_actions, self.length = 2, LENGTH
        self.number = torch.arange(num_envs, dtype=torch.float64, device=device)
        self.episode, self.time = torch.zeros_like(self.number), torch.zeros_like(self.number)
        self.position = torch.zeros(num_envs, 2, dtype=torch.float64, device=device)
        self.over = torch.zeros(num_envs, dtype=torch.bool, device=device)
        self.closed = False

    def close(self):
        self.closed = True

    def reset(self, seed=None, env_ids=None):
        if seed is not None:
            self.episode[...] = -1
        assert env_ids is None or self.resets == "disabled"
        mask = torch.zeros_like(self.over)
        mask[slice(None) if env_ids is None else env_ids] = True
        self._begin(mask)
        self.over[...] = False
        return self.observed(), {"log": {"Episode/begun": mask.sum()}}

    def _begin(self, mask):
        self.episode[mask] += 1
        self.time[mask] = 0
        self.position[mask] = start(self.number, self.episode)[mask]

    def observed(self):
        seen = self.position.float()
        return {"policy": seen, "critic": torch.cat((seen, self.time[:, None].float()), 1)} if self.groups else seen

    def step(self, action):
        assert action.shape == (self.num_envs, 2)
        assert not self.closed
        action += 0  # as environments may write into it
        inserted = self.over.clone() if self.resets == "next_step" else torch.zeros_like(self.over)
        position, reward = moved(self.position, action)
        self.position = torch.where(inserted[:, None], self.position, position)
        self.time += ~inserted
        self._begin(inserted)
        over = (self.time >= self.length) & ~inserted
        self.over, info = over, {"log": {"/Mean/reward": reward.mean(), "count": 2}}
        last = self.observed()
        if self.resets == "same_step":
            if self.final:
                info["final_obs"] = last
            self._begin(over)
        even = self.number % 2 == 0
        return self.observed(), reward.float().where(~inserted, 0.0), over & ~even, over & even, info


class Seeded(Simulation):
    """Logs its seed, and metrics that only a simulation of this seed has, in an order of its own."""

    seed = 0

    def reset(self, seed=None, env_ids=None):
        self.seed = self.seed if seed is None else seed
        observation, _ = super().reset(seed, env_ids)
        return observation, {}

    def step(self, action):
        *results, info = super().step(action)
        own = {"zero": 0.0} if self.seed == 0 else {f"of/{self.seed}": 1.0, "not_zero": 2.0}
        return *results, {**info, "log": {**own, "seed": self.seed}}


class RslVecEnv(Simulation):
    """With rsl_rl's four results, in a TensorDict of groups."""

    def get_observations(self):
        return TensorDict(super().observed(), [self.num_envs])

    def reset(self, seed=None):
        super().reset(seed)

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        extras = {**info, "time_outs": truncated}
        return TensorDict(observation, [self.num_envs]), reward, (terminated | truncated).long(), extras


def rsl_vec_env(num_envs, device="cpu"):
    return RslVecEnv(num_envs, groups=True, device=device, final=False)


class Levels(Simulation):
    """A curriculum: the level is the number of episodes that have ended, and every position is multiplied by it.

    Attributes:
        steps_left: of all simulations, until one fails.
    """

    steps_left = math.inf

    def __init__(self, num_envs):
        self.level = torch.ones((), dtype=torch.float64)
        super().__init__(num_envs)

    def observed(self):
        return super().observed() * self.level.float()

    def step(self, action):
        Levels.steps_left -= 1
        if Levels.steps_left < 0:
            raise RuntimeError("killed")
        observation, reward, terminated, truncated, info = super().step(action)
        self.level += (terminated | truncated).sum()
        return observation, reward, terminated, truncated, info

    def state_dict(self):
        return {"level": self.level}

    def load_state_dict(self, state):
        self.level = state["level"]


class Unsavable(Levels):
    """Has a state that no checkpoint can hold."""

    def state_dict(self):
        return {"level": self}


class Arrays(Simulation):
    """With NumPy's arrays, as vector environments of Gymnasium and of EnvPool have them."""

    def reset(self, seed=None, options=None):
        observation, _ = super().reset(seed)
        return observation.numpy(), {}

    def step(self, action):
        assert isinstance(action, np.ndarray)
        observation, *results, _ = super().step(torch.as_tensor(action))
        return observation.numpy(), *(value.numpy() for value in results), {}


FAILURES = {
    "observation": lambda seen, *rest: (seen.index_fill(0, torch.tensor(1), torch.nan), *rest),
    "reward": lambda seen, reward, *rest: (seen, reward.index_fill(0, torch.tensor(2), torch.nan), *rest),
    "length": lambda seen, reward, *rest: (seen, reward, rest[-1]),
    "shape": lambda seen, *rest: (seen[:, :1], *rest),
    "dtype": lambda seen, *rest: (seen.double(), *rest),
    "device": lambda seen, *rest: (seen.to("meta"), *rest),
    "kind": lambda *results: ("nothing", *results[1:]),
    "rewards": lambda seen, reward, *rest: (seen, reward[:-1], *rest),
    "flags": lambda seen, reward, terminated, *rest: (seen, reward, terminated.float(), *rest),
}
"""What may be wrong with the results of a step."""


class Failing(Simulation):
    """Misbehaves in its fourth step."""

    def __init__(self, num_envs, failure):
        super().__init__(num_envs, final=False)
        self.failed, self.steps = FAILURES[failure], 0

    def step(self, action):
        self.steps += 1
        results = super().step(action)
        return self.failed(*results) if self.steps == 4 else results


class Lengths(Simulation):
    """Episodes of environment n have n + 1 steps, with a reward of 1 each."""

    def __init__(self, num_envs, resets):
        super().__init__(num_envs, resets)
        self.length = torch.arange(num_envs) + 1

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, torch.ones_like(reward), *rest


def one_more(num_envs):
    """Makes one environment too many."""
    return Simulation(num_envs + 1)


def deaf(num_envs, device):
    """Runs on a CPU, whatever it is passed."""
    return Simulation(num_envs)
