"""A collector in this process."""

from typing import Any

from torchrl.collectors import Collector

from recurrl.collector.lean import LeanCollector
from recurrl.collector.rollouts import Rollouts
from recurrl.config import CollectorConfig
from recurrl.envs import make_env
from recurrl.envs.groups import Groups
from recurrl.policy import PolicyModule


def make(
    options: CollectorConfig, rollouts: Rollouts, kind: type[Collector] = LeanCollector, **overrides: object
) -> Any:
    """A collector of all environments that acts with the learning policy itself.

    Args:
        options: as configured.
        rollouts: what to collect.
        kind: TorchRL's collector class, or a replacement.
        overrides: additional or overriding arguments of that class.
    """
    envs, size, device = rollouts.env.num_envs, rollouts.group_size, rollouts.policy.device
    groups = None if size is None else Groups(size, rollouts.frames // envs, rollouts.seed)
    env = make_env(rollouts.env, envs, rollouts.seed, rollouts.policy, groups)
    arguments: dict[str, object] = {
        "frames_per_batch": rollouts.frames,
        "total_frames": -1,
        "reset_at_each_iter": groups is not None,
        "policy_device": device,
        "storing_device": device,
        "track_traj_ids": False,
        "trust_policy": True,
        "auto_register_policy_transforms": False,
    }
    return kind(env, PolicyModule(rollouts.policy), **(arguments | overrides))
