"""Noisy tasks: their best returns and those of random actions are what their yaml says."""

from collections import Counter
from functools import cache
from statistics import fmean

import gymnasium
import numpy as np
import pytest

from benchmarks import noise
from benchmarks.suites import all_tasks

TASKS = {task.name: task for task in all_tasks() if task.suites[0] == "noise"}


def bandit(pulls):
    """The return of Bayes' rule with uniform priors, by dynamic programming over what both arms have shown."""
    value = np.zeros((pulls + 2,) * 3)
    won, lost, won_other = np.meshgrid(*[np.arange(pulls + 1)] * 3, indexing="ij")
    for pulled in reversed(range(pulls)):
        lost_other = np.maximum(pulled - won - lost - won_other, 0)
        first, second = (won + 1) / (won + lost + 2), (won_other + 1) / (won_other + lost_other + 2)
        one = first * (1 + value[1:, :-1, :-1]) + (1 - first) * value[:-1, 1:, :-1]
        other = second * (1 + value[:-1, :-1, 1:]) + (1 - second) * value[:-1, :-1, :-1]
        value[:-1, :-1, :-1] = np.maximum(one, other)
    return float(value[0, 0, 0]) / pulls


def walk(half, slip, steps, best):
    """The return of the best or of random actions, by dynamic programming over positions; the goal is on the right."""
    value = np.zeros(2 * half + 1)
    end = np.zeros_like(value)
    end[0], end[-1] = -1, 1
    for _ in range(steps):
        left, right = (np.roll(end + value, by) for by in (1, -1))
        ways = (1 - slip) * left + slip * right, (1 - slip) * right + slip * left
        value = (np.maximum(*ways) if best else sum(ways) / 2) - 0.01
        value[[0, -1]] = 0
    return float(value[half])


def search(env):
    """A bound on the best return, and the return of random actions.

    Before the first find nothing is learned, so a policy visits one cell a step, each at a time no policy can
    improve on for all: the bound takes the best order, as if any order could be walked, and shortest ways afterwards.
    """
    distances = Counter(abs(x) + abs(y) for x, y in env.cells)

    @cache
    def best(left):
        at = len(env.cells) - sum(left) + 1
        rest = [(i, distance) for i, distance in enumerate(sorted(distances)) if left[i]]
        finds = {i: 1 + (env.steps - max(at, distance)) // distance for i, distance in rest}
        return max((n + best((*left[:i], left[i] - 1, *left[i + 1 :])) for i, n in finds.items()), default=0)

    cells = [(0, 0), *env.cells]
    reached = np.array([[cells.index(env.moved(cell, action)) for action in range(4)] for cell in cells])
    goals, value = np.arange(1, len(cells)), np.zeros((len(env.cells), len(cells)))  # of each goal and cell
    for _ in range(env.steps):
        value[goals - 1, goals] = 1 + value[:, 0]
        value = value[:, reached].mean(2)
    return best(tuple(distances[key] for key in sorted(distances))) / len(env.cells), value[:, 0].mean()


EXACT = [
    ("bernoulli_bandit", lambda env: (bandit(env.pulls), 1 / 2)),
    ("slippery_walk", lambda env: tuple(walk(env.half, env.slip, 200, best) for best in (True, False))),
    ("hidden_search", search),
    ("noisy_recall", lambda env: (1.0, 1 / env.symbols)),
]


@pytest.mark.parametrize(("name", "compute"), EXACT)
def test_the_best_return_and_that_of_random_actions_are_those_of_the_yaml(name, compute):
    env = gymnasium.make(TASKS[name].overrides[-1].partition("=")[2])
    assert compute(env.unwrapped) == pytest.approx((TASKS[name].at_most, TASKS[name].random), rel=1e-3)


@pytest.mark.parametrize("name", TASKS)
def test_random_actions_return_what_the_yaml_says_and_seeds_fix_episodes(name):
    env = gymnasium.make(TASKS[name].overrides[-1].partition("=")[2])

    def episode(seed):
        env.action_space.seed(seed)
        steps, ended = [[np.asarray(env.reset(seed=seed)[0]).tolist(), 0.0]], False
        while not ended:
            observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            assert env.observation_space.contains(observation)
            steps.append([np.asarray(observation).tolist(), float(reward)])
            ended = terminated or truncated
        return steps

    assert episode(3) == episode(3)
    assert episode(3) != episode(4)
    returns = [sum(reward for _, reward in episode(seed)) for seed in range(200)]
    error = np.std(returns) / len(returns) ** 0.5
    assert abs(fmean(returns) - float(TASKS[name].random or 0)) < 4 * error


def test_answers_to_recall_and_finds_of_search_are_rewarded():
    recall = noise.Recall(deviation=0.0)
    shown = [recall.reset(seed=0)[0]]
    total = 0.0
    for _ in range(recall.steps):
        symbol, reward, *_ = recall.step(shown[max(0, len(shown) - 1 - recall.delay)])
        shown.append(symbol)
        total += float(reward)
    assert total == pytest.approx(1.0)

    env = noise.Search()
    env.reset(seed=0)
    env.goal = (1, 0)
    for _ in range(3):  # each find leads to the middle
        observation, reward, *_ = env.step(1)
        assert reward == 1.0
        assert observation.tolist() == pytest.approx([1 / env.half, 0.0, 1.0])
