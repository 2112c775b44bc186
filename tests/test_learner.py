"""Schedules, early stopping, clipping."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from recurrl.collector import make_collector
from recurrl.config import TrainConfig
from recurrl.learner import Learner
from recurrl.schedule import annealed
from recurrl.train import is_due, is_last, make_policy_for, set_process_state

Compose = Callable[..., TrainConfig]

SMALL = (
    "cell.hidden_size=8",
    "policy.encoder_sizes=[8]",
    "env.num_envs=4",
    "frames_per_batch=64",
    "slice_len=8",
    "minibatch_slices=4",
    "epochs=3",
)


def learn(compose: Compose, *overrides: str, progress: float = 0.0) -> tuple[Learner, dict[str, float]]:
    config = compose(*SMALL, *overrides)
    set_process_state(config)
    policy = make_policy_for(config)
    collector = make_collector(config, policy)
    learner = Learner(config, policy)
    metrics = learner.learn(next(iter(collector)), progress)
    collector.shutdown()
    return learner, metrics


@pytest.mark.parametrize(("progress", "expected"), [(0.0, 2.0), (0.5, 1.1), (1.0, 0.2)])
def test_a_schedule_is_linear_from_the_start_to_the_final_fraction(progress: float, expected: float) -> None:
    assert annealed(2.0, 0.1, progress) == pytest.approx(expected)


def test_learning_rate_clip_range_and_entropy_follow_their_schedules(compose: Compose) -> None:
    learner, metrics = learn(
        compose,
        "lr=0.01",
        "lr_final_fraction=0",
        "algorithm.clip_epsilon=0.4",
        "algorithm.clip_final_fraction=0.5",
        "algorithm.entropy_coeff=0.1",
        "algorithm.entropy_final_fraction=0",
        progress=0.5,
    )
    assert metrics["optim/lr"] == pytest.approx(0.005)
    assert learner.algorithm.loss.clip_epsilon_low.item() == pytest.approx(0.3)
    assert learner.algorithm.loss.entropy_coeff.item() == pytest.approx(0.05)


def test_every_minibatch_of_every_epoch_is_a_step(compose: Compose) -> None:
    _, metrics = learn(compose)
    assert metrics["optim/steps"] == 3 * (64 // 8 // 4)


def test_target_kl_stops_the_epochs(compose: Compose) -> None:
    _, metrics = learn(compose, "lr=0.1", "algorithm.target_kl=1e-6")
    assert metrics["optim/steps"] < 3 * (64 // 8 // 4)


def test_the_gradient_is_scaled_to_its_limit(compose: Compose) -> None:
    learner, _ = learn(compose, "algorithm.max_grad_norm=1e-3")
    norm = torch.stack([p.grad.norm() for p in learner.policy.parameters() if p.grad is not None]).norm()
    assert norm.item() <= 1e-3 * (1 + 1e-4)


def test_the_first_step_has_the_policy_of_the_rollout(compose: Compose) -> None:
    _, metrics = learn(compose, "epochs=1", "minibatch_slices=8")
    assert metrics["policy/kl_approx"] == pytest.approx(0, abs=1e-6)
    assert metrics["policy/effective_sample_size"] == pytest.approx(1, abs=1e-5)
    assert metrics["policy/clip_fraction"] == 0


def test_every_parameter_learns(compose: Compose) -> None:
    config = compose(*SMALL)
    set_process_state(config)
    before = {name: p.detach().clone() for name, p in make_policy_for(config).named_parameters()}
    learner, _ = learn(compose)
    unchanged = [name for name, p in learner.policy.named_parameters() if torch.equal(p, before[name])]
    assert unchanged == []


def test_observation_statistics_change_after_the_update(compose: Compose) -> None:
    learner, _ = learn(compose)
    counts = [buffer for name, buffer in learner.policy.named_buffers() if name.endswith("count")]
    assert [count.item() for count in counts] == [64]


def test_what_is_due_every_so_many_frames_is_due_at_each_multiple_and_at_the_end(compose: Compose) -> None:
    config = compose(*SMALL, "total_frames=400")
    frames = [64 * i for i in range(1, 7)]
    assert [is_due(config, f, 128) for f in frames] == [False, True, False, True, False, True]
    assert [is_due(config, f, 100) for f in frames] == [False, True, False, True, True, True]
    assert [is_due(config, f, None) for f in frames] == [False] * 5 + [True]
    assert is_last(config, 384)
    assert not is_last(config, 320)
