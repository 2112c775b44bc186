"""Advantages from what collection stored: no second pass of the network over the batch.

Shape legend: N environments, T steps.
"""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.objectives.value.functional import generalized_advantage_estimate

from recurrl.policy import OBSERVATION, VALUE, ActorCritic
from recurrl.recurrent import set_recurrent_mode

ADVANTAGE = "advantage"
VALUE_TARGET = "value_target"


@torch.no_grad()
def add_advantages(
    batch_NT: TensorDictBase, policy: ActorCritic, reward_NT: Tensor, gamma: float, lmbda: float
) -> None:
    """Writes generalised advantage estimates and value targets (advantage + value) into rows ``[N, T]``.

    Schulman et al. 2016, https://arxiv.org/abs/1506.02438. ``terminated`` cuts the bootstrap, ``truncated`` does not;
    neither lets an advantage cross the end of an episode.

    Args:
        batch_NT: what a collector handed out.
        policy: the policy that collected it, for the bootstrap.
        reward_NT: the rewards to learn from.
        gamma: discount per step.
        lmbda: weight of longer returns.
    """
    value = batch_NT[VALUE]
    advantage, target = generalized_advantage_estimate(
        # As tensors: TorchRL multiplies them with integers, and a Python number would make that float32.
        value.new_tensor(gamma),
        value.new_tensor(lmbda),
        value,
        next_values(batch_NT, policy),
        reward_NT.unsqueeze(-1),
        batch_NT["next", "done"],
        batch_NT["next", "terminated"],
    )
    batch_NT.set(ADVANTAGE, advantage)
    batch_NT.set(VALUE_TARGET, target)


@torch.no_grad()
def next_values(batch_NT: TensorDictBase, policy: ActorCritic) -> Tensor:
    """The value ``[N, T, 1]`` of the observation each step led to; zero where the episode terminated.

    Within an episode that is the value stored at the next step. At truncations and at the ends of rows it is the
    critic's, from the observation and recurrent state that followed, all of them in one call.
    """
    value, after = batch_NT[VALUE], batch_NT["next"]
    result = torch.cat((value[:, 1:], torch.zeros_like(value[:, :1])), 1)
    bootstrap_NT = after["done"].squeeze(-1).clone()
    bootstrap_NT[:, -1] = True
    bootstrap_NT &= ~after["terminated"].squeeze(-1)
    result[after["terminated"]] = 0.0
    if bootstrap_NT.any():
        # The state after the step enters as it is: the next observation continues the episode, it does not start one.
        following = after.select(OBSERVATION, *policy.state_keys)[bootstrap_NT]
        following["is_init"] = torch.zeros(following.batch_size, dtype=torch.bool, device=value.device)
        with set_recurrent_mode(False):
            result[bootstrap_NT] = policy.value(following)
    return result
