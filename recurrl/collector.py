"""Processes that step environments with a policy and hand out ``[N, T]`` batches, rows in time order."""

from __future__ import annotations

import torch
from torchrl.collectors import Collector
from torchrl.envs import TransformedEnv

from recurrl.config import TrainConfig
from recurrl.envs import make_env
from recurrl.groups import Groups
from recurrl.policy import ActorCritic


def make_collector(config: TrainConfig, policy: ActorCritic) -> Collector:
    """The configured collector. Each batch holds ``frames_per_batch`` frames; episodes run on from one to the next.

    Only an algorithm that compares the environments of a group has every batch begin with a reset of all.

    Raises:
        ConfigError: the environment cannot be made, or would not carry the policy's states, or ignores reset seeds that
            groups need.
    """
    size = config.algorithm.group_size
    groups = None if size is None else Groups(size, config.steps_per_row, config.seed)
    env: TransformedEnv = make_env(config.env, config.env.num_envs, config.seed, policy, groups)
    device = torch.device(config.device)
    return Collector(
        env,
        policy.acting(),
        frames_per_batch=config.frames_per_batch,
        total_frames=-1,
        reset_at_each_iter=config.algorithm.resets_rows,
        policy_device=device,
        storing_device=device,
        track_traj_ids=False,
        trust_policy=True,
        auto_register_policy_transforms=False,
    )
