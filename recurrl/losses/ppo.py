"""Proximal policy optimisation by TorchRL's losses: clipped, with a KL penalty, or plain.

Schulman et al. 2017, https://arxiv.org/abs/1707.06347.

Shape legend: N environments, T steps.
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.objectives import ClipPPOLoss, PPOLoss

from recurrl.advantage import ADVANTAGE, VALUE_TARGET, add_advantages, advantage_metrics, standardized
from recurrl.config import TrainConfig, given
from recurrl.importance import check_one_a_step, effective_sample_fraction, kl_from_log_weight
from recurrl.policy import ACTION, LOG_PROB, VALUE, ActorCritic
from recurrl.schedule import anneal

# The weight of the KL penalty changes by this factor when the KL is this many times off its target (section 4).
KL_COEFF_FACTOR = 2.0
KL_TOLERANCE = 1.5


class WithKL(PPOLoss):
    """Adds to what a loss of TorchRL returns: ``kl``, and ``ESS`` where it has none.

    ``kl`` is the mean of ρ − 1 − log ρ over the probability ratios ρ: without bias, as ``kl_approx`` (the mean of
    −log ρ), and of less variance and never negative (Schulman 2020, http://joschu.net/blog/kl-approx.html).
    """

    def _log_weight(self, tensordict: TensorDictBase, adv_shape: torch.Size) -> Any:
        result = super()._log_weight(tensordict, adv_shape)
        check_one_a_step(result[0], (*adv_shape, 1))
        # Kept for forward, so that the network runs once.
        self._last_log_weight = result[0]
        return result

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """The losses and diagnostics of a minibatch."""
        output: TensorDictBase = super().forward(tensordict)
        log_weight = self._last_log_weight
        del self._last_log_weight
        return self._complete(output, log_weight)

    def _complete(self, output: TensorDictBase, log_weight: Tensor) -> TensorDictBase:
        with torch.no_grad():
            if "ESS" not in output:
                output.set("ESS", effective_sample_fraction(log_weight, torch.ones_like(log_weight, dtype=torch.bool)))
            output.set("kl", kl_from_log_weight(log_weight).mean())
        return output


class ClippedLoss(WithKL, ClipPPOLoss):
    """The clipped objective."""


class PlainLoss(WithKL):
    """The ratio times the advantage, and nothing that holds the policy back."""


class KLPenaltyLoss(WithKL):
    """The plain objective, and a penalty on the KL from the policy that collected to this one.

    TorchRL's ``KLPENPPOLoss`` would run the network twice a minibatch and change the penalty's weight at each; the
    paper does once an iteration.

    Args:
        kl_coeff: weight of the penalty at the start.
    """

    kl_coeff: Tensor

    def __init__(self, *args: Any, kl_coeff: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register_coeff_buffer("kl_coeff", kl_coeff)

    def _complete(self, output: TensorDictBase, log_weight: Tensor) -> TensorDictBase:
        output.set("loss_kl", self.kl_coeff * kl_from_log_weight(log_weight).mean())
        return super()._complete(output, log_weight)


class PPO:
    """Generalised advantage estimates and one of PPO's losses.

    Args:
        config: the run's configuration.
        policy: the policy to improve, with a critic.
    """

    def __init__(self, config: TrainConfig, policy: ActorCritic) -> None:
        algorithm = config.algorithm
        self.config, self._policy, self._desired_kl = algorithm, policy, config.desired_kl
        read = (*policy.acting().in_keys, "is_init", ACTION, LOG_PROB, VALUE, ADVANTAGE, VALUE_TARGET)
        self.keys = list(dict.fromkeys(read))
        self.loss = _make_loss(config, policy).to(config.device)
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
        if not isinstance(self.loss, KLPenaltyLoss):
            return
        if kl > self._desired_kl * KL_TOLERANCE:
            self.loss.kl_coeff *= KL_COEFF_FACTOR
        elif kl < self._desired_kl / KL_TOLERANCE:
            self.loss.kl_coeff /= KL_COEFF_FACTOR

    def state_dict(self) -> dict[str, Any]:
        """The weight of a KL penalty."""
        return {"kl_coeff": self.loss.kl_coeff} if isinstance(self.loss, KLPenaltyLoss) else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        if isinstance(self.loss, KLPenaltyLoss):
            self.loss.kl_coeff.copy_(state["kl_coeff"])


def make_algorithm(config: TrainConfig, policy: ActorCritic) -> PPO:
    """The configured variant of PPO."""
    return PPO(config, policy)


def _make_loss(config: TrainConfig, policy: ActorCritic) -> WithKL:
    """The configured loss; a critic that shares the trunk is a head that reads the features the actor's pass leaves.

    Not functional: the loss computes with the policy's own parameters, which spares a swap of parameters a call.
    """
    algorithm = config.algorithm
    arguments: dict[str, Any] = {
        "entropy_bonus": True,
        "entropy_coeff": algorithm.entropy_coeff,
        "critic_coeff": algorithm.critic_coeff,
        "loss_critic_type": algorithm.critic_loss,
        # Of each step over the rows of a minibatch, which is none of the batch; PPO.prepare has that.
        "log_explained_variance": False,
        "normalize_advantage": algorithm.normalize_advantage == "minibatch",
        "clip_value": algorithm.clip_value,
        "functional": False,
    }
    networks = (policy.actor(), policy.critic())
    loss: WithKL
    if algorithm.objective == "clip":
        loss = ClippedLoss(*networks, clip_epsilon=algorithm.clip_range, **arguments)
    elif algorithm.objective == "kl":
        loss = KLPenaltyLoss(*networks, kl_coeff=given(algorithm.kl_coeff), **arguments)
    else:
        loss = PlainLoss(*networks, **arguments)
    loss.set_keys(advantage=ADVANTAGE, value_target=VALUE_TARGET, value=VALUE, action=ACTION, sample_log_prob=LOG_PROB)
    return loss
