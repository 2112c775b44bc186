"""Proximal policy optimisation, Schulman et al. 2017, https://arxiv.org/abs/1707.06347.

Shape legend: N environments, T steps of a row, S slices, K steps of a slice.
"""

import math

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.nn import functional

from recurrl.algorithms.advantages import advantage_metrics, gae, next_values, reevaluate, standardized
from recurrl.algorithms.algorithm import Algorithm
from recurrl.algorithms.gradient_signal import AVERAGE_RATE
from recurrl.algorithms.importance import clipped_surrogate, log_range, mean_of
from recurrl.algorithms.metrics import Losses
from recurrl.config import PPOConfig, TrainConfig
from recurrl.envs.batched import episodes_ended
from recurrl.keys import ACTION, ADVANTAGE, EPISODE_LENGTH, LOG_PROB, LOSS_MASK, VALUE, VALUE_TARGET
from recurrl.policy.normalization import RunningScale
from recurrl.policy.policy import Policy, SequenceOutput
from recurrl.runtime.statistics import masked, moments, summary, variance
from recurrl.specs import is_continuous

STALE_RATIO_LIMIT = 1.5
"""A step of older weights is not learned from once its ratio has moved this far in the direction of its advantage."""
MIN_EXPLAINED_VARIANCE = 0.2
"""A critic explains the returns once its explained variance, averaged over iterations, exceeds this."""
MIN_HORIZON = 10
"""Steps. Where the fraction of an episode is shorter, the discount is the option ``gamma``."""
MIN_LENGTH_RATIO = 0.9
"""Episodes are almost equally long while their mean length is at least this fraction of the longest."""


class PPO(Algorithm):
    """The clipped surrogate, a value loss and an entropy bonus, with generalised advantages or V-trace.

    For a step with advantage A, ratio ρ = π(a) / π_old(a), value V and value target R, the loss is the mean of::

        objective  = −min(ρ A, clip(ρ, 1 − ε_low, 1 + ε_high) A)
        critic     = critic_coeff · (V − R)²
        entropy    = −entropy_coeff · H(π)

    π_old is the policy before the update, also where older weights collected the step: what they change is the weight
    of its advantage, as in the decoupled objective of Hilton et al. 2022, https://arxiv.org/abs/2110.00641. Where the
    probability of an older action has since risen by half with A > 0, or fallen by a third with A < 0, A is 0. With
    ``clip_value`` c, the critic's error is the larger of two: that of V, and that of V clipped to within c of the value
    before the update. ``entropy_coeff`` is multiplied by the advantages' running root mean square. A constant weight
    large enough to keep exploring while advantages are large would drown small ones; the scaled bonus vanishes with
    them once nothing is left to gain. The coefficient follows the schedule for continuous actions, and the schedule's
    square root for discrete ones.
    """

    options: PPOConfig
    log_clip_range: tuple[float, float]

    def __init__(self, options: PPOConfig, policy: Policy, config: TrainConfig) -> None:
        super().__init__(options, policy, config)
        self.log_clip_range = log_range(options.clip_epsilon, options.clip_epsilon_high)
        self.advantage_scale = RunningScale()
        # So far: the number of episodes, their steps (−∞ once too many were shorter), the longest, and the largest
        # reward before a last step.
        self.episode_stats = nn.Buffer(torch.tensor((0.0, 0.0, 0.0, -math.inf), dtype=torch.float64))
        self.explained = nn.Buffer(torch.zeros((), dtype=torch.float64))
        # A tensor, because a compiled loss treats Python numbers as constants; prepare sets it.
        at_first = options.entropy_coeff or 0.0
        self.entropy_coeff = nn.Buffer(next(policy.parameters()).new_tensor(at_first), persistent=False)

    def prepare(self, rows_NT: TensorDictBase, reward_NT: Tensor) -> dict[str, float]:
        """Writes advantages and value targets, and scales the entropy bonus by the size of the advantages."""
        options = self.options
        # Again, because a callback may change these options.
        self.log_clip_range = log_range(options.clip_epsilon, options.clip_epsilon_high)
        is_off_policy = self.config.collector.collects_ahead or len(rows_NT) > self.config.env.num_envs
        ratio = reevaluate(rows_NT, self.policy) if is_off_policy else None
        # Rows begin with the rollout; the episodes of earlier ones have been counted.
        gamma, reward_NT1 = self._discount(rows_NT[: self.config.env.num_envs]), reward_NT.unsqueeze(-1)
        if gamma < options.gamma < 1:
            # Keeps the standard deviation of the returns of uncorrelated rewards.
            reward_NT1 = reward_NT1 * math.sqrt((1 - gamma**2) / (1 - options.gamma**2))
        after = next_values(rows_NT, self.policy)
        advantage, target = gae(rows_NT, reward_NT1, after, gamma, options.lmbda, ratio)
        value, mask = rows_NT[VALUE], rows_NT.get(LOSS_MASK)
        metrics = advantage_metrics(masked(advantage, mask)) | _value_metrics(masked(value, mask), masked(target, mask))
        metrics["advantage/discount"] = gamma
        if options.normalize_advantage == "batch":
            advantage = standardized(advantage, mask)
        explained = torch.full_like(self.explained, metrics["value/explained_variance"]).nan_to_num()
        self.explained.lerp_(explained.clamp(0.0, 1.0), AVERAGE_RATE)
        # With normalize_advantage=minibatch the scale stays 1.
        if options.normalize_advantage != "minibatch":
            self.advantage_scale.update(masked(advantage, mask))
        # Discrete tasks may show what they need only late, so their bonus lasts longer; robots then learn less.
        continuous = is_continuous(rows_NT[ACTION])
        power = 1.0 if continuous else 0.5
        coeff = self.annealed(options.bonus(continuous), options.entropy_final_fraction, power)
        self.entropy_coeff.copy_(coeff * self.advantage_scale.value)
        if ratio is not None:
            # Each update clips its own ratio only: the noise of one advantage would move the policy in all of them.
            moved = torch.where(advantage > 0, ratio, 1 / ratio)
            advantage = torch.where(moved > STALE_RATIO_LIMIT, 0.0, advantage)
        rows_NT.update({ADVANTAGE: advantage, VALUE_TARGET: target})
        return metrics

    def _discount(self, rows_NT: TensorDictBase) -> float:
        """The option ``gamma``, or less while episodes are almost equally long, and not all gains lie at their end.

        In such episodes, a value over many steps is mostly the number of steps left, which the policy does not see. A
        horizon in proportion to their length is that of TD-MPC2 (Hansen et al. 2024, https://arxiv.org/abs/2310.16828).
        Where the best reward before the end is 0, all there is to gain lies there, as in a maze whose walls cost.
        """
        after, options = rows_NT["next"], self.options
        ended, mask = episodes_ended(after), rows_NT.get(LOSS_MASK)
        goes_on = ~ended if mask is None else ~ended & mask
        length, reward = after[EPISODE_LENGTH][ended].float(), after["reward"][goes_on]
        episodes, steps, longest, largest = self.episode_stats.tolist()
        count, mean, _ = moments(length)
        episodes, steps = episodes + float(count), steps + float(count * mean)
        # A NaN, where no episode ended, is not larger.
        longest, largest = max(longest, summary(length).max), max(largest, summary(reward).max)
        if steps < MIN_LENGTH_RATIO * longest * episodes:
            # For good, because the scale of the returns changes with the discount.
            steps = -math.inf
        self.episode_stats.copy_(self.episode_stats.new_tensor((episodes, steps, longest, largest)))
        horizon = (options.horizon_fraction or 0.0) * longest
        if horizon < MIN_HORIZON or steps < 0 or largest == 0:
            return options.gamma
        return min(options.gamma, 1 - 1 / horizon)

    def epochs(self) -> int:
        """The number of epochs of this iteration: all configured ones until the critic explains the returns.

        Until then, the policy has learned nothing that more steps on noisy gradients could undo.
        """
        return super().epochs() if self.explained > MIN_EXPLAINED_VARIANCE else self.config.epochs

    def loss(self, slices_SK: TensorDictBase, output: SequenceOutput) -> Losses:
        """The clipped surrogate, the value loss and the entropy bonus of a minibatch."""
        advantage, mask = slices_SK[ADVANTAGE], slices_SK.get(LOSS_MASK)
        if self.options.normalize_advantage == "minibatch":
            # Old steps without an advantage stay without one.
            advantage = torch.where(advantage == 0, advantage, standardized(advantage, mask))
        log_ratio = (output.distribution.log_prob(slices_SK[ACTION]) - slices_SK[LOG_PROB]).unsqueeze(-1)
        entropy = mean_of(output.distribution.entropy().unsqueeze(-1), mask)
        assert output.value is not None
        critic, value_metrics = self._critic_loss(output.value, slices_SK, mask)
        terms = {
            "objective": mean_of(-clipped_surrogate(log_ratio, advantage, self.log_clip_range), mask),
            "critic": self.options.critic_coeff * critic,
            "entropy": -self.entropy_coeff * entropy,
        }
        return Losses(terms, {"policy/entropy": entropy.detach(), **value_metrics}, log_ratio.detach(), mask)

    def _critic_loss(
        self, value: Tensor, slices_SK: TensorDictBase, mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        target, limit = slices_SK[VALUE_TARGET], self.options.clip_value
        error = functional.mse_loss(value, target, reduction="none")
        if limit is None:
            return mean_of(error, mask), {}
        stored = slices_SK[VALUE]
        moved = value - stored
        clipped = moved.clamp(-limit, limit)
        larger = torch.maximum(error, (stored + clipped - target).square())
        return mean_of(larger, mask), {"value/clip_fraction": mean_of((clipped != moved).to(value.dtype), mask)}


def _value_metrics(value: Tensor, target: Tensor) -> dict[str, float]:
    values, targets = summary(value), summary(target)
    return {
        "value/mean": values.mean,
        "value/std": values.std,
        "value/target_mean": targets.mean,
        "value/target_std": targets.std,
        "value/explained_variance": float(1 - variance(target - value) / variance(target)),
    }


make = PPO
