"""A training run of sb3-contrib's RecurrentPPO on a task of the suite, with the settings of its users.

``python -m benchmarks.peers.sb3_training TASK SEED EVERY FOLDER SECONDS`` writes ``metrics.csv`` and
``summary.json`` as a run of recurrl does. Seconds are of collection and learning, without evaluations. A run ends early
when it has taken SECONDS, or when an evaluation reaches the task's threshold.

Shape legend: N environments.
"""

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecMonitor, VecNormalize, sync_envs_normalization
from torchrl.data import Bounded, Categorical, TensorSpec

from benchmarks.configuration import configuration
from benchmarks.suites import Task, all_tasks
from recurrl.config import EnvConfig
from recurrl.envs import BatchedEnv
from recurrl.envs.source import source_of
from recurrl.evaluation import SEED_OFFSET
from recurrl.keys import OBSERVATION

EPISODES = 20


class SuiteVecEnv(VecEnv):
    """Environments of recurrl, with their hidden entries, as Stable-Baselines3's vectorised environments."""

    def __init__(self, config: EnvConfig, num_envs: int, seed: int) -> None:
        made = source_of(config).make(num_envs)
        assert isinstance(made, BatchedEnv)
        self.env = made
        self.env.set_seed(seed)
        super().__init__(num_envs, _space(made.observation_spec[OBSERVATION][0]), _space(made.action_spec[0]))

    def reset(self) -> Any:
        """Starts new episodes."""
        return self.env.reset_tensors(None)[OBSERVATION].numpy()

    def step_async(self, actions: Any) -> None:
        """Keeps the actions."""
        self.actions = torch.from_numpy(actions)

    def step_wait(self) -> Any:
        """Steps, and starts over where episodes ended."""
        after = {str(key): value.numpy() for key, value in self.env.step_tensors(self.actions).items()}
        observation, done_N, truncated_N = after[OBSERVATION], after["done"][:, 0], after["truncated"][:, 0]
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if done_N.any():
            for i in done_N.nonzero()[0]:
                infos[i] = {"terminal_observation": observation[i], "TimeLimit.truncated": bool(truncated_N[i])}
            observation = self.env.reset_tensors(torch.from_numpy(done_N).unsqueeze(-1))[OBSERVATION].numpy()
        return observation, after["reward"][:, 0], done_N, infos

    def close(self) -> None:
        """Closes the environments."""
        self.env.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Stable-Baselines3 asks for the render mode; the environments cannot render."""
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """There is nothing to set."""
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """There is nothing to call."""
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """No wrapper of Gymnasium."""
        return [False] * self.num_envs


def _space(spec: TensorSpec) -> spaces.Space[Any]:
    if isinstance(spec, Categorical):
        return spaces.Discrete(spec.space.n)
    low, high = (spec.space.low.numpy(), spec.space.high.numpy()) if isinstance(spec, Bounded) else (-np.inf, np.inf)
    return spaces.Box(low, high, spec.shape, np.float32)


class Evaluations(BaseCallback):
    """Evaluates every ``every`` frames, and ends the run at the threshold or when its time is used up."""

    def __init__(self, task: Task, env: VecEnv, every: int, seconds: float) -> None:
        super().__init__()
        self.task, self.env, self.every, self.limit = task, env, every, seconds
        self.rows: list[dict[str, float]] = []
        self.evaluating, self.began = 0.0, perf_counter()

    def _on_step(self) -> bool:
        return not self.ended

    def _on_rollout_start(self) -> None:
        last = self.rows[-1]["frames"] if self.rows else 0
        if self.num_timesteps // self.every > last // self.every:
            self.evaluate()

    @property
    def seconds(self) -> float:
        """Of collection and learning so far."""
        return perf_counter() - self.began - self.evaluating

    @property
    def ended(self) -> bool:
        """The threshold is reached, or the time is used up."""
        reached = bool(self.rows) and self.rows[-1]["eval/return_mean"] >= self.task.threshold
        return reached or self.seconds > self.limit

    def evaluate(self) -> None:
        """Adds a row for ``metrics.csv``."""
        seconds, begin = self.seconds, perf_counter()
        if isinstance(self.env, VecNormalize):
            sync_envs_normalization(self.model.get_env(), self.env)
        mean, _ = evaluate_policy(self.model, self.env, EPISODES, deterministic=True)
        before = sum(row["time/learn_s"] for row in self.rows)
        self.rows.append(
            {
                "frames": self.num_timesteps,
                "time/collect_s": 0.0,
                "time/learn_s": seconds - before,
                "eval/return_mean": float(mean),
            }
        )
        self.evaluating += perf_counter() - begin


def train(task: Task, seed: int, every: int, folder: Path, seconds: float) -> None:
    """Trains, and writes the results."""
    torch.set_num_threads(1)
    settings = dict(task.sb3_contrib or {})
    frames = int(settings.pop("n_timesteps", task.frames))
    envs, normalize = settings.pop("n_envs", 1), settings.pop("normalize", False)
    for name in ("learning_rate", "clip_range"):
        if str(settings.get(name, "")).startswith("lin_"):
            start = float(settings[name].removeprefix("lin_"))
            settings[name] = lambda remaining, start=start: start * remaining
    config = configuration(*task.overrides).env
    env: VecEnv = VecMonitor(SuiteVecEnv(config, envs, seed))
    evaluated: VecEnv = VecMonitor(SuiteVecEnv(config, EPISODES, seed + SEED_OFFSET))
    if normalize:
        env = VecNormalize(env, gamma=settings.get("gamma", 0.99))
        evaluated = VecNormalize(evaluated, training=False, norm_reward=False)
    model = RecurrentPPO("MlpLstmPolicy", env, seed=seed, device="cpu", **settings)
    evaluations = Evaluations(task, evaluated, every, seconds)
    model.learn(frames, evaluations)
    if not evaluations.rows or evaluations.rows[-1]["frames"] < model.num_timesteps:
        evaluations.evaluate()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "metrics.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, evaluations.rows[0])
        writer.writeheader()
        writer.writerows(evaluations.rows)
    summary = {"status": "completed", "eval_return_mean": evaluations.rows[-1]["eval/return_mean"]}
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")


def main(arguments: Sequence[str]) -> None:
    """Reads the command line."""
    name, seed, every, folder, seconds = arguments
    (task,) = (task for task in all_tasks() if task.name == name)
    train(task, int(seed), int(every), Path(folder), float(seconds))


if __name__ == "__main__":
    main(sys.argv[1:])
