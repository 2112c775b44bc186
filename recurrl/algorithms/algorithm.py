"""What algorithms share: from rollouts to gradient steps.

Shape legend: N environments, T steps of a row, S slices, K steps of a slice, M minibatches.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer

from recurrl.algorithms.checks import check_losses, check_own_parameters, missing_critic_named
from recurrl.algorithms.compiling import compiled
from recurrl.algorithms.gradient_signal import GradientSignal
from recurrl.algorithms.importance import ratio_metrics
from recurrl.algorithms.states import SliceStates
from recurrl.config import AlgorithmConfig, TrainConfig
from recurrl.config.plugins import factory
from recurrl.errors import ConfigError, NonFiniteError, RunError
from recurrl.keys import INSERTED, LOSS_MASK, OBSERVATION
from recurrl.policy import Policy
from recurrl.policy.normalization import RewardScaler
from recurrl.policy.policy import SequenceOutput
from recurrl.recurrent.module.keys import IS_INIT
from recurrl.runtime.ranks import world

KL, SKIPPED, GRAD_NORM = "policy/kl", "optim/skipped_steps", "optim/grad_norm"

OPTIMIZERS = {"adam": Adam, "adamw": AdamW}
EPS = 1e-5
MAX_SKIPPED_STEPS = 10
"""Gradient steps with NaN or Inf are skipped; this many in a row end the run."""
# An adaptive learning rate changes by this factor when the KL of a step is twice or half the desired one, within these
# bounds (Schulman's rule, with the values of Rudin et al. 2022, https://arxiv.org/abs/2109.11978).
LR_FACTOR, LR_BOUNDS = 1.5, (1e-5, 1e-2)

Value = TypeVar("Value")


class Losses(NamedTuple):
    """The loss of a minibatch.

    Attributes:
        terms: scalars whose sum is minimised, logged as ``loss/<name>``.
        metrics: other scalars to log, without gradient, by the name of their column in ``metrics.csv``.
        log_ratio: log π(a) − log π_behaviour(a), ``[S, K]``, without gradient. The KL follows from it; without it
            ``lr_schedule=adaptive`` and ``algorithm.target_kl`` are unsupported.
        mask: bool ``[S, K]``, the steps that count in metrics; None for all.
        weight: what the terms were divided by, a scalar, if it differs from minibatch to minibatch; ranks weight theirs
            by it.
    """

    terms: dict[str, Tensor]
    metrics: Mapping[str, Tensor] = MappingProxyType({})
    log_ratio: Tensor | None = None
    mask: Tensor | None = None
    weight: Tensor | None = None

    @property
    def total(self) -> Tensor:
        """The sum of the terms."""
        first, *others = self.terms.values()
        return sum(others, first)


class Step(NamedTuple):
    """What is kept of a gradient step.

    Attributes:
        columns: the losses' terms and metrics, the gradient's norm, and 1 if the step was skipped; without gradient.
        log_ratio: the losses'.
        mask: the losses'.
    """

    columns: dict[str, Tensor]
    log_ratio: Tensor | None
    mask: Tensor | None


class Algorithm(nn.Module):
    """Improves a policy from rollouts.

    A subclass defines :meth:`prepare`, called once an iteration, and :meth:`loss`, called with each minibatch. Modules,
    parameters and buffers that its constructor assigns are moved to the policy's device, optimised with the policy and
    saved in checkpoints.

    Args:
        options: the algorithm's.
        policy: the policy to improve, in place.
        config: the run's: epochs, minibatches, optimizer.

    Attributes:
        progress: the fraction of the run's frames before this iteration.
        rows: those of the last iteration, as prepared; None before it.
        compile_time_s: seconds of the first compiled gradient; None before it, and without ``compile=true``.
    """

    log_clip_range: tuple[float, float] | None = None
    """The log-ratios that a clipped objective clips to; None if the algorithm has none."""

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
        # Those of each gradient step's metrics; true for means over the steps that count.
        self._columns: dict[str, bool] = {}

    def begin_iteration(self) -> None:
        """Called first in each iteration, for schedules (:meth:`annealed`). The policy is the one that collected."""

    def prepare(self, rows_NT: TensorDictBase, reward_NT: Tensor) -> dict[str, float]:
        """Writes what the loss reads, such as advantages, into rows ``[N, T]``.

        Called once an iteration, with ``state=refresh`` once an epoch. Minibatches hold all entries but ``next``.

        Args:
            rows_NT: the rollout, with replayed rows if the buffer adds any.
            reward_NT: the scaled rewards.

        Returns:
            Metrics.
        """
        raise NotImplementedError

    def loss(self, slices_SK: TensorDictBase, output: SequenceOutput) -> Losses:
        """The loss of a minibatch.

        Args:
            slices_SK: the entries of rows, cut into slices. With ``loss_mask`` ``[S, K, 1]``, only steps where it is
                true count: others are no transitions.
            output: of the policy on these slices, with gradient.
        """
        raise NotImplementedError

    def annealed(self, start: float, final_fraction: float) -> float:
        """``start`` at the run's beginning, ``start · final_fraction`` at its end, linear between."""
        return start * (1 - (1 - final_fraction) * self.progress)

    @cached_property
    def optimizer(self) -> Optimizer:
        """The optimizer of the policy's parameters and of the algorithm's."""
        parameters = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return OPTIMIZERS[self.config.optimizer](parameters, lr=self.config.lr, eps=EPS, fused=True)

    def update(self, rollout_NT: TensorDictBase, progress: float) -> dict[str, float]:
        """Improves the policy from a rollout, and returns metrics.

        Args:
            rollout_NT: rows of all environments.
            progress: the fraction of the run's frames before it, for the schedules.

        Raises:
            NonFiniteError: too many consecutive gradient steps had a non-finite loss or gradient.
            RunError: the loss does not depend on the parameters.
            ConfigError: the loss is not what :class:`Losses` describes.
        """
        self.progress = progress
        if self.config.lr_schedule == "linear":
            self._set_lr(self.annealed(self.config.lr, self.config.lr_final_fraction))
        self.begin_iteration()
        mask_NT, metrics = None, dict[str, float]()
        if INSERTED in rollout_NT["next"]:
            mask_NT1 = rollout_NT[LOSS_MASK] = ~rollout_NT["next", INSERTED]
            mask_NT = mask_NT1.squeeze(-1)
            metrics["collect/inserted_fraction"] = 1.0 - float(mask_NT.double().mean())
        reward_NT, is_init_NT = (rollout_NT[key].squeeze(-1) for key in (("next", "reward"), IS_INIT))
        self.reward_scaler.observe(reward_NT, is_init_NT, mask_NT)
        self.rows = rows_NT = self.buffer.extend(rollout_NT)
        reward_NT = self.reward_scaler(rows_NT["next", "reward"].squeeze(-1))
        self.states.set_rows(rows_NT)
        with nullcontext() if self._columns else missing_critic_named(self):
            metrics = merged(metrics, self.states.norms(rows_NT), self._prepare(rows_NT, reward_NT))
            if LOSS_MASK in rows_NT and not world().gathered(rows_NT[LOSS_MASK].any()).any():
                metrics["optim/steps"] = 0.0  # a step would follow the optimizer's momentum alone
            else:
                metrics = merged(metrics, self._epochs(rows_NT, reward_NT))
        # Not earlier: rollout and update must normalise observations by the same statistics.
        self.policy.observe(rollout_NT[OBSERVATION] if mask_NT is None else rollout_NT[OBSERVATION][mask_NT])
        return world().averaged(metrics)

    def _prepare(self, rows_NT: TensorDictBase, reward_NT: Tensor) -> dict[str, float]:
        if self.states.refreshes:
            self.states.refresh(rows_NT)
        metrics = self.prepare(rows_NT, reward_NT)
        if not isinstance(metrics, Mapping):
            raise ConfigError(
                f"prepare of algorithm={self.options.name} must return its metrics (got {metrics!r:.60}). Return {{}} "
                "for none."
            )
        check_numbers(metrics)
        return metrics

    def _epochs(self, rows_NT: TensorDictBase, reward_NT: Tensor) -> dict[str, float]:
        steps: list[Step] = []
        for epoch in range(self.config.epochs):
            if epoch > 0 and self.states.refreshes:
                self._prepare(rows_NT, reward_NT)
            before = len(steps)
            for slices_SK in self.buffer.minibatches(rows_NT):
                self.states.set_initial_states(slices_SK)
                steps.append(self.gradient_step(slices_SK))
                if epoch == 0:
                    self.gradient_signal.add(self.optimizer.param_groups[0]["params"])
                # The KL of the first minibatch is zero: the policy is still the one that collected it.
                if self.config.lr_schedule == "adaptive" and len(steps) > 1:
                    self._adapt_lr(self._kl(steps[-1:]))
            self._check_skipped(steps[before:])
            if epoch == 0:
                self.gradient_signal.end_epoch()
                epochs = self.gradient_signal.epochs(self.config.epochs, self.config.min_epochs_fraction)
            if epoch + 1 == epochs:
                break
            if self.options.target_kl is not None and self._kl(steps[before:]) > self.options.target_kl:
                break
        metrics = self._means(steps)
        self._check_gradient(metrics)
        optim = {
            "optim/lr": self.optimizer.param_groups[0]["lr"],
            "optim/steps": float(len(steps)),
            "optim/signal": self.gradient_signal.share,
        }
        return merged(metrics, self.states.drift(slices_SK), optim)

    def gradient_step(self, slices_SK: TensorDictBase) -> Step:
        """One step of the optimizer, skipped if loss or gradient is not finite, without waiting for the device."""
        losses, total = self.backward(slices_SK)
        parameters = self.optimizer.param_groups[0]["params"]
        if world().size > 1:
            average_gradients(parameters, total)
        norm = nn.utils.clip_grad_norm_(parameters, self.options.max_grad_norm or math.inf)
        # The sum is finite only if both are; a product with zero is NaN otherwise.
        skipped = ((total + norm) * 0.0).float().nan_to_num(nan=1.0)
        # Fused optimizers read it, as torch.amp.GradScaler sets it.
        self.optimizer.found_inf = skipped  # type: ignore[attr-defined]
        self.optimizer.step()
        terms = {f"loss/{name}": term.detach() for name, term in losses.terms.items()}
        columns = {**terms, **losses.metrics, GRAD_NORM: norm, SKIPPED: skipped}
        return Step(columns, losses.log_ratio, losses.mask)

    def backward(self, slices_SK: TensorDictBase) -> tuple[Losses, Tensor]:
        """The losses of a minibatch and their sum, whose gradient is then in the parameters' ``grad``."""
        began, is_first = time.perf_counter(), not self._columns
        losses = self._first_losses(slices_SK) if is_first else self._losses(slices_SK)
        if losses.weight is not None and world().size > 1:
            share = share_of_ranks(losses.weight)
            losses = losses._replace(terms={name: term * share for name, term in losses.terms.items()})
        total = losses.total
        if not total.requires_grad:
            raise RunError(self._no_gradient("does not require a gradient"))
        for parameter in self.optimizer.param_groups[0]["params"]:
            parameter.grad = None
        total.backward()
        if is_first:
            check_own_parameters(self)
        if self.config.compile and self.compile_time_s is None:
            self.compile_time_s = time.perf_counter() - began
        return losses, total.detach()

    @cached_property
    def _losses(self) -> Callable[[TensorDictBase], Losses]:
        def losses(slices_SK: TensorDictBase) -> Losses:
            return self.loss(slices_SK, self.policy.sequence(*self.policy.inputs(slices_SK)))

        return compiled(losses) if self.config.compile else losses

    def _first_losses(self, slices_SK: TensorDictBase) -> Losses:
        """The losses of the first minibatch of a run, checked; those of the others must have the same columns.

        Raises:
            ConfigError: the loss is not what :class:`Losses` describes.
        """
        losses = self._losses(slices_SK)
        if not isinstance(losses, Losses):
            raise ConfigError(
                f"The loss of algorithm={self.options.name} must be recurrl.algorithms.Losses (got a "
                f"{type(losses).__name__}). Return Losses({{'objective': loss}})."
            )
        check_losses(losses, self, slices_SK.batch_size)
        terms = {f"loss/{name}": False for name in losses.terms}
        self._columns = merged(terms, dict.fromkeys(losses.metrics, True), {GRAD_NORM: False, SKIPPED: False})
        return losses

    def _set_lr(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def _adapt_lr(self, kl: float) -> None:
        """Adapts the learning rate to the KL of the last gradient step."""
        lr, desired = self.optimizer.param_groups[0]["lr"], self.config.desired_kl
        if kl > 2 * desired:
            self._set_lr(max(lr / LR_FACTOR, LR_BOUNDS[0]))
        elif kl < desired / 2:
            self._set_lr(min(lr * LR_FACTOR, LR_BOUNDS[1]))

    def _kl(self, steps: Sequence[Step]) -> float:
        return world().averaged({KL: self._means(steps)[KL]})[KL]

    @torch.no_grad()
    def _means(self, steps: Sequence[Step]) -> dict[str, float]:
        """The mean metrics of gradient steps without the skipped ones, and the number of skipped ones."""
        for step in steps:
            if changed := step.columns.keys() ^ self._columns.keys():
                raise ConfigError(
                    f"The loss of algorithm={self.options.name} returns {sorted(changed)} for some minibatches only. "
                    "Return the same terms and metrics for each."
                )
        names = list(steps[0].columns)
        table_MX = torch.stack([step.columns[name] for step in steps for name in names]).view(len(steps), -1)
        columns = dict(zip(names, table_MX.unbind(1), strict=True))
        skipped_M = columns.pop(SKIPPED)
        log_ratio_MSK, mask_MSK = _stacked(step.log_ratio for step in steps), _stacked(step.mask for step in steps)
        if log_ratio_MSK is not None:
            counted_MSK = torch.ones_like(log_ratio_MSK, dtype=torch.bool) if mask_MSK is None else mask_MSK
            columns = merged(columns, ratio_metrics(log_ratio_MSK, counted_MSK, self.log_clip_range))
        if mask_MSK is not None and world().size > 1:
            share_M = share_of_ranks(mask_MSK.flatten(1).sum(1).double())
            for name, column in columns.items():
                columns[name] = column * share_M if self._columns.get(name, True) else column
        kept_M1 = (skipped_M == 0).unsqueeze(1)
        means = torch.stack(list(columns.values()), 1).where(kept_M1, 0.0).sum(0) / kept_M1.sum().clamp(min=1)
        return {**dict(zip(columns, means.tolist(), strict=True)), SKIPPED: float(skipped_M.sum())}

    def _check_gradient(self, metrics: Mapping[str, float]) -> None:
        """An iteration without a gradient has lost its parameters, unless its loss is exactly zero."""
        is_zero = metrics[GRAD_NORM] == 0 and metrics[SKIPPED] < 1
        if is_zero and any(value != 0 for name, value in metrics.items() if name.startswith("loss/")):
            raise RunError(self._no_gradient("has a gradient of exactly zero in all steps of an iteration"))

    def _no_gradient(self, what: str) -> str:
        return (
            f"The loss of algorithm={self.options.name} {what}, so nothing would be learnt. Look for parameters that "
            "were detached or replaced, for example by requires_grad_(False) in a callback."
        )

    def _check_skipped(self, steps: Sequence[Step]) -> None:
        in_a_row = int(self.skipped_in_a_row)
        for skipped in torch.stack([step.columns[SKIPPED] for step in steps]).tolist():
            in_a_row = in_a_row + 1 if skipped else 0
        self.skipped_in_a_row.fill_(in_a_row)
        if in_a_row >= MAX_SKIPPED_STEPS:
            raise NonFiniteError(
                f"Training produced NaN or Inf: the last {in_a_row} gradient steps had a non-finite loss or gradient "
                f"and were skipped (not finite: {self._not_finite(steps[-1])}). A smaller lr or "
                "algorithm.max_grad_norm may help; so may normalised or clipped observations and rewards."
            )

    def _not_finite(self, step: Step) -> str:
        """What was not finite in a step: entries of the rows, else terms of the loss, else the gradient."""
        assert self.rows is not None
        rows = {str(key): entry for key, entry in self.rows.items(True, True)}
        terms = {name: value for name, value in step.columns.items() if name.startswith("loss/")}
        found = ([name for name, value in of.items() if not value.isfinite().all()] for of in (rows, terms))
        return ", ".join(next(filter(None, found), ["the gradient"])[:5])

    def components(self) -> dict[str, Any]:
        """The parts that checkpoints hold, each with ``state_dict`` and ``load_state_dict``."""
        return {
            "policy": self.policy,
            "optimizer": self.optimizer,
            "algorithm": OwnState(self),
            "reward_scaler": self.reward_scaler,
            **({"buffer": self.buffer} if self.config.buffer.replays else {}),
        }


class OwnState:
    """The state of an algorithm without its policy's and its reward scaler's, which checkpoints hold apart."""

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm

    def state_dict(self) -> dict[str, Any]:
        """Parameters and buffers by name."""
        state = self._algorithm.state_dict().items()
        return {name: value for name, value in state if not name.startswith(("policy.", "reward_scaler."))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores them."""
        self._algorithm.load_state_dict({**self._algorithm.state_dict(), **state})


def average_gradients(parameters: Sequence[nn.Parameter], total: Tensor) -> None:
    """Replaces gradients by their mean over ranks.

    Args:
        parameters: the optimized ones.
        total: the loss. If it is not finite, neither is the mean, so that all ranks skip the step.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    mean = world().sum_(torch.cat([gradient.flatten() for gradient in gradients]) / world().size + total * 0.0)
    for gradient, part in zip(gradients, mean.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def check_numbers(metrics: Mapping[str, Any]) -> None:
    """Rejects metrics that are not numbers.

    Raises:
        ConfigError: with the first of them.
    """
    for name, value in metrics.items():
        try:
            float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(f"The metric {name} must be a number (got {value!r:.60}).") from error


def _stacked(values: Iterable[Tensor | None]) -> Tensor | None:
    found = [value for value in values if value is not None]
    return torch.stack(found) if found else None


def share_of_ranks(weight: Tensor) -> Tensor:
    """What to multiply by, so that the plain mean over ranks is the one weighted by ``weight``."""
    return weight * world().size / world().gathered(weight).sum(0).clamp(min=torch.finfo(weight.dtype).tiny)


def merged(*parts: Mapping[str, Value]) -> dict[str, Value]:
    """The metrics of several parts together.

    Raises:
        ConfigError: two parts have a metric of the same name.
    """
    together = {name: value for part in parts for name, value in part.items()}
    if len(together) < sum(map(len, parts)):
        twice = sorted(name for name, count in Counter(name for part in parts for name in part).items() if count > 1)
        raise ConfigError(f"The metric {', '.join(twice)} is logged by two parts of the run. Rename one of them.")
    return together
