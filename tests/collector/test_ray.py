"""The collector within TorchRL's collector of a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from recurrl.collector.lean import LeanCollector

from recurrl.build import make_policy_for, set_process_state
from recurrl.config import TrainConfig
from recurrl.envs import make_env
from recurrl.policy import PolicyModule


class OnlyFast(LeanCollector):
    """Fails, rather than to say that it takes the general path, for what it says stays with its process."""

    def rollout(self) -> object:
        assert self.why_general is None, self.why_general
        return super().rollout()


@pytest.mark.slow
def test_rays_processes_step_on_plain_tensors_with_the_weights_they_are_sent(
    compose: Callable[..., TrainConfig], tiny: list[str]
) -> None:
    ray = pytest.importorskip("ray")
    from torchrl.collectors.distributed import RayCollector

    config = compose(*tiny)
    set_process_state(config)
    policy = make_policy_for(config)
    # Its processes import this module.
    paths = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])}
    # Of a short name, for sockets are in it.
    with TemporaryDirectory() as folder:
        collector = RayCollector(
            [partial(make_env, config.env, 4, seed, policy) for seed in (0, 1)],
            PolicyModule(policy),
            collector_class=OnlyFast,
            frames_per_batch=2 * 4 * 8,
            total_frames=10**9,
            num_collectors=2,
            sync=True,
            collector_kwargs={"trust_policy": True, "auto_register_policy_transforms": False, "track_traj_ids": False},
            ray_init_config={
                "num_cpus": 2,
                "include_dashboard": False,
                "_temp_dir": folder,
                "runtime_env": {"env_vars": paths},
            },
            remote_configs={"num_cpus": 1, "num_gpus": 0, "memory": 2**30},
        )
        try:
            batches = iter(collector)
            batch = next(batches)
            assert batch.numel() == 64
            assert not torch.equal(batch["next", "recurrent_state"][0], batch["next", "recurrent_state"][1])
            with torch.no_grad():
                for parameter in policy.parameters():
                    parameter.zero_()
            collector.update_policy_weights_(PolicyModule(policy))
            batch = next(batches)
            torch.testing.assert_close(batch["action_log_prob"].exp(), torch.full_like(batch["action_log_prob"], 0.5))
            assert batch["state_value"].eq(0).all()
        finally:
            collector.shutdown()
            ray.shutdown()
