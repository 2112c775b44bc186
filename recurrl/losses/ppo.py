"""Proximal policy optimisation with the clipped objective, by TorchRL's loss."""

from __future__ import annotations

from torchrl.objectives import ClipPPOLoss

from recurrl.advantage import ADVANTAGE, VALUE_TARGET
from recurrl.config import AlgorithmConfig
from recurrl.policy import ACTION, LOG_PROB, VALUE, ActorCritic


def make_loss(config: AlgorithmConfig, policy: ActorCritic) -> ClipPPOLoss:
    """``ClipPPOLoss``; a critic that shares the trunk is a head that reads the features that the actor's pass leaves.

    Not functional: the loss computes with the policy's own parameters, which spares a swap of parameters a call.
    """
    loss = ClipPPOLoss(
        policy.actor(),
        policy.critic(),
        clip_epsilon=config.clip_epsilon,
        entropy_bonus=True,
        entropy_coeff=config.entropy_coeff,
        critic_coeff=config.critic_coeff,
        loss_critic_type=config.critic_loss,
        normalize_advantage=config.normalize_advantage,
        clip_value=config.clip_value,
        functional=False,
    )
    loss.set_keys(advantage=ADVANTAGE, value_target=VALUE_TARGET, value=VALUE, action=ACTION, sample_log_prob=LOG_PROB)
    return loss
