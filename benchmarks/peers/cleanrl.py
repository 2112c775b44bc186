"""One loop in plain torch, as CleanRL's ``ppo_atari_lstm.py`` is built: the cell is called step by step.

Not CleanRL itself, which is a collection of scripts and not a package.

Shape legend: N environments, M rows of a minibatch, T steps.
"""

from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional

from benchmarks.peers.task import ACTIONS, OBSERVATION_SIZE, Task, masked_cartpole

CELLS = {"gru": nn.GRU, "lstm": nn.LSTM}
States = tuple[Tensor, ...]


class Agent(nn.Module):
    """The task's network, with a loop over the steps of a sequence that zeroes states at episode starts."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(OBSERVATION_SIZE, task.hidden), nn.Tanh())
        self.cell = CELLS[task.cell](task.hidden, task.hidden)
        self.actor, self.critic = nn.Linear(task.hidden, ACTIONS), nn.Linear(task.hidden, 1)
        self.states = 2 if task.cell == "lstm" else 1

    def initial(self, rows: int) -> States:
        """Zero states ``[1, N, H]``."""
        return tuple(torch.zeros(1, rows, self.cell.hidden_size) for _ in range(self.states))

    def forward(self, observation_TN: Tensor, states: States, is_init_TN: Tensor) -> tuple[Categorical, Tensor, States]:
        """Distributions and values of all steps, and the last states."""
        keeps_TN1 = (~is_init_TN).float().unsqueeze(-1)
        features = []
        for encoded_N, keeps_N1 in zip(self.encoder(observation_TN), keeps_TN1, strict=True):
            entering = tuple(keeps_N1 * state for state in states)
            state: Any = entering if self.states == 2 else entering[0]
            output, left = self.cell(encoded_N.unsqueeze(0), state)
            states = left if self.states == 2 else (left,)
            features.append(output[0])
        features_TN = torch.stack(features)
        return Categorical(logits=self.actor(features_TN)), self.critic(features_TN).squeeze(-1), states


class CleanRLLoop:
    """Rollout, advantages and epochs over whole rows."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.agent = Agent(task)
        self.optimizer = torch.optim.Adam(self.agent.parameters(), lr=task.lr, eps=1e-5)
        same_step = gymnasium.vector.AutoresetMode.SAME_STEP
        self.envs: Any = gymnasium.vector.SyncVectorEnv([masked_cartpole] * task.envs, autoreset_mode=same_step)
        self.observation_N = torch.from_numpy(self.envs.reset(seed=task.seed)[0].astype(np.float32))
        self.is_init_N = torch.ones(task.envs, dtype=torch.bool)
        self.states = self.agent.initial(task.envs)

    @torch.no_grad()
    def collect(self) -> None:
        """Steps the environments for an iteration's frames."""
        self.initial = tuple(state.clone() for state in self.states)
        rows = []
        for _ in range(self.task.steps):
            inputs = self.observation_N[None], self.states, self.is_init_N[None]
            distribution, value_1N, self.states = self.agent(*inputs)
            action_1N = distribution.sample()
            row = (self.observation_N, self.is_init_N, action_1N[0], distribution.log_prob(action_1N)[0], value_1N[0])
            observation, reward, terminated, truncated, _ = self.envs.step(action_1N[0].numpy())
            self.observation_N = torch.from_numpy(observation.astype(np.float32))
            self.is_init_N = torch.from_numpy(terminated | truncated)
            rows.append((*row, torch.from_numpy(reward).float()))
        self.observation, self.is_init, self.action, self.log_prob, self.value, self.reward = map(
            torch.stack, zip(*rows, strict=True)
        )

    def learn(self) -> None:
        """Computes advantages, then trains on minibatches of whole rows."""
        task = self.task
        advantage_TN = self._advantages()
        target_TN = advantage_TN + self.value
        for _ in range(task.epochs):
            for rows_M in torch.randperm(task.envs).split(task.envs // task.minibatches):
                states = tuple(state[:, rows_M] for state in self.initial)
                distribution, value, _ = self.agent(self.observation[:, rows_M], states, self.is_init[:, rows_M])
                ratio = (distribution.log_prob(self.action[:, rows_M]) - self.log_prob[:, rows_M]).exp()
                clipped = ratio.clamp(1 - task.clip, 1 + task.clip)
                advantage = advantage_TN[:, rows_M]
                objective = -torch.minimum(ratio * advantage, clipped * advantage).mean()
                loss = objective + 0.5 * functional.mse_loss(value, target_TN[:, rows_M])
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.agent.parameters(), 0.5)
                self.optimizer.step()

    @torch.no_grad()
    def _advantages(self) -> Tensor:
        _, value_1N, _ = self.agent(self.observation_N[None], self.states, self.is_init_N[None])
        values = torch.cat((self.value, value_1N))
        continues = 1.0 - torch.cat((self.is_init[1:], self.is_init_N[None])).float()
        advantages = torch.zeros_like(self.reward)
        last = torch.zeros(self.task.envs)
        for t in reversed(range(self.task.steps)):
            error = self.reward[t] + self.task.gamma * continues[t] * values[t + 1] - values[t]
            last = error + self.task.gamma * self.task.lmbda * continues[t] * last
            advantages[t] = last
        return advantages


def make(task: Task) -> CleanRLLoop:
    """Creates the loop."""
    torch.manual_seed(task.seed)
    return CleanRLLoop(task)
