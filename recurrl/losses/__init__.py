"""Losses on tensors, and the same as loss modules of TorchRL."""

from recurrl.losses.loss_modules import GRPOLoss, PPOLoss
from recurrl.losses.policy_loss import Losses

__all__ = ["GRPOLoss", "Losses", "PPOLoss"]
