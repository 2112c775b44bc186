"""The base class of algorithms: from rollouts to gradient steps.

Shape legend: N environments, T steps of a row, S slices, K steps of a slice.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer

from recurrl.algorithms import checks
from recurrl.algorithms.gradient_signal import GradientSignal
from recurrl.algorithms.metrics import GRAD_NORM, KL, STEPS, Losses, mean_metrics, step_metrics, weighted
from recurrl.algorithms.states import SliceStates
from recurrl.config import AlgorithmConfig, TrainConfig
from recurrl.config.plugins import factory
from recurrl.keys import INSERTED, IS_INIT, LOSS_MASK, OBSERVATION
from recurrl.policy.normalization import RewardScaler
from recurrl.policy.policy import Policy, SequenceOutput
from recurrl.runtime.compiling import compiled
from recurrl.runtime.metrics import merged
from recurrl.runtime.ranks import world

logger = logging.getLogger(__name__)
Metrics = Mapping[str, Tensor]
OPTIMIZERS = {"adam": Adam, "adamw": AdamW}
EPS = 1e-5
# An adaptive learning rate changes by this factor, within these bounds, when the KL of a step is above twice or below
# half the desired one (Schulman's rule, with the values of Rudin et al. 2022, https://arxiv.org/abs/2109.11978).
LR_FACTOR, LR_BOUNDS = 1.5, (1e-5, 1e-2)
SEPARATE = ("policy.", "reward_scaler.")
"""Prefixes of the entries of an algorithm's state that checkpoints store as separate components."""


class Algorithm(nn.Module):
    """Improves a policy from rollouts.

    A subclass defines :meth:`prepare`, called once per iteration, and :meth:`loss`, called with each minibatch.
    Modules, parameters and buffers that its constructor assigns are moved to the policy's device, optimised with the
    policy and saved in checkpoints.

    Args:
        options: the algorithm's options.
        policy: the policy to improve, in place.
        config: the run's configuration: epochs, minibatches, optimizer.

    Attributes:
        log_clip_range: the range that a clipped objective clips log-ratios to; None for an objective without clipping.
        progress: the fraction of the schedules completed before this iteration.
        rows: the rows that the last iteration learned from, after :meth:`prepare`; None before the first iteration.
        compile_time_s: seconds that the first compiled loss and gradient took; None before, and with ``compile=none``.
    """

    log_clip_range: tuple[float, float] | None = None

    def __init__(self, options: AlgorithmConfig, policy: Policy, config: TrainConfig) -> None:
        super().__init__()
        self.options, self.policy, self.config = options, policy, config
        self.reward_scaler = RewardScaler(
            config.env.num_envs, options.gamma, config.env.reward_scale, config.env.normalize_reward
        )
        self.gradient_signal = GradientSignal()
        self.skipped_in_a_row = nn.Buffer(torch.zeros((), dtype=torch.int64))
        self.buffer = factory("buffer", config.buffer.name)(config.buffer, config.slice_len, config.minibatch_slices)
        self.states = SliceStates(policy, config.state, config.slice_len)
        self.progress = 0.0
        self.rows: TensorDictBase | None = None
        self.compile_time_s: float | None = None
        self._is_checked = False

    def prepare(self, rows_NT: TensorDictBase, reward_NT: Tensor) -> dict[str, float]:
        """Computes the inputs of the loss, such as advantages, into rows ``[N, T]``, and advances schedules.

        Called once per iteration, without gradients, before the policy changes. Minibatches hold all entries but
        ``next``. One number per step is written as ``[N, T, 1]``.

        Args:
            rows_NT: the rollout, with replayed rows if the buffer adds any.
            reward_NT: the scaled rewards ``[N, T]``.

        Returns:
            Metrics to log, by the names of their columns in ``metrics.csv``.
        """
        raise NotImplementedError

    def loss(self, slices_SK: TensorDictBase, output: SequenceOutput) -> Losses:
        """The loss of a minibatch.

        Args:
            slices_SK: the entries of rows, cut into slices ``[S, K]``. If there is an entry ``loss_mask``
                ``[S, K, 1]``, only steps where it is true count: the others are not transitions.
            output: the policy's output on these slices, with gradient.
        """
        raise NotImplementedError

    def annealed(self, start: float, final_fraction: float, power: float = 1.0) -> float:
        """The annealed value for this iteration, which falls from ``start`` towards ``start · final_fraction``.

        The final value, ``start · final_fraction``, is that of the end of ``schedule_frames`` (null: ``total_frames``).
        It is not reached: the last iteration that is wholly within these frames uses the value at its beginning, and
        all later ones keep it, so that a run that is continued beyond its schedules still learns.

        Its distance to the final value falls linearly and, after ``schedule_sqrt_after`` frames, is also multiplied by
        √(schedule_sqrt_after / frames). As a fraction of the distance at the beginning, it is then raised to ``power``;
        below 1, the value stays high for longer.
        """
        fallen = self.progress
        frames = fallen * (self.config.schedule_frames or self.config.total_frames)
        if self.config.schedule_sqrt_after is not None and frames > self.config.schedule_sqrt_after:
            fallen = 1 - (1 - fallen) * math.sqrt(self.config.schedule_sqrt_after / frames)
        return start * (final_fraction + (1 - final_fraction) * (1 - fallen) ** power)

    @cached_property
    def optimizer(self) -> Optimizer:
        """The optimizer of all trainable parameters, the policy's and the algorithm's own."""
        parameters = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return OPTIMIZERS[self.config.optimizer](parameters, lr=self.config.lr, eps=EPS, fused=True)

    def update(self, rollout_NT: TensorDictBase, progress: float) -> dict[str, float]:
        """Improves the policy from a rollout, and returns metrics.

        Args:
            rollout_NT: rows of all environments.
            progress: the fraction of the schedules completed before this iteration.

        Raises:
            NonFiniteError: too many consecutive gradient steps had a non-finite loss or gradient.
            RunError: the loss does not depend on the parameters.
            ConfigError: ``prepare`` returns no metrics or writes numbers ``[N, T]`` instead of ``[N, T, 1]``, ``loss``
                does not return what :class:`Losses` describes, or a parameter would not be trained.
        """
        self.progress = progress
        if self.config.lr_schedule == "linear":
            self._optimized["lr"] = self.annealed(self.config.lr, self.config.lr_final_fraction)
        mask_NT, metrics = None, dict[str, float]()
        if INSERTED in rollout_NT["next"]:
            mask_NT1 = rollout_NT[LOSS_MASK] = ~rollout_NT["next", INSERTED]
            mask_NT = mask_NT1.squeeze(-1)
            metrics["collect/inserted_fraction"] = 1.0 - float(mask_NT.double().mean())
        reward_NT, is_init_NT = rollout_NT["next", "reward"].squeeze(-1), rollout_NT[IS_INIT].squeeze(-1)
        self.reward_scaler.update_statistics(reward_NT, is_init_NT, mask_NT)
        self.rows = rows_NT = self.buffer.extend(rollout_NT, self.gradient_signal.share)
        metrics["optim/replay_ratio"] = len(rows_NT) / len(rollout_NT)
        reward_NT = self.reward_scaler(rows_NT["next", "reward"].squeeze(-1))
        self.states.set_rows(rows_NT)
        before = set(rows_NT.keys())
        with torch.no_grad():
            prepared = self.prepare(rows_NT, reward_NT)
        if not self._is_checked:
            checks.check_prepared(self, prepared, rows_NT, before)
        metrics = merged(metrics, self.states.norms(rows_NT), prepared, self._run_epochs(rows_NT))
        # Last, because rollout and update must normalise observations by the same statistics.
        seen_NT = rollout_NT[OBSERVATION]
        self.policy.update_statistics(seen_NT if mask_NT is None else seen_NT[mask_NT].unsqueeze(0))
        return world().averaged(metrics)

    def _run_epochs(self, rows_NT: TensorDictBase) -> dict[str, float]:
        steps: list[Metrics] = []
        has_changed = False
        for epoch in range(self.config.epochs):
            self.states.begin_epoch(rows_NT)
            before = len(steps)
            for slices_SK in self.buffer.minibatches(rows_NT):
                self.states.set_initial_states(slices_SK)
                steps.append(self.gradient_step(slices_SK))
                if epoch == 0:
                    self.gradient_signal.add(self._optimized["params"], steps[-1][STEPS])
                if self.config.lr_schedule == "adaptive":
                    kl = self._kl(steps[-1:])
                    # Until a step has been taken, the KL is zero.
                    if has_changed:
                        self._adapt_lr(kl)
                    has_changed |= not math.isnan(kl)
            checks.check_skipped(self, steps[before:])
            if epoch == 0:
                self.gradient_signal.end_epoch()
                epochs = self.epochs()
            limit = self.options.target_kl
            if epoch + 1 == epochs or (limit is not None and self._kl(steps[before:]) > limit):
                break
        metrics = mean_metrics(steps, self.log_clip_range)
        checks.check_parameters(self)
        has_loss = any(value != 0 for name, value in metrics.items() if name.startswith("loss/"))
        learns = not has_loss or metrics[GRAD_NORM] != 0
        checks.check_learns(self, learns, "has a gradient of exactly zero in all steps of an iteration")
        optim = {"optim/lr": self._optimized["lr"], "optim/signal": self.gradient_signal.share}
        return merged(metrics, self.states.drift(slices_SK), optim)

    def epochs(self) -> int:
        """The number of epochs of this iteration: fewer if gradients are mostly noise. Called after the first epoch."""
        return self.gradient_signal.epochs(self.config.epochs, self.config.min_epochs_fraction)

    def gradient_step(self, slices_SK: TensorDictBase) -> Metrics:
        """One step of the optimizer, without waiting for the device.

        It is skipped if loss or gradient is not finite. It is also skipped if every transition in the minibatch is
        masked, because only momentum would move the weights.

        Returns:
            The :func:`~recurrl.algorithms.metrics.step_metrics` of this step.
        """
        losses, total = self.backward(slices_SK)
        parameters = self._optimized["params"]
        if world().size > 1:
            average_gradients(parameters, total)
        norm = nn.utils.clip_grad_norm_(parameters, self.options.max_grad_norm or math.inf)
        # The sum is finite only if both are; a product with zero is NaN otherwise.
        skipped = ((total + norm) * 0.0).float().nan_to_num(nan=1.0)
        # Fused optimizers take no step where found_inf is 1, the flag that torch.amp.GradScaler sets.
        skip_step = skipped if losses.weight is None else skipped.maximum(losses.weight <= 0)
        self.optimizer.found_inf = skip_step  # type: ignore[attr-defined]
        self.optimizer.step()
        return step_metrics(losses, norm, skipped, 1.0 - skip_step)

    def backward(self, slices_SK: TensorDictBase) -> tuple[Losses, Tensor]:
        """Computes a minibatch's losses, weighted across ranks, and the gradients; returns the losses and their sum."""
        began = time.perf_counter()
        losses = self._losses(slices_SK)
        if not self._is_checked:
            checks.check_losses(losses, self, slices_SK)
        if losses.weight is None and losses.mask is not None:
            losses = losses._replace(weight=losses.mask.sum().float())
        if losses.weight is not None:
            terms, weight = weighted(losses.terms, losses.weight)
            losses = losses._replace(terms=terms, weight=weight)
        total = losses.total
        checks.check_learns(self, total.requires_grad, "does not require a gradient")
        for parameter in self._optimized["params"]:
            parameter.grad = None
        total.backward()
        if not self._is_checked:
            checks.check_parameters(self)
            self._is_checked = True
        # A module that routes its inputs, such as a mixture of experts, uses other parameters in each minibatch. Their
        # gradient is zero, so that ranks, which use different ones, learn what one process does.
        for parameter in (each for each in self._optimized["params"] if each.grad is None):
            parameter.grad = torch.zeros_like(parameter)
        if self.config.compile != "none" and self.compile_time_s is None:
            self.compile_time_s = time.perf_counter() - began
        return losses, total.detach()

    @cached_property
    def _losses(self) -> Callable[[TensorDictBase], Losses]:
        def losses(slices_SK: TensorDictBase) -> Losses:
            return self.loss(slices_SK, self.policy.sequence(*self.policy.inputs(slices_SK)))

        if self.config.compile == "none":
            return losses
        logger.info("The first update compiles the loss, which takes ten seconds or more.")
        return compiled(losses, torch.device(self.config.device), self.config.compile == "cudagraphs")

    @property
    def _optimized(self) -> dict[str, Any]:
        """The optimizer's only group: the parameters that it changes, ``params``, and their learning rate, ``lr``."""
        return self.optimizer.param_groups[0]

    def _adapt_lr(self, kl: float) -> None:
        """Adapts the learning rate to the KL of the last gradient step."""
        lr = self._optimized["lr"]
        if kl > 2 * self.config.desired_kl:
            self._optimized["lr"] = max(lr / LR_FACTOR, LR_BOUNDS[0])
        elif kl < self.config.desired_kl / 2:
            self._optimized["lr"] = min(lr * LR_FACTOR, LR_BOUNDS[1])

    def _kl(self, steps: Sequence[Metrics]) -> float:
        """The mean KL of gradient steps; NaN if none was taken."""
        return world().averaged(mean_metrics(steps, self.log_clip_range)).get(KL, math.nan)

    def components(self) -> dict[str, Any]:
        """The parts that checkpoints hold, each with ``state_dict`` and ``load_state_dict``."""
        return {
            "policy": self.policy,
            "algorithm": AlgorithmState(self),  # before the optimizer, whose errors name no parameter
            "optimizer": self.optimizer,
            "reward_scaler": self.reward_scaler,
            **({"buffer": self.buffer} if self.config.buffer.replays else {}),
        }


class AlgorithmState:
    """An algorithm's state for checkpoints, without its policy and reward scaler, which are saved separately."""

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm

    def state_dict(self) -> dict[str, Any]:
        """Parameters and buffers by name."""
        state = self._algorithm.state_dict().items()
        return {name: value for name, value in state if not name.startswith(SEPARATE)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the parameters and buffers.

        Raises:
            RuntimeError: the state has other names or shapes than the algorithm.
        """
        separate = {name: value for name, value in self._algorithm.state_dict().items() if name.startswith(SEPARATE)}
        self._algorithm.load_state_dict({**separate, **state})


def average_gradients(parameters: Sequence[nn.Parameter], total: Tensor) -> None:
    """Replaces gradients by their mean over ranks.

    Args:
        parameters: the parameters that the optimizer updates.
        total: the loss. If it is not finite, neither is the mean, so that all ranks skip the step.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    mean = world().all_reduce_(torch.cat([gradient.flatten() for gradient in gradients]) / world().size + total * 0.0)
    for gradient, part in zip(gradients, mean.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))
