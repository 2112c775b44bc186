"""How one batch improves the policy: advantages, epochs of minibatches, loss, clipped step, schedules."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from recurrl.advantage import ADVANTAGE, VALUE_TARGET, add_advantages
from recurrl.buffer import SliceBuffer
from recurrl.config import TrainConfig
from recurrl.losses import make_loss
from recurrl.normalization import RewardScaler
from recurrl.policy import ACTION, LOG_PROB, OBSERVATION, VALUE, ActorCritic
from recurrl.states import SliceStates

LOSSES = ("loss_objective", "loss_critic", "loss_entropy")
DIAGNOSTICS = {
    "loss_objective": "loss/objective",
    "loss_critic": "loss/critic",
    "loss_entropy": "loss/entropy",
    "entropy": "policy/entropy",
    "kl_approx": "policy/kl_approx",
    "clip_fraction": "policy/clip_fraction",
    "ESS": "policy/effective_sample_size",
    "explained_variance": "value/explained_variance",
}


class Learner:
    """Owns what changes by learning: the optimizer, the schedules, the reward scale, the buffer.

    Args:
        config: the run's configuration.
        policy: the policy to improve, in place.
    """

    def __init__(self, config: TrainConfig, policy: ActorCritic) -> None:
        device = torch.device(config.device)
        self.config = config
        self.policy = policy
        self.loss = make_loss(config, policy).to(device)
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=config.lr, eps=1e-5, fused=True)
        self.reward_scaler = RewardScaler(
            config.env.num_envs, config.algorithm.gamma, config.env.reward_scale, config.env.normalize_reward
        ).to(device)
        self.buffer = SliceBuffer(config.slices_per_batch, config.slice_len, config.minibatch_slices, device)
        self.states = SliceStates(config, policy)

    def learn(self, batch_NT: TensorDictBase, progress: float) -> dict[str, float]:
        """Improves the policy by one batch of rows, and returns what to log.

        Args:
            batch_NT: what the collector handed out.
            progress: the fraction of the run's frames that came before, for the schedules.
        """
        self._anneal(progress)
        after = batch_NT["next"]
        reward_NT = self.reward_scaler(after["reward"].squeeze(-1), after["done"].squeeze(-1))
        self.states.take(batch_NT)
        metrics = self._epochs(batch_NT, reward_NT)
        # Only now: until the next batch is collected, rollout and update normalise alike.
        self.policy.observe(batch_NT[OBSERVATION])
        return metrics

    def _prepare(self, batch_NT: TensorDictBase, reward_NT: Tensor) -> None:
        """Makes of a batch what an epoch learns from."""
        if self.states.refreshes:
            self.states.refresh(batch_NT)
        algorithm = self.config.algorithm
        add_advantages(batch_NT, self.policy, reward_NT, algorithm.gamma, algorithm.lmbda)
        keys = (OBSERVATION, "is_init", ACTION, LOG_PROB, VALUE, ADVANTAGE, VALUE_TARGET, *self.policy.state_keys)
        self.buffer.fill(batch_NT, keys)

    def _epochs(self, batch_NT: TensorDictBase, reward_NT: Tensor) -> dict[str, float]:
        sums: dict[str, Tensor] = defaultdict(lambda: torch.zeros(()))
        count = 0
        target_kl = self.config.algorithm.target_kl
        for epoch in range(self.config.epochs):
            if epoch == 0 or self.states.refreshes:
                self._prepare(batch_NT, reward_NT)
            kl = []
            for minibatch in self.buffer.epoch():
                self.states.enter(minibatch)
                values = self._step(minibatch)
                kl.append(values["policy/kl_approx"])
                for name, value in values.items():
                    sums[name] = sums[name] + value
                count += 1
            if target_kl is not None and float(torch.stack(kl).mean()) > target_kl:
                break
        metrics = {name: float(total) / count for name, total in sums.items()}
        metrics |= self.states.drift(minibatch)
        return {**metrics, "optim/lr": self.optimizer.param_groups[0]["lr"], "optim/steps": float(count)}

    def _step(self, minibatch: TensorDictBase) -> dict[str, Tensor]:
        output: Any = self.loss(minibatch)
        self.optimizer.zero_grad()
        sum(output[name] for name in LOSSES).backward()
        limit = self.config.algorithm.max_grad_norm
        norm = nn.utils.clip_grad_norm_(self.policy.parameters(), float("inf") if limit is None else limit)
        self.optimizer.step()
        values = {name: output[key].detach().mean() for key, name in DIAGNOSTICS.items()}
        return {**values, "optim/grad_norm": norm}

    def _anneal(self, progress: float) -> None:
        config, algorithm = self.config, self.config.algorithm
        for group in self.optimizer.param_groups:
            group["lr"] = annealed(config.lr, config.lr_final_fraction, progress)
        self.loss.clip_epsilon.fill_(annealed(algorithm.clip_epsilon, algorithm.clip_final_fraction, progress))
        self.loss.entropy_coeff.fill_(annealed(algorithm.entropy_coeff, algorithm.entropy_final_fraction, progress))


def annealed(start: float, final_fraction: float, progress: float) -> float:
    """``start`` at progress 0, ``start · final_fraction`` at progress 1, linear between."""
    return start * (1 - (1 - final_fraction) * progress)
