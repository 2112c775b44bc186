"""sb3-contrib's RecurrentPPO with the task's network and one LSTM shared by actor and critic."""

from typing import Any

from sb3_contrib import RecurrentPPO
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import Tensor, nn

from benchmarks.peers.task import OBSERVATION_SIZE, Task, masked_cartpole


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
        self.model = RecurrentPPO(
            "MlpLstmPolicy",
            DummyVecEnv([masked_cartpole] * task.envs),
            n_steps=task.steps,
            batch_size=task.frames // task.minibatches,
            n_epochs=task.epochs,
            learning_rate=task.lr,
            gamma=task.gamma,
            gae_lambda=task.lmbda,
            clip_range=task.clip,
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
        _, self.callback = self.model._setup_learn(2**40, None)

    def collect(self) -> None:
        """Collects one rollout."""
        model = self.model
        model.collect_rollouts(model.env, self.callback, model.rollout_buffer, n_rollout_steps=model.n_steps)

    def learn(self) -> None:
        """Learns from the rollout."""
        self.model.train()


def make(task: Task) -> RecurrentPPOLoop:
    """Creates the loop. Its cell is always an LSTM."""
    return RecurrentPPOLoop(task)
