"""An update: schedules, early stopping, clipping, skipped steps, what a checkpoint holds."""

import itertools
import math
import threading
from copy import deepcopy
from functools import partial

import pytest
import torch
from collected import assert_replays, fresh_policy, weights_of, with_rollout, with_rollouts
from counting_env import Counting
from rejections import error_of

from recurrl import checkpoint
from recurrl.algorithms.ppo import PPO
from recurrl.build import make_algorithm, make_collector
from recurrl.errors import NonFiniteError

OPTIONS = ("frames_per_batch=64", "slice_len=8", "epochs=3")
GRPO = ("algorithm=grpo", "algorithm.group_size=2", "env=pendulum_no_velocity")


def learn(small, *overrides, progress=0.0):
    algorithm, batch = with_rollout(small(*OPTIONS, *overrides))
    return algorithm, algorithm.update(batch, progress)


@pytest.mark.parametrize(("env", "kept"), [("cartpole_no_velocity", math.sqrt(0.5)), ("pendulum_no_velocity", 0.5)])
def test_learning_rate_and_entropy_bonus_follow_their_schedules(env, kept, small):
    falling = ("lr=0.01", "lr_final_fraction=0", "algorithm.entropy_coeff=0.1", "algorithm.entropy_final_fraction=0")
    # Then the unit of the entropy bonus is 1.
    overrides = (f"env={env}", *falling, "algorithm.normalize_advantage=minibatch")
    algorithm, metrics = learn(small, *overrides, progress=0.5)
    assert metrics["optim/lr"] == pytest.approx(0.005)
    assert algorithm.entropy_coeff.item() == pytest.approx(0.1 * kept)


@pytest.mark.parametrize("options", [(), GRPO], ids=["ppo", "grpo"])
def test_an_update_clips_by_the_range_that_the_options_have_then(options, small):
    algorithm, batch = with_rollout(small(*OPTIONS, *options))
    algorithm.options.clip_epsilon = algorithm.options.clip_epsilon_high = 0.5
    algorithm.update(batch, 0.0)
    assert algorithm.log_clip_range == pytest.approx((math.log(0.5), math.log(1.5)))


SCHEDULES = [
    ("schedule_sqrt_after=100 total_frames=1600 lr_final_fraction=0", 1 / 32, 0.01 * 31 / 32),  # 50 frames
    ("schedule_sqrt_after=100 total_frames=1600 lr_final_fraction=0", 0.25, 0.01 * 0.75 / 2),  # 400 frames
    ("schedule_sqrt_after=100 total_frames=1600 lr_final_fraction=0.2", 0.25, 0.01 * (0.2 + 0.8 * 0.75 / 2)),
    ("schedule_sqrt_after=null total_frames=1600 lr_final_fraction=0", 0.25, 0.01 * 0.75),
    ("schedule_sqrt_after=100 total_frames=6400 schedule_frames=1600 lr_final_fraction=0", 0.25, 0.01 * 0.75 / 2),
]


@pytest.mark.parametrize(("overrides", "progress", "expected"), SCHEDULES)
def test_schedules_fall_with_the_inverse_square_root_of_frames_in_long_runs(overrides, progress, expected, small):
    algorithm, metrics = learn(small, "lr=0.01", *overrides.split(), progress=progress)
    assert metrics["optim/lr"] == pytest.approx(expected)
    assert algorithm.annealed(0.01, algorithm.config.lr_final_fraction) == pytest.approx(expected)


def test_the_next_rollout_acts_with_the_weights_as_they_are_then(small):
    algorithm, batches = with_rollouts(small(*OPTIONS, "lr=0.05"), 3, std=0.5)
    for batch in batches:
        assert_replays(algorithm.policy, batch)
        algorithm.update(batch, progress=0.0)


def test_target_kl_stops_the_epochs(small):
    _, metrics = learn(small, "lr=0.1", "algorithm.target_kl=1e-6")
    assert metrics["optim/steps"] < 3 * (64 // 8 // 4)


ADAPTIVE = [
    *((("lr=1e-3", "desired_kl=1e-12"), 1e-3 / 1.5**5), (("lr=1e-3", "desired_kl=0.5"), 1e-3 * 1.5**5)),
    (("lr=2e-5", "desired_kl=1e-12", "epochs=12"), 1e-5),
    (("lr=5e-3", "desired_kl=100", "epochs=12"), 1e-2),
]


@pytest.mark.parametrize(("overrides", "expected"), ADAPTIVE)
def test_an_adaptive_learning_rate_falls_after_large_steps_and_else_rises(overrides, expected, small):
    _, metrics = learn(small, "lr_schedule=adaptive", "lr_final_fraction=0.1", *overrides, progress=0.5)
    assert metrics["optim/lr"] == pytest.approx(expected)


def masked(algorithm, slices, output):
    """A minibatch in which nothing counts."""
    slices["loss_mask"] = torch.zeros_like(slices["is_init"])
    return PPO.loss(algorithm, slices, output)


def not_finite(algorithm, slices, output):
    losses = PPO.loss(algorithm, slices, output)
    losses.terms["objective"] = losses.terms["objective"] * torch.nan
    return losses


@pytest.mark.parametrize("spoilt", [(), (0,), (0, 1, 2), (3,), (5,), range(6)], ids=str)
@pytest.mark.parametrize("loss", [masked, not_finite])
def test_minibatches_without_a_step_change_neither_the_learning_rate_nor_the_metrics(loss, spoilt, small, monkeypatch):
    config = small(*OPTIONS, "minibatch_slices=4", "lr=1e-4", "lr_schedule=adaptive", "desired_kl=100")
    algorithm, batch = with_rollout(config)
    made, spoiling, numbers = algorithm.loss, partial(loss, algorithm), itertools.count()
    monkeypatch.setattr(algorithm, "loss", lambda *of: (spoiling if next(numbers) in spoilt else made)(*of))
    metrics = algorithm.update(batch, progress=0.0)
    taken = 6 - len(spoilt)
    assert metrics["optim/steps"] == taken
    assert metrics["optim/skipped_steps"] == (len(spoilt) if loss is not_finite else 0)
    # The KL of the first step is that of the policy that collected.
    assert metrics["optim/lr"] == pytest.approx(1e-4 * 1.5 ** max(0, taken - 1))
    assert ("policy/entropy" in metrics) == (taken > 0)
    if taken:
        assert metrics["policy/entropy"] == pytest.approx(math.log(2), rel=0.05)
        assert all(math.isfinite(metrics[name]) for name in ("loss/objective", "optim/grad_norm"))


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
@pytest.mark.parametrize("loss", [masked, not_finite])
def test_a_minibatch_without_a_step_leaves_weights_and_optimizer_as_they_are(loss, optimizer, small, monkeypatch):
    algorithm, _ = learn(small, f"optimizer={optimizer}")
    before = weights_of(algorithm.policy)
    (slices, *_) = algorithm.buffer.minibatches(algorithm.rows)
    algorithm.states.set_initial_states(slices)
    algorithm.gradient_step(slices)
    assert not torch.equal(weights_of(algorithm.policy), before)
    before, state = weights_of(algorithm.policy), deepcopy(algorithm.optimizer.state_dict())
    monkeypatch.setattr(algorithm, "loss", partial(loss, algorithm))
    algorithm.gradient_step(slices)
    assert torch.equal(weights_of(algorithm.policy), before)
    torch.testing.assert_close(algorithm.optimizer.state_dict(), state, rtol=0, atol=0)


def test_advantages_normalised_by_batch_are_standardised_over_all_minibatches(small):
    algorithm, metrics = learn(small, "algorithm.normalize_advantage=batch")
    advantages = algorithm.rows["advantage"]
    assert advantages.mean().item() == pytest.approx(0, abs=1e-5)
    assert advantages.std().item() == pytest.approx(1, abs=1e-5)
    assert metrics["advantage/std"] != pytest.approx(1, abs=1e-2)


def test_what_is_logged_of_values_is_of_the_batch_as_it_was_collected(small):
    algorithm, metrics = learn(small)
    value, target = (algorithm.rows[key] for key in ("state_value", "value_target"))
    assert metrics["value/mean"] == pytest.approx(value.mean().item(), rel=1e-4)
    assert metrics["value/target_std"] == pytest.approx(target.std(correction=0).item(), rel=1e-4)
    expected = 1 - (target - value).double().var() / target.double().var()
    assert metrics["value/explained_variance"] == pytest.approx(expected.item(), rel=1e-4)


class Paying(Counting):
    """Pays one at each step, for ever, and cannot be saved; the first copy at step ``fails_at`` raises, once."""

    length, fails_at = math.inf, None

    def __init__(self):
        self.lock = threading.Lock()

    def reward(self, action):
        if self.steps == Paying.fails_at:
            Paying.fails_at = None
            raise ValueError("once")
        return 1.0


STARTS_OVER = {
    "after an environment error": "collector.on_env_error=restart",
    "in a resumed run that begins new episodes": "env.max_episode_steps=null",
    "with each batch of groups": "algorithm=grpo",
}


@pytest.mark.parametrize("override", STARTS_OVER.values(), ids=STARTS_OVER.keys())
def test_the_discounted_return_is_reset_where_collection_starts_over(override, small, register, monkeypatch):
    monkeypatch.setattr(Paying, "fails_at", 20 if "on_env_error" in override else None)
    paying = ("env=gym", f"env.id={register(Paying)}", "env.normalize_reward=true")
    config = small(*OPTIONS, *paying, override, *(["algorithm.group_size=2"] if "grpo" in override else []))
    policy = fresh_policy(config)
    collector, algorithm = make_collector(config, policy), make_algorithm(config, policy)
    algorithm.update(collector.collect(), progress=0.0)
    first = algorithm.reward_scaler.discounted_return.clone()
    if "max_episode_steps" in override:
        left = collector.state_dict()
        collector.shutdown()
        collector = make_collector(config, policy, config.frames_per_batch)
        collector.load_state_dict(left)
    algorithm.update(collector.collect(), progress=0.5)
    collector.shutdown()
    gamma, steps = config.algorithm.gamma, config.steps_per_row
    assert first.tolist() == pytest.approx([steps if gamma == 1 else (1 - gamma**steps) / (1 - gamma)] * 4)
    assert torch.equal(algorithm.reward_scaler.discounted_return, first)


def test_grpo_learns_without_a_critic_and_logs_its_groups(small):
    algorithm, metrics = learn(small, *GRPO, "algorithm.kl_to_ref_coeff=0.1", "epochs=1", "minibatch_slices=8")
    assert not any("critic" in name for name, _ in algorithm.policy.named_parameters())
    assert not {"state_value", "value_target"} & set(algorithm.rows.keys())
    assert metrics["group/groups"] >= 2
    assert metrics["policy/effective_sample_fraction"] == pytest.approx(1, abs=1e-5)
    # The policy is still the reference, whose own states the reference went through.
    assert metrics["policy/kl_to_ref"] == pytest.approx(0, abs=1e-6)
    assert all(math.isfinite(value) for value in metrics.values())


def test_a_penalty_on_the_kl_that_begins_later_without_a_reference_is_an_error(small):
    algorithm, batch = with_rollout(small(*OPTIONS, *GRPO, "algorithm.kl_to_ref_coeff=0"))
    algorithm.options.kl_to_ref_coeff = 0.1
    error = error_of(algorithm.update, batch, 0.0)
    assert "algorithm.kl_to_ref_coeff must stay 0 in a run that began with 0" in error


@pytest.mark.parametrize(("every", "refreshed"), [("null", [0]), ("2", [0, 2])])
def test_the_reference_policy_is_refreshed_every_so_many_iterations(every, refreshed, small):
    options = ("algorithm.kl_to_ref_coeff=0.1", f"algorithm.ref_refresh_iterations={every}")
    algorithm, batches = with_rollouts(small(*OPTIONS, *GRPO, *options), 4)
    is_refreshed = []
    for batch in batches:
        collecting = deepcopy(algorithm.policy.state_dict())
        algorithm.update(batch, progress=0.0)
        reference = algorithm.reference.state_dict()
        is_refreshed.append(all(torch.equal(reference[name], value) for name, value in collecting.items()))
    assert is_refreshed == [iteration in refreshed for iteration in range(4)]


def test_the_reference_policy_is_part_of_a_checkpoint(small, tmp_path):
    options = (*GRPO, "algorithm.kl_to_ref_coeff=0.1", "algorithm.ref_refresh_iterations=2")
    trained, _ = learn(small, *options)
    path = checkpoint.save(tmp_path, 64, {}, trained.components())
    loaded, _ = with_rollout(small(*OPTIONS, *options, "seed=1"))
    checkpoint.Checkpoint(path).load(loaded.components(), {"seed": 0})
    assert loaded.iterations == trained.iterations == 1
    assert torch.equal(weights_of(loaded.reference), weights_of(trained.reference))
    assert not torch.equal(weights_of(loaded.reference), weights_of(trained.policy))


@pytest.mark.parametrize("of", ["state_value", "loss/objective", "the gradient"])
def test_too_many_non_finite_steps_in_a_row_end_the_run_and_change_nothing(small, monkeypatch, of):
    algorithm, batch = with_rollout(small(*OPTIONS, "buffer=on_policy", "minibatch_slices=2"))
    algorithm.update(batch.clone(), progress=0.0)
    before = weights_of(algorithm.policy)
    if of == "loss/objective":
        monkeypatch.setattr(algorithm, "loss", partial(not_finite, algorithm))
    elif of == "state_value":
        batch["state_value"].fill_(torch.nan)
    else:
        algorithm.get_parameter("policy.actor_head.network.bias").register_hook(lambda gradient: gradient * torch.nan)
    with pytest.raises(NonFiniteError, match=rf"a non-finite loss or gradient and were skipped \(not finite: .*{of}"):
        algorithm.update(batch, progress=0.5)
    assert torch.equal(weights_of(algorithm.policy), before)


def test_skipped_steps_in_a_row_are_counted_across_a_resume(small, monkeypatch, tmp_path):
    # Six to eight steps per iteration, of the ten in a row that end a run.
    made = [with_rollout(small(*OPTIONS, "minibatch_slices=2", "epochs=2")) for _ in range(2)]
    (first, batch), (second, _) = made
    first.update(batch.clone(), progress=0.0)
    for algorithm, _ in made:
        monkeypatch.setattr(algorithm, "loss", partial(not_finite, algorithm))
    first.update(batch.clone(), progress=0.5)
    path = checkpoint.save(tmp_path, 64, {}, first.components())
    checkpoint.Checkpoint(path).load(second.components(), {"seed": 0})
    assert "the last 12 gradient steps" in error_of(second.update, batch, progress=0.5, kind=NonFiniteError)
