"""Proximal policy optimisation: clipped, with a KL penalty, or plain.

Schulman et al. 2017, https://arxiv.org/abs/1707.06347.

Shape legend: N environments, T steps, S slices, K steps of a slice.
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn import functional

from recurrl.advantage import ADVANTAGE, VALUE_TARGET, add_advantages, advantage_metrics, standardized
from recurrl.config import AlgorithmConfig, TrainConfig, given
from recurrl.importance import check_one_a_step, clipped_gain, effective_sample_fraction, kl_from_log_weight
from recurrl.policy import ACTION, LOG_PROB, VALUE, ActorCritic
from recurrl.policy.on_tensors import Replay
from recurrl.schedule import anneal

# The weight of the KL penalty changes by this factor when the KL is this many times off its target (section 4).
KL_COEFF_FACTOR = 2.0
KL_TOLERANCE = 1.5
DISTANCES = {"l2": functional.mse_loss, "smooth_l1": functional.smooth_l1_loss}


class PPOLoss(nn.Module):
    """PPO's losses of a minibatch of slices, over the policy's own parameters, which run once.

    For a step with advantage A, ratio ρ = π(a) / π_collecting(a), value V and value target R::

        loss_objective  = −min(ρ A, clip(ρ, 1 − ε_low, 1 + ε_high) A)    objective "clip"
                          −ρ A                                           objectives "plain" and "kl"
        loss_kl         = kl_coeff · (ρ − 1 − log ρ)                     objective "kl"
        loss_entropy    = −entropy_coeff · H(π)
        loss_critic     = critic_coeff · d(V, R)

    each on average over the steps, with d by ``critic_loss``. With ``clip_value`` c, d is the larger of d(V, R) and
    that of a value that moved from the stored one by c at most. The other outputs are diagnostics without a gradient.

    Args:
        config: the algorithm's.
        policy: the policy to improve, with a critic.

    Raises:
        UnknownPartError: the policy holds a module of a kind that is known on TensorDicts only.
    """

    clip_epsilon_low: Tensor
    clip_epsilon_high: Tensor
    entropy_coeff: Tensor
    kl_coeff: Tensor

    def __init__(self, config: AlgorithmConfig, policy: ActorCritic) -> None:
        super().__init__()
        self._config = config
        self._replay = Replay(policy)
        self._distance = DISTANCES[given(config.critic_loss)]
        low, high = config.clip_range
        for name, value in (
            ("clip_epsilon_low", low),
            ("clip_epsilon_high", high),
            ("entropy_coeff", config.entropy_coeff),
            ("kl_coeff", given(config.kl_coeff)),
        ):
            # In double precision; a tensor of no dimensions leaves the losses in that of the network.
            self.register_buffer(name, torch.tensor(value, dtype=torch.float64))

    def forward(self, slices_SK: TensorDictBase) -> dict[str, Tensor]:
        """The losses and diagnostics of a minibatch.

        Raises:
            KeyError: an entry is missing.
            ValueError: the policy gives more than one log-probability a step.
        """
        advantage = slices_SK[ADVANTAGE]
        if self._config.normalize_advantage == "minibatch":
            advantage = standardized(advantage)
        distribution, value = self._replay(slices_SK)
        assert value is not None
        log_weight = (distribution.log_prob(slices_SK[ACTION]) - slices_SK[LOG_PROB]).unsqueeze(-1)
        check_one_a_step(log_weight, advantage.shape)
        return {
            **self._objective(log_weight, advantage),
            **self._entropy(distribution),
            **self._critic(value, slices_SK),
            **_diagnostics(log_weight.detach()),
        }

    def _objective(self, log_weight: Tensor, advantage: Tensor) -> dict[str, Tensor]:
        if self._config.objective == "clip":
            gain, outside = clipped_gain(log_weight, advantage, self.clip_epsilon_low, self.clip_epsilon_high)
            return {"loss_objective": -gain.mean(), "clip_fraction": outside.to(gain.dtype).mean()}
        output = {"loss_objective": -(log_weight.exp() * advantage).mean()}
        if self._config.objective == "kl":
            output["loss_kl"] = self.kl_coeff * kl_from_log_weight(log_weight).mean()
        return output

    def _entropy(self, distribution: Distribution) -> dict[str, Tensor]:
        # Without a weight the entropy is for the log, and spares its way back.
        with torch.set_grad_enabled(self._config.entropy_coeff != 0):
            entropy: Tensor = distribution.entropy().mean()
        return {"loss_entropy": -self.entropy_coeff * entropy, "entropy": entropy.detach()}

    def _critic(self, value: Tensor, slices_SK: TensorDictBase) -> dict[str, Tensor]:
        target, limit = slices_SK[VALUE_TARGET], self._config.clip_value
        if limit is None:
            return {"loss_critic": given(self._config.critic_coeff) * self._distance(value, target)}
        stored = slices_SK[VALUE]
        moved = value - stored
        clipped = moved.clamp(-limit, limit)
        distance = torch.maximum(
            self._distance(value, target, reduction="none"), self._distance(stored + clipped, target, reduction="none")
        )
        return {
            "loss_critic": given(self._config.critic_coeff) * distance.mean(),
            "value_clip_fraction": (clipped != moved).to(value.dtype).mean(),
        }


@torch.no_grad()
def _diagnostics(log_weight: Tensor) -> dict[str, Tensor]:
    """``kl_approx`` is the mean of −log ρ; ``kl``, of ρ − 1 − log ρ, has less variance and is never negative (Schulman
    2020, http://joschu.net/blog/kl-approx.html).
    """
    return {
        "kl_approx": -log_weight.mean(),
        "kl": kl_from_log_weight(log_weight).mean(),
        "ESS": effective_sample_fraction(log_weight, torch.ones_like(log_weight, dtype=torch.bool)),
    }


class PPO:
    """Generalised advantage estimates and PPO's losses.

    Args:
        config: the run's configuration.
        policy: the policy to improve, with a critic.
    """

    def __init__(self, config: TrainConfig, policy: ActorCritic) -> None:
        algorithm = config.algorithm
        self.config, self._policy, self._desired_kl = algorithm, policy, config.desired_kl
        read = (*policy.acting().in_keys, "is_init", ACTION, LOG_PROB, VALUE, ADVANTAGE, VALUE_TARGET)
        self.keys = list(dict.fromkeys(read))
        self.loss = PPOLoss(algorithm, policy).to(config.device)
        self._schedules = {"entropy_coeff": (algorithm.entropy_coeff, algorithm.entropy_final_fraction)}
        if algorithm.objective == "clip":
            for name, start in zip(("clip_epsilon_low", "clip_epsilon_high"), algorithm.clip_range, strict=True):
                self._schedules[name] = (start, algorithm.clip_final_fraction)

    def begin_iteration(self, progress: float) -> None:
        """Sets clip range and entropy coefficient."""
        anneal(self.loss, self._schedules, progress)

    def prepare(self, batch_NT: TensorDictBase, reward_NT: Tensor) -> dict[str, float]:
        """Writes advantages and value targets."""
        add_advantages(batch_NT, self._policy, reward_NT, self.config.gamma, given(self.config.lmbda))
        advantage, value, target = batch_NT[ADVANTAGE], batch_NT[VALUE], batch_NT[VALUE_TARGET]
        metrics = {
            **advantage_metrics(advantage),
            "value/mean": float(value.mean()),
            "value/std": float(value.std(correction=0)),
            "value/target_mean": float(target.mean()),
            "value/target_std": float(target.std(correction=0)),
            "value/explained_variance": float(1 - (target - value).var() / target.var()),
        }
        if self.config.normalize_advantage == "batch":
            batch_NT.set(ADVANTAGE, standardized(advantage))
        return metrics

    def end_iteration(self, kl: float) -> None:
        """Raises or lowers the weight of a KL penalty."""
        if self.config.objective != "kl":
            return
        if kl > self._desired_kl * KL_TOLERANCE:
            self.loss.kl_coeff *= KL_COEFF_FACTOR
        elif kl < self._desired_kl / KL_TOLERANCE:
            self.loss.kl_coeff /= KL_COEFF_FACTOR

    def state_dict(self) -> dict[str, Any]:
        """The weight of a KL penalty."""
        return {"kl_coeff": self.loss.kl_coeff} if self.config.objective == "kl" else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        if self.config.objective == "kl":
            self.loss.kl_coeff.copy_(state["kl_coeff"])


def make_algorithm(config: TrainConfig, policy: ActorCritic) -> PPO:
    """The configured variant of PPO."""
    return PPO(config, policy)
