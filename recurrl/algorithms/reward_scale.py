"""Scaling of rewards for learning, by a constant or by running statistics."""

import torch
from torch import Tensor, nn

from recurrl.policy.normalization import RunningMoments


class RewardScaler(nn.Module):
    """Multiplies rewards by a constant; optionally divides by the running standard deviation of the discounted return.

    Rewards are only ever made smaller: the divisor is at least 1.

    Dividing by the deviation of ``Σ γᵏ r`` rather than of ``r`` keeps the value target near unit scale for any
    discount (Engstrom et al. 2020, https://arxiv.org/abs/2005.12729, appendix A).

    Args:
        num_envs: number of environments, N.
        gamma: discount per step.
        scale: the constant.
        running: also divide by the running deviation.
    """

    def __init__(self, num_envs: int, gamma: float, scale: float, running: bool) -> None:
        super().__init__()
        self.gamma = gamma
        self.scale = scale
        self.moments = RunningMoments(1) if running else None
        self.discounted_return = nn.Buffer(torch.zeros(num_envs))

    @torch.no_grad()
    def observe(self, reward_NT: Tensor, is_init_NT: Tensor) -> None:
        """Adds an iteration to the statistics.

        Args:
            reward_NT: the environments' rewards.
            is_init_NT: true at episode starts, also where the previous episode was abandoned: after a fault or on
                resume.
        """
        if self.moments is None:
            return
        returns = []
        for reward, is_init in zip((reward_NT * self.scale).unbind(1), is_init_NT.unbind(1), strict=True):
            self.discounted_return.masked_fill_(is_init, 0.0).mul_(self.gamma).add_(reward)
            returns.append(self.discounted_return.clone())
        self.moments.update(torch.stack(returns, 1).unsqueeze(-1))

    @torch.no_grad()
    def forward(self, reward: Tensor) -> Tensor:
        """Scaled rewards."""
        scaled = reward * self.scale
        if self.moments is None:
            return scaled
        # Never below 1: rare rewards barely vary, so dividing would blow them up and swamp the shared trunk.
        return (scaled / self.moments.variance.sqrt().clamp(min=1.0).to(scaled.dtype)).clamp(-10, 10)
