"""``recurrl-train`` on tasks that it cannot learn: the warnings, each with its figure."""

import re

import numpy as np
import pytest
from counting_env import Counting, OneBit
from gymnasium import spaces
from run_files import summary
from slow_cases import slow_but

from recurrl.callbacks import diagnosis

FAST = (diagnosis.RANDOM, diagnosis.ENTROPY, diagnosis.MEMORY)
SMALL = (
    *("device=cpu", "backend=scan", "cell.hidden_size=8", "encoder.sizes=[8]", "epochs=4", "lr=1e-2"),
    *("frames_per_batch=64", "env.num_envs=8", "slice_len=8", "minibatch_slices=4", "total_frames=2240"),
)


class Task(Counting):
    """Eight steps of observations that mean nothing, and of rewards that are all zero."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)

    def observation(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


class Noise(Task):
    """Rewards that depend on nothing."""

    def reward(self, action):
        return float(self.np_random.normal())


class Lost(Task):
    """An end that is not reached within the time limit, and a price for each step until then."""

    def reward(self, action):
        return -1.0

    def ended(self):
        return False, self.steps == self.length


class Button(Task):
    """Pays for one of two actions."""

    def reward(self, action):
        return float(action)


class Change(Task):
    """Pays for another action than the last one, which the most probable action of a constant policy never is."""

    def observation(self):
        self.last = None if self.steps == 0 else self.last
        return np.zeros(2, np.float32)

    def reward(self, action):
        changed, self.last = action != self.last, action
        return float(changed)


COARSE = ("lr=3e-2", "algorithm.gamma=0.5", "seed=3")
INDIFFERENT = ("algorithm.entropy_coeff=0", "algorithm.lmbda=0.9", "min_epochs_fraction=1")
CONSTANT = ("lr=1e-9", "seed=1", "policy.previous_action=false")
NO_USE = r"a return of 8\.000, 8\.000 with its memory zeroed and 8\.000 with another episode's\. "
RETURNS = r"with returns of -8\.000 ± 0\.000, at first -8\.000 ± 0\.000\. "
FAILURES = {
    diagnosis.RANDOM: (Noise, ("seed=1",), r"a return of \S+ ± \S+, against \S+ ± \S+\. "),
    diagnosis.ENTROPY: (Lost, ("lr=1", "seed=1"), rf"\S+ nats, below 0\.02; for \d+ iterations, {RETURNS}"),
    diagnosis.ADVANTAGES: (Lost, COARSE, r"a standard deviation of \S+, where values reach \S+; for \d+ iterations, "),
    diagnosis.GRADIENTS: (Task, INDIFFERENT, r"a norm of \S+; for \d+ "),
    diagnosis.CRITIC: (Noise, ("seed=1",), r"above 0\.05 in \d of 35 iterations; for \d+ iterations, "),
    diagnosis.NOISE: (Noise, ("seed=0", "lr=1e-5"), r"a share of signal of \S+, below 0\.02; for \d+ iterations, "),
    diagnosis.TRUNCATED: (Lost, (), rf"after 8 steps on average; for 35 iterations, {RETURNS}"),
    diagnosis.MEMORY: (Button, (), NO_USE),
    diagnosis.SAMPLED: (Change, CONSTANT, r"a return of 1\.000 ± 0\.000, against 4\.\S+ ± \S+ in training\. "),
}


def test_every_warning_has_a_run_that_fails_in_its_way():
    assert FAILURES.keys() == diagnosis.WARNINGS.keys()


# One of each kind: by random actions, over iterations, by memory. The others by `pytest -m slow`.
@pytest.mark.parametrize("title", slow_but(FAST, FAILURES))
def test_a_run_that_does_not_learn_says_so_once_while_it_runs_and_at_its_end(title, train, register, tmp_path):
    task, overrides, figure = FAILURES[title]
    outcome = train(*SMALL, "env=gym", f"env.id={register(task)}", *overrides, "hydra.run.dir=run").succeeded()
    (line,) = re.findall(rf"^warning: ({title}: .*)$", outcome.err, re.MULTILINE)
    assert re.match(rf"{title}: {figure}", line), line
    assert line.endswith(f" Try {diagnosis.WARNINGS[title]}.")
    assert summary(tmp_path / "run")["warnings"][title] == line
    logged = re.findall(rf"WARNING\] - After (\d+) frames: {title}: ", outcome.out)
    if title in (diagnosis.RANDOM, diagnosis.MEMORY, diagnosis.SAMPLED):  # known from the last evaluation only
        assert not logged
    else:
        (frames,) = logged
        assert diagnosis.MIN_ITERATIONS * 64 <= int(frames) < 2240


def test_a_run_that_learns_gives_no_warning(train, register, tmp_path):
    task = ("env=gym", f"env.id={register(OneBit)}", "total_frames=3200")
    outcome = train(*SMALL, *task, "hydra.run.dir=run").succeeded()
    result = summary(tmp_path / "run")
    assert result["eval_return_mean"] > result["eval_return_mean_random"] + 2
    assert result["warnings"] == {}
    assert "WARNING" not in outcome.out
    assert "warning:" not in outcome.err
