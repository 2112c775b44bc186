"""One collector, in this process."""

from __future__ import annotations

import torch
from torchrl.collectors import Collector

from recurrl.collector.lean import LeanCollector
from recurrl.config import CollectorConfig, TrainConfig
from recurrl.envs import make_env
from recurrl.envs.groups import Groups
from recurrl.policy import Policy, PolicyModule


def make(
    options: CollectorConfig,
    config: TrainConfig,
    policy: Policy,
    kind: type[Collector] = LeanCollector,
    **overrides: object,
) -> Collector:
    """A collector of all environments that acts with the learning policy itself.

    Batches begin with a reset of all environments only if the algorithm compares groups of them.

    Args:
        options: as configured.
        config: the run's configuration.
        policy: the policy.
        kind: TorchRL's collector class, or a replacement.
        overrides: additional or overriding arguments of that class.
    """
    device = torch.device(config.device)
    arguments: dict[str, object] = {
        "frames_per_batch": config.frames_per_batch,
        "total_frames": -1,
        "reset_at_each_iter": config.algorithm.members_of_a_group is not None,
        "policy_device": device,
        "storing_device": device,
        "track_traj_ids": False,
        "trust_policy": True,
        "auto_register_policy_transforms": False,
    }
    size = config.algorithm.members_of_a_group
    groups = None if size is None else Groups(size, config.steps_per_row, config.seed)
    env = make_env(config.env, config.env.num_envs, config.seed, policy, groups)
    return kind(env, PolicyModule(policy), **(arguments | overrides))
