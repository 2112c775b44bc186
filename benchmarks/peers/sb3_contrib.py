"""sb3-contrib's RecurrentPPO with the task's network and one LSTM shared by actor and critic."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from sb3_contrib import RecurrentPPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize, sync_envs_normalization
from torch import Tensor, nn

from benchmarks.peers.task import OBSERVATION_SIZE, Task, masked_cartpole
from recurrl.losses.schedule import annealed


class Encoder(BaseFeaturesExtractor):
    """A linear layer with tanh."""

    def __init__(self, observation_space: Any, features_dim: int) -> None:
        super().__init__(observation_space, features_dim)
        self.layers = nn.Sequential(nn.Linear(OBSERVATION_SIZE, features_dim), nn.Tanh())

    def forward(self, observation: Tensor) -> Tensor:
        """Encodes an observation."""
        encoded: Tensor = self.layers(observation)
        return encoded


class RecurrentPPOLoop:
    """The two halves of ``RecurrentPPO.learn``."""

    def __init__(self, task: Task) -> None:
        environments: VecEnv = DummyVecEnv([partial(masked_cartpole, task.reward_scale)] * task.envs)
        self.normalizes = task.normalize or task.normalize_reward
        if self.normalizes:
            environments = VecNormalize(environments, task.normalize, task.normalize_reward, gamma=task.gamma)
        self.model = RecurrentPPO(
            "MlpLstmPolicy",
            environments,
            n_steps=task.steps,
            batch_size=task.frames // task.minibatches,
            n_epochs=task.epochs,
            learning_rate=_falling(task.lr, task.lr_final_fraction),
            gamma=task.gamma,
            gae_lambda=task.lmbda,
            clip_range=_falling(task.clip, task.clip_final_fraction),
            seed=task.seed,
            device="cpu",
            policy_kwargs={
                "features_extractor_class": Encoder,
                "features_extractor_kwargs": {"features_dim": task.hidden},
                "lstm_hidden_size": task.hidden,
                "shared_lstm": True,
                "enable_critic_lstm": False,
                "net_arch": [],
            },
        )
        self.total_frames = task.total_frames
        _, self.callback = self.model._setup_learn(2**40, None)

    def collect(self) -> None:
        """Collects one rollout."""
        model = self.model
        model.collect_rollouts(model.env, self.callback, model.rollout_buffer, n_rollout_steps=model.n_steps)

    def learn(self) -> None:
        """Learns from the rollout."""
        if self.total_frames is not None:
            self.model._update_current_progress_remaining(
                min(self.model.num_timesteps, self.total_frames), self.total_frames
            )
        self.model.train()

    def evaluate(self, episodes: int) -> float:
        """Uses ``evaluate_policy``, with one environment per episode."""
        environments: VecEnv = DummyVecEnv([lambda: Monitor(masked_cartpole())] * episodes)
        if self.normalizes:
            environments = VecNormalize(environments, training=False, norm_reward=False)
            sync_envs_normalization(self.model.env, environments)
        mean, _ = evaluate_policy(self.model, environments, n_eval_episodes=episodes)
        environments.close()
        return float(mean)


def _falling(start: float, final_fraction: float) -> Callable[[float], float]:
    return lambda remaining: annealed(start, final_fraction, 1 - remaining)


def make(task: Task) -> RecurrentPPOLoop:
    """Creates the loop. Its cell is always an LSTM."""
    return RecurrentPPOLoop(task)
