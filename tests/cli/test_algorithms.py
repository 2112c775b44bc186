"""``recurrl-train algorithm=...``: each algorithm and variant trains, resumes from its checkpoint, and is evaluated."""

import math

import pytest
from run_files import metrics, summary

VARIANTS = {
    "grpo": ("algorithm=grpo", "algorithm.group_size=2", "algorithm.kl_to_ref_coeff=0.1"),
    "adaptive": ("algorithm.critic=recurrent", "lr_schedule=adaptive", "optimizer=adamw"),
    "v-trace": ("algorithm.critic=feedforward", "algorithm.advantage=vtrace"),
}


@pytest.mark.parametrize("overrides", VARIANTS.values(), ids=VARIANTS)
def test_each_algorithm_trains_resumes_and_is_evaluated(train, evaluate, tiny, tmp_path, overrides):
    # Pendulum, because members of a group never have the same return there.
    env = ("env=pendulum_no_velocity", "env.num_envs=4", "env.max_episode_steps=8")
    train(*tiny, *env, *overrides, "hydra.run.dir=first").succeeded()
    train("resume=first", "total_frames=96", "hydra.run.dir=again").succeeded()
    *_, row = metrics(tmp_path / "again")
    assert all(math.isfinite(float(value)) for value in row.values() if value)
    assert summary(tmp_path / "again")["frames"] == 96
    assert float(row["optim/steps"]) > 0
    evaluate("again", "--episodes", "2").succeeded()
