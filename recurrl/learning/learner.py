"""Updates the policy from one batch: advantages, epochs of minibatches, loss, gradient step."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from tensordict import TensorDictBase
from torch import Tensor

from recurrl.algorithms.algorithm import KL, KL_APPROX, Algorithm
from recurrl.errors import NonFiniteError, require
from recurrl.keys import OBSERVATION
from recurrl.learning.flat import Adam, clip_gradients
from recurrl.learning.gradient import Gradient
from recurrl.learning.learning_rate import LearningRate
from recurrl.learning.metrics import SKIPPED, Step, means, merged
from recurrl.learning.reward_scale import RewardScaler
from recurrl.learning.states import SliceStates
from recurrl.losses import Losses
from recurrl.losses.advantage import LOSS_MASK
from recurrl.losses.deferred import of_minibatches
from recurrl.policy import Policy
from recurrl.recurrent.module.keys import IS_INIT
from recurrl.runtime.ranks import world


class Trial(NamedTuple):
    """A minibatch evaluated without a gradient step: its losses, and the parameters with a non-finite gradient."""

    losses: dict[str, float]
    not_finite: list[str]


@dataclass(eq=False)
class Learner:
    """Improves a policy from batches, with everything that changes during learning.

    Attributes:
        policy: the policy to improve, in place.
        algorithm: prepares batches, and has the loss.
        buffer: cuts a batch into slices, and yields minibatches of them.
        states: sets the states that slices start from.
        reward_scaler: scales rewards for learning.
        optimizer: of the policy's parameters as :func:`~recurrl.learning.flat.flattened` returns them.
        learning_rate: of the optimizer.
        epochs: passes over each batch.
        max_skipped_steps: consecutive gradient steps that may be non-finite.
        compiles: compile the loss.
        rows: those of the last iteration, as prepared for learning; None before it.
    """

    policy: Policy
    algorithm: Algorithm
    buffer: Any
    states: SliceStates
    reward_scaler: RewardScaler
    optimizer: Adam
    learning_rate: LearningRate
    epochs: int
    max_skipped_steps: int
    compiles: bool = False
    rows: TensorDictBase | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._vectors = [vector for group in self.optimizer.param_groups for vector in group["params"]]
        self._gradient = Gradient(self.algorithm, self._vectors, self.compiles)
        self._skipped_in_a_row = 0

    def learn(self, batch_NT: TensorDictBase, progress: float) -> dict[str, float]:
        """Improves the policy by one batch of rows, and returns metrics.

        Args:
            batch_NT: a rollout.
            progress: the fraction of the run's frames before it, for the schedules.

        Raises:
            NonFiniteError: too many consecutive gradient steps had a non-finite loss or gradient.
            ConfigError: the algorithm's loss does not keep to :mod:`recurrl.algorithms.algorithm`.
        """
        self.learning_rate.begin_iteration(progress)
        self.algorithm.begin_iteration(progress)
        self.reward_scaler.observe(batch_NT["next", "reward"].squeeze(-1), batch_NT[IS_INIT].squeeze(-1))
        observed = batch_NT[OBSERVATION]
        self.rows = batch_NT = self.buffer.joined(batch_NT)
        reward_NT = self.reward_scaler(batch_NT["next", "reward"].squeeze(-1))
        self.states.take(batch_NT)
        norms = self.states.norms(batch_NT)
        prepared = self._prepare(batch_NT, reward_NT)
        if LOSS_MASK in batch_NT and not world().gathered(batch_NT[LOSS_MASK].any()).any():
            # A step would follow the optimizer's momentum alone.
            metrics = {"optim/steps": 0.0}
        else:
            metrics = self._update(batch_NT, reward_NT)
        # Not earlier: rollout and update must normalise observations alike.
        self.policy.observe(observed)
        return world().averaged(merged(norms, prepared, metrics))

    @property
    def compile_time_s(self) -> float | None:
        """Seconds of compiling; None before that, and if nothing is compiled."""
        return self._gradient.compile_time_s

    def state_dict(self) -> dict[str, Tensor]:
        """For a checkpoint: the state that none of the parts has."""
        return {"skipped_in_a_row": torch.tensor(float(self._skipped_in_a_row))}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """From a checkpoint."""
        self._skipped_in_a_row = int(state["skipped_in_a_row"])

    def _prepare(self, batch_NT: TensorDictBase, reward_NT: Tensor) -> dict[str, float]:
        """Prepares a batch for an epoch."""
        if self.states.refreshes:
            self.states.refresh(batch_NT)
        metrics = self.algorithm.prepare(batch_NT, reward_NT)
        self._fill(batch_NT)
        return metrics

    def _fill(self, batch_NT: TensorDictBase) -> None:
        present = set(batch_NT.keys(True))
        missing = [str(key) for key in self.algorithm.keys if key not in present]
        name = self.algorithm.options.name
        require(
            not missing,
            f"algorithm={name} names the keys {', '.join(missing)}, which the rollout does not have. Write them in its "
            "prepare.",
        )
        self.buffer.fill(batch_NT, self.algorithm.keys)

    def _update(self, batch_NT: TensorDictBase, reward_NT: Tensor) -> dict[str, float]:
        steps: list[Step] = []
        target_kl = self.algorithm.options.target_kl
        for epoch in range(self.epochs):
            if epoch > 0 and self.states.refreshes:
                self._prepare(batch_NT, reward_NT)
            before = len(steps)
            for minibatch in self.buffer.epoch():
                self.states.enter(minibatch)
                steps.append(self._step(minibatch, first=not steps))
            self._refuse_endless_skipping(steps[before:])
            if target_kl is not None and self._mean_of(KL_APPROX, steps[before:]) > target_kl:
                break
        self.algorithm.end_iteration(self._mean_of(KL, steps[before:]))
        optim = {"optim/lr": self.learning_rate.value, "optim/steps": float(len(steps))}
        return merged(means(steps), self.states.drift(minibatch), optim)

    @staticmethod
    def _mean_of(metric: str, steps: list[Step]) -> float:
        read: list[Step] = [{name: step[name] for name in (metric, SKIPPED)} for step in steps]
        return world().averaged({metric: means(read)[metric]})[metric]

    def _step(self, minibatch: TensorDictBase, first: bool) -> Step:
        losses, total = self._gradient(minibatch, first)
        values: Step = losses.kept() if world().size == 1 else self._average(losses, total)
        # The KL of the first minibatch is zero: the policy is still the one that collected it.
        if self.learning_rate.is_adaptive and not first:
            self.learning_rate.adapt(float(of_minibatches([values[KL]])))
        norm = clip_gradients(self._vectors, self.algorithm.options.max_grad_norm)
        # The sum is finite only if both are; a product with zero is NaN otherwise.
        skipped = ((total + norm) * 0.0).float().nan_to_num(nan=1.0)
        self.optimizer.update(skipped)
        return merged(values, {"optim/grad_norm": norm, SKIPPED: skipped})

    def _average(self, losses: Losses, total: Tensor) -> Step:
        """Replaces the gradient by the mean over ranks, weighted by the steps that count.

        Returns:
            The logged values, such that their plain mean over ranks is weighted too. The KL is that mean already where
            the learning rate follows it.
        """
        fraction: Tensor | float = 1 / world().size
        values: dict[str, Any] = losses.kept()
        if losses.weights is not None:
            values = losses.logged()
            weights = world().gathered(torch.stack(losses.weights).detach())
            fraction, of_metrics = weights[world().rank] / weights.sum(0).clamp(min=torch.finfo(weights.dtype).tiny)
            for name in values:
                values[name] = values[name] * world().size * (of_metrics if name in losses.metrics else fraction)
        for vector in self._vectors:
            # With a loss that is not finite neither is the sum, on any rank: all skip the step.
            world().sum_(vector.grad.mul_(fraction).add_(total * 0.0))
        if self.learning_rate.is_adaptive:
            values[KL] = world().gathered(of_minibatches([values[KL]])).mean()
        return values

    def trial(self, batch_NT: TensorDictBase) -> Iterator[Trial]:
        """Evaluates the losses and gradients of an epoch, without gradient steps.

        Args:
            batch_NT: rows that :meth:`learn` has prepared before.
        """
        self.states.take(batch_NT)
        self._fill(batch_NT)
        for minibatch in self.buffer.epoch():
            self.states.enter(minibatch)
            losses, _ = self._gradient.compute(minibatch)
            terms = {f"loss/{name}": float(term.detach()) for name, term in losses.terms.items()}
            gradients = {name: p.grad for name, p in self.policy.named_parameters() if p.grad is not None}
            yield Trial(terms, [name for name, gradient in gradients.items() if not gradient.isfinite().all()])

    def _refuse_endless_skipping(self, steps: list[Step]) -> None:
        for skipped in of_minibatches([step[SKIPPED] for step in steps]).tolist():
            self._skipped_in_a_row = self._skipped_in_a_row + 1 if skipped else 0
        if self._skipped_in_a_row >= self.max_skipped_steps:
            raise NonFiniteError(
                f"Training produced NaN or Inf: the last {self._skipped_in_a_row} gradient steps had a non-finite loss "
                "or gradient and were skipped. A smaller lr or algorithm.max_grad_norm may help; so may normalised or "
                "clipped observations and rewards."
            )
