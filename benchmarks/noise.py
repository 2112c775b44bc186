"""Noisy tasks for Gymnasium: ids begin with ``noise/``; noise.yaml of the suite has the best possible returns.

``env=gym env.packages=[benchmarks.noise] env.id=noise/Bandit-v0``
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.spaces import Box, Discrete

Outcome = tuple[Any, float, bool, bool, dict[str, Any]]


class NoisyCartPole(gymnasium.ObservationWrapper[Any, Any, Any]):
    """CartPole-v1's two positions with Gaussian noise on each: memory has to filter as well as to differentiate.

    Args:
        deviations: of the noise on the cart's position, in metres, and on the pole's angle, in radians.
    """

    def __init__(self, deviations: tuple[float, float] = (0.1, 0.05)) -> None:
        super().__init__(CartPoleEnv())
        self.observation_space = Box(-np.inf, np.inf, (2,), np.float32)
        self.deviations = deviations

    def observation(self, observation: Any) -> Any:
        """The cart's position and the pole's angle, with noise."""
        return (observation[[0, 2]] + self.np_random.normal(0.0, self.deviations)).astype(np.float32)


class Recall(gymnasium.Env[Any, Any]):
    """Name the symbol that was shown some steps ago. The reward of each answer has Gaussian noise.

    Without its noise an episode's return is the fraction of right answers.

    Args:
        delay: steps between a symbol and the answer.
        symbols: how many there are.
        steps: of an episode.
        deviation: of the noise on an answer's reward, which is 1 or 0.
    """

    def __init__(self, delay: int = 2, symbols: int = 4, steps: int = 64, deviation: float = 2.0) -> None:
        self.delay, self.symbols, self.steps, self.deviation = delay, symbols, steps, deviation
        self.observation_space, self.action_space = Discrete(symbols), Discrete(symbols)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Draws an episode's symbols and shows the first."""
        super().reset(seed=seed)
        self.shown = self.np_random.integers(self.symbols, size=self.steps + 1).tolist()
        self.step_count = 0
        return self.shown[0], {}

    def step(self, action: Any) -> Outcome:
        """Answers, and shows the next symbol."""
        shown_at, reward = self.step_count - self.delay, 0.0
        if shown_at >= 0:
            noisy = float(action == self.shown[shown_at]) + self.deviation * self.np_random.normal()
            reward = noisy / (self.steps - self.delay)
        self.step_count += 1
        return self.shown[self.step_count], reward, self.step_count == self.steps, False, {}


class Bandit(gymnasium.Env[Any, Any]):
    """Two Bernoulli arms whose chances are drawn anew, uniformly, for each episode.

    Observed are the last pull, one-hot, and its reward. The return is the fraction of pulls that pay.

    Args:
        pulls: of an episode.
    """

    observation_space = Box(0.0, 1.0, (3,), np.float32)
    action_space = Discrete(2)

    def __init__(self, pulls: int = 50) -> None:
        self.pulls = pulls

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Draws the chances of the arms."""
        super().reset(seed=seed)
        self.chances, self.pulled = self.np_random.random(2), 0
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Outcome:
        """Pulls an arm."""
        paid = bool(self.np_random.random() < self.chances[action])
        self.pulled += 1
        seen = np.array([action == 0, action == 1, paid], np.float32)
        return seen, paid / self.pulls, self.pulled == self.pulls, False, {}


class SlipperyWalk(gymnasium.Env[Any, Any]):
    """Walk to the end of a corridor that a cue at the first step names; steps often slip the other way.

    Observed are the position, from -1 to 1, and the cue, -1 or 1 at the first step and 0 later. An end gives 1 if it is
    the cue's and -1 if not, and each step costs 0.01.

    Args:
        half: steps from the middle, where the walk begins, to either end.
        slip: probability of a step the other way.
    """

    observation_space = Box(-1.0, 1.0, (2,), np.float32)
    action_space = Discrete(2)

    def __init__(self, half: int = 5, slip: float = 0.35) -> None:
        self.half, self.slip = half, slip

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Draws the end to walk to, and shows the cue."""
        super().reset(seed=seed)
        self.goal, self.position = (1 if self.np_random.random() < 0.5 else -1), 0
        return np.array([0.0, self.goal], np.float32), {}

    def step(self, action: Any) -> Outcome:
        """Walks left (0) or right (1), or slips."""
        self.position += (1 if action else -1) * (-1 if self.np_random.random() < self.slip else 1)
        at_end = abs(self.position) == self.half
        reward = at_end * float(np.sign(self.position) * self.goal) - 0.01
        return np.array([self.position / self.half, 0.0], np.float32), reward, at_end, False, {}


class Search(gymnasium.Env[Any, Any]):
    """Find the hidden goal on a grid, as often as time allows: it stays where it is, and each find leads to the middle.

    Observed are the cell's two coordinates, from -1 to 1, and whether the goal was found there; the next step starts in
    the middle. Each find gives 1.

    Args:
        half: cells from the middle to an edge.
        steps: of an episode.
    """

    observation_space = Box(-1.0, 1.0, (3,), np.float32)
    action_space = Discrete(4)

    def __init__(self, half: int = 3, steps: int = 100) -> None:
        self.half, self.steps = half, steps
        side = range(-half, half + 1)
        self.cells = [(x, y) for x in side for y in side if (x, y) != (0, 0)]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Hides the goal anywhere but in the middle, where the search begins."""
        super().reset(seed=seed)
        self.goal = self.cells[self.np_random.integers(len(self.cells))]
        self.cell, self.step_count = (0, 0), 0
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Outcome:
        """Goes left, right, down or up; the edge stops."""
        self.cell = self.moved(self.cell, int(action))
        self.step_count += 1
        at_goal, (x, y) = self.cell == self.goal, self.cell
        if at_goal:
            self.cell = (0, 0)
        seen = np.array([x / self.half, y / self.half, at_goal], np.float32)
        return seen, float(at_goal), self.step_count == self.steps, False, {}

    def moved(self, cell: tuple[int, int], action: int) -> tuple[int, int]:
        """The cell that an action leads to."""
        (x, y), (dx, dy) = cell, ((-1, 0), (1, 0), (0, -1), (0, 1))[action]
        return min(max(x + dx, -self.half), self.half), min(max(y + dy, -self.half), self.half)


gymnasium.register("noise/CartPole-v0", "benchmarks.noise:NoisyCartPole", max_episode_steps=500)
gymnasium.register("noise/Recall-v0", "benchmarks.noise:Recall")
gymnasium.register("noise/Bandit-v0", "benchmarks.noise:Bandit")
gymnasium.register("noise/SlipperyWalk-v0", "benchmarks.noise:SlipperyWalk", max_episode_steps=200)
gymnasium.register("noise/Search-v0", "benchmarks.noise:Search")
