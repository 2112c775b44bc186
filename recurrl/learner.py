"""Updates the policy from one batch: advantages, epochs of minibatches, loss, clipped step, schedules."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from recurrl.advantage import LOSS_MASK
from recurrl.buffer import SliceBuffer
from recurrl.compiling import Loss, compiled
from recurrl.config import TrainConfig
from recurrl.errors import NonFiniteError
from recurrl.losses import Losses, make_algorithm
from recurrl.normalization import RewardScaler
from recurrl.policy import OBSERVATION, Policy
from recurrl.schedule import annealed
from recurrl.states import SliceStates

# An adaptive learning rate changes by this factor when the KL of a step is twice or half of what is desired, within
# these bounds (Schulman's rule, with the figures of Rudin et al. 2022, https://arxiv.org/abs/2109.11978).
LR_FACTOR = 1.5
LR_BOUNDS = (1e-5, 1e-2)
BETAS = (0.9, 0.99)
"""Once a task is solved gradients are small. A slower average of their squares would answer the first surprise by steps
several times as large as the learning rate, which undo what was learnt (Dohare et al. 2023, "Overcoming policy collapse
in deep reinforcement learning").
"""
SKIPPED = "optim/skipped_steps"


class Trial(NamedTuple):
    """A minibatch evaluated without a step: its losses, and the parameters with a non-finite gradient."""

    losses: dict[str, float]
    not_finite: list[str]


class Learner:
    """Owns what changes by learning: the optimizer, the schedules, the reward scale, the buffer.

    Args:
        config: the run's configuration.
        policy: the policy to improve, in place.

    Attributes:
        compile_time_s: seconds of the first gradient where the loss is compiled, nearly all of them the compiler's;
            None before it, and where nothing is compiled.
    """

    compile_time_s: float | None = None

    def __init__(self, config: TrainConfig, policy: Policy) -> None:
        device = torch.device(config.device)
        self.config = config
        self.policy = policy
        self.algorithm = make_algorithm(config, policy)
        self._loss: Loss = compiled(self.algorithm.loss, device) if config.compile else self.algorithm.loss
        self._parameters = list(policy.parameters())
        self.optimizer = torch.optim.Adam(self._parameters, lr=config.lr, betas=BETAS, eps=1e-5, fused=True)
        self.reward_scaler = RewardScaler(
            config.env.num_envs, config.algorithm.gamma, config.env.reward_scale, config.env.normalize_reward
        ).to(device)
        self.buffer = SliceBuffer(config.slices_per_batch, config.slice_len, config.minibatch_slices)
        self.states = SliceStates(config, policy)
        self._skipped_in_a_row = torch.zeros((), device=device)

    def learn(self, batch_NT: TensorDictBase, progress: float) -> dict[str, float]:
        """Improves the policy by one batch of rows, and returns what to log.

        Args:
            batch_NT: what the collector handed out.
            progress: the fraction of the run's frames that came before, for the schedules.

        Raises:
            NonFiniteError: too many gradient steps in a row had a loss or a gradient that is not finite.
        """
        self._begin_iteration(progress)
        reward_NT = self.reward_scaler(batch_NT["next", "reward"].squeeze(-1), batch_NT["is_init"].squeeze(-1))
        self.states.take(batch_NT)
        metrics = self.states.norms(batch_NT)
        metrics |= self._prepare(batch_NT, reward_NT)
        if LOSS_MASK in batch_NT and not batch_NT[LOSS_MASK].any():
            # A step would follow the optimizer's momentum alone.
            metrics["optim/steps"] = 0.0
        else:
            metrics |= self._epochs(batch_NT, reward_NT)
        # Only now: until the next batch is collected, rollout and update normalise alike.
        self.policy.observe(batch_NT[OBSERVATION])
        return metrics

    def state_dict(self) -> dict[str, Tensor]:
        """For a checkpoint: what changes by learning beside the parts that have states of their own."""
        return {"skipped_in_a_row": self._skipped_in_a_row}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """From a checkpoint."""
        self._skipped_in_a_row.copy_(state["skipped_in_a_row"])

    def _prepare(self, batch_NT: TensorDictBase, reward_NT: Tensor) -> dict[str, float]:
        """Makes of a batch what an epoch learns from."""
        if self.states.refreshes:
            self.states.refresh(batch_NT)
        metrics = self.algorithm.prepare(batch_NT, reward_NT)
        self.buffer.fill(batch_NT, self.algorithm.keys)
        return metrics

    def _epochs(self, batch_NT: TensorDictBase, reward_NT: Tensor) -> dict[str, float]:
        steps: list[dict[str, Tensor]] = []
        target_kl = self.config.algorithm.target_kl
        for epoch in range(self.config.epochs):
            if epoch > 0 and self.states.refreshes:
                self._prepare(batch_NT, reward_NT)
            before = len(steps)
            for minibatch in self.buffer.epoch():
                self.states.enter(minibatch)
                steps.append(self._step(minibatch, first=not steps))
            self._refuse_endless_skipping()
            if target_kl is not None and _means(steps[before:])["policy/kl_approx"] > target_kl:
                break
        self.algorithm.end_iteration(_means(steps[before:])["policy/kl"])
        metrics = _means(steps) | self.states.drift(minibatch)
        return {**metrics, "optim/lr": self.optimizer.param_groups[0]["lr"], "optim/steps": float(len(steps))}

    def _step(self, minibatch: TensorDictBase, first: bool) -> dict[str, Tensor]:
        losses, total = self._gradient(minibatch)
        values = losses.logged()
        if self.config.lr_schedule == "adaptive" and not first:
            # The first step's minibatch comes from the policy itself: its KL of zero says nothing of the rate.
            self._adapt_lr(float(values["policy/kl"]))
        limit = self.config.algorithm.max_grad_norm
        norm = nn.utils.clip_grad_norm_(self._parameters, float("inf") if limit is None else limit)
        finite = total.isfinite() & norm.isfinite()
        # The fused optimizer leaves everything as it is where this is one, without asking the device for it.
        self.optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
        self.optimizer.step()
        self._skipped_in_a_row = torch.where(finite, 0.0, self._skipped_in_a_row + 1)
        return {**values, "optim/grad_norm": norm, SKIPPED: (~finite).float()}

    def _gradient(self, minibatch: TensorDictBase) -> tuple[Losses, Tensor]:
        """The losses of a minibatch, and their total, whose gradient the parameters then have."""
        began = time.perf_counter()
        losses = self._loss(minibatch)
        for parameter in self._parameters:
            parameter.grad = None  # what zero_grad does, in a tenth of the time
        total = losses.total
        total.backward()
        if self.config.compile and self.compile_time_s is None:
            self.compile_time_s = time.perf_counter() - began
        return losses, total.detach()

    def trial(self, batch_NT: TensorDictBase) -> Iterator[Trial]:
        """Goes over rows once more, as an epoch does, and changes nothing that is learnt.

        Args:
            batch_NT: rows that learning has prepared before.
        """
        self.states.take(batch_NT)
        self.buffer.fill(batch_NT, self.algorithm.keys)
        for minibatch in self.buffer.epoch():
            self.states.enter(minibatch)
            losses, _ = self._gradient(minibatch)
            terms = {f"loss/{name}": float(term.detach()) for name, term in losses.terms.items()}
            gradients = {name: p.grad for name, p in self.policy.named_parameters() if p.grad is not None}
            yield Trial(terms, [name for name, gradient in gradients.items() if not gradient.isfinite().all()])

    def _refuse_endless_skipping(self) -> None:
        skipped = int(self._skipped_in_a_row)
        if skipped >= self.config.max_skipped_steps:
            raise NonFiniteError(
                f"Training produced NaN or Inf: the last {skipped} gradient steps had a non-finite loss or gradient "
                "and were skipped. A smaller lr or algorithm.max_grad_norm may help; so may normalised or clipped "
                "observations and rewards."
            )

    def _begin_iteration(self, progress: float) -> None:
        config = self.config
        if config.lr_schedule == "linear":
            self._set_lr(annealed(config.lr, config.lr_final_fraction, progress))
        self.algorithm.begin_iteration(progress)

    def _adapt_lr(self, kl: float) -> None:
        lr = self.optimizer.param_groups[0]["lr"]
        if kl > 2 * self.config.desired_kl:
            self._set_lr(max(lr / LR_FACTOR, LR_BOUNDS[0]))
        elif kl < self.config.desired_kl / 2:
            self._set_lr(min(lr * LR_FACTOR, LR_BOUNDS[1]))

    def _set_lr(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr


def _means(steps: list[dict[str, Tensor]]) -> dict[str, float]:
    """The mean metrics of the steps that were not skipped, and the number of skipped ones.

    Shape legend: S steps, M values of a step.
    """
    names = list(steps[0])
    table_SM = torch.stack([torch.stack(list(values.values())) for values in steps])
    skipped_S1 = table_SM[:, names.index(SKIPPED)].unsqueeze(1)
    skipped = float(skipped_S1.sum())
    sums_M = table_SM.masked_fill(skipped_S1 > 0, 0.0).sum(0)
    means = (sums_M / max(len(steps) - skipped, 1)).tolist()
    return {**dict(zip(names, means, strict=True)), SKIPPED: skipped}
