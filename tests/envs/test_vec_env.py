"""Simulators that step all their environments in one call, on tensors."""

import logging
import math
from itertools import product

import pytest
import torch
from collected import acted, collected, collecting, fresh_policy, rollouts
from in_ranks import in_ranks
from rejections import error_of
from run_files import summary
from simulators import LENGTH, Levels, Simulation, start

import recurrl
from recurrl.build import make_algorithm, make_collector
from recurrl.envs import make_batched_env
from recurrl.envs.batched import SingleEnv
from recurrl.envs.sources.vec_env import release
from recurrl.errors import ConfigError, EnvError, RunError
from recurrl.evaluation import evaluate
from recurrl.runtime.serialization import from_bytes, to_bytes
from recurrl.tracking.csv import read_rows
from recurrl.validation import check_config

N = 4
ROWS = ["env.num_envs=4", "cell=gru", "cell.hidden_size=8", "encoder.sizes=[8]", "algorithm.gamma=0.9", "epochs=1"]
CRITIC = ["algorithm.critic=feedforward", "algorithm.critic_observation=[privileged]"]
INLINE = ["env=simulators:Points", *ROWS]
KINDS = {
    "same step": ["+env.kwargs.resets=same_step"],
    "same step without final observations": ["+env.kwargs.resets=same_step", "+env.kwargs.final=false"],
    "on request": ["+env.kwargs.resets=disabled", "env.resets=disabled"],
    "next step": ["+env.kwargs.resets=next_step", "env.resets=next_step"],
}


@pytest.fixture(autouse=True)
def _released():
    Simulation.made = 0
    yield
    release()


def simulated(*overrides, name="Simulation"):
    return ["env=vec_env", f"env.id=simulators:{name}", *ROWS, *overrides]


def rows_of(episodes, length):
    """Overrides for rows of ``episodes`` episodes of ``length`` steps, each a slice, in one minibatch."""
    frames = N * episodes * length
    return [f"frames_per_batch={frames}", f"total_frames={frames}", f"slice_len={length}", "minibatch_slices=8"]


@pytest.fixture
def mode(monkeypatch):
    """Actions without noise, so that they depend on what is seen alone."""
    monkeypatch.setattr("recurrl.collector.single.torch.randn", torch.zeros)


def updated(config, mark=False):
    """What a first update sees and does: transitions, metrics, gradients and statistics."""
    policy, rows = collected(config, std=0.5)
    algorithm = make_algorithm(config, policy)
    if mark:
        rows["next", "final_unknown"] = rows["next", "truncated"].clone()
    metrics = algorithm.update(rows, 0.0)
    gradients = torch.cat([each.grad.flatten() for each in policy.parameters()])
    statistics = [each.double().flatten() for name, each in policy.named_buffers() if "moments" in name]
    statistics += [each.double().flatten() for each in algorithm.reward_scaler.moments.buffers()]
    kept = ~rows["next"].get("inserted", torch.zeros_like(rows["is_init"])).squeeze(-1)
    return rows, kept, metrics, gradients, torch.cat(statistics)


NORMALIZED = [*product(KINDS, ["batch"]), *product(["next step"], ["none", "minibatch"])]


@pytest.mark.parametrize(("kind", "normalize"), NORMALIZED)
def test_the_first_update_is_that_of_single_environments(compose, mode, kind, normalize):
    length, same = LENGTH + (kind == "next step"), [f"algorithm.normalize_advantage={normalize}"]
    inline = compose(*INLINE, *rows_of(2, LENGTH), *same)
    expected_rows, _, expected, gradients, statistics = updated(inline, mark="without" in kind)
    rows, kept, metrics, found, of_rows = updated(compose(*simulated(*KINDS[kind]), *rows_of(2, length), *same))
    assert kept.sum() == N * 2 * LENGTH
    unknown = rows["next", "done"] if "without" in kind else torch.zeros_like(kept)[..., None]
    results = [("next", name) for name in ("reward", "episode_reward", "terminated", "truncated", "done")]
    for key in ("observation", "action", "is_init", *results):
        value = rows[key][kept].view(N, 2 * LENGTH, -1)
        torch.testing.assert_close(value, expected_rows[key].view_as(value), rtol=0, atol=1e-6, msg=str(key))
    where = ~unknown.squeeze(-1) & kept
    after = expected_rows["next", "observation"][where[kept].view(N, -1)]
    torch.testing.assert_close(rows["next", "observation"][where], after, rtol=0, atol=1e-6)
    torch.testing.assert_close(found, gradients, rtol=0, atol=1e-6)
    assert found.abs().max() > 1e-3
    torch.testing.assert_close(of_rows, statistics, rtol=0, atol=1e-6)
    for name in ("advantage/mean", "advantage/std", "value/mean", "value/target_std", "loss/critic", "policy/entropy"):
        assert metrics[name] == pytest.approx(expected[name], abs=1e-6), name
    assert metrics.get("collect/inserted_fraction", 0.0) == pytest.approx(1 - LENGTH / length)


def test_a_time_out_without_its_observation_bootstraps_from_the_last_value(compose, mode, caplog):
    config = compose(*simulated(*KINDS["same step without final observations"]), *rows_of(2, LENGTH))
    config.algorithm.lmbda = 1.0
    config.env.normalize_reward = False
    policy, rows = collected(config, std=0.5)
    make_algorithm(config, policy).update(rows, 0.0)
    for n in range(N):
        value, reward = (rows[key][n, :LENGTH, 0] for key in ("state_value", ("next", "reward")))
        last = value[-1] if n % 2 == 0 else 0.0
        target = last
        for step in reversed(range(LENGTH)):
            target = reward[step] + 0.9 * target
            torch.testing.assert_close(rows["value_target"][n, step, 0], target, rtol=0, atol=1e-5)
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "final observation" in warnings[0].message


NEXT_STEP = KINDS["next step"]
INTERFACES = [("Arrays", NEXT_STEP, NEXT_STEP), ("rsl_vec_env", [], ["+env.kwargs.final=false"])]


@pytest.mark.parametrize(("name", "options", "same"), INTERFACES)
def test_arrays_and_the_four_results_of_rsl_rl_are_the_tensors_of_isaac_lab(compose, mode, name, options, same):
    frames = rows_of(2, LENGTH + (name == "Arrays"))
    _, expected = collected(compose(*simulated(*same), *frames), std=0.5)
    _, found = collected(compose(*simulated(*options, name=name), *frames), std=0.5)
    for key, value in expected.items(True, True):
        assert torch.equal(found[key], value), key


def test_a_critic_may_see_its_own_group(compose, mode):
    policy, rows = collected(compose(*simulated("+env.kwargs.groups=true", *CRITIC), *rows_of(2, LENGTH)))
    assert policy.critic_only == ("privileged",)
    assert rows["observation", "observation"].shape == (N, 2 * LENGTH, 2)
    seen = rows["observation", "privileged"]
    assert torch.equal(seen[..., :2], rows["observation", "observation"])
    assert seen[0, :, 2].tolist() == [*range(LENGTH), *range(LENGTH)]
    assert rows["next", "observation", "privileged"][0, :, 2].tolist() == [*range(1, LENGTH + 1)] * 2


def test_groups_are_named_by_the_configuration(compose):
    both = compose(*simulated("+env.kwargs.groups=true", "env.actor_groups=[policy,critic]")).env
    shown = make_batched_env(both, N, seed=0).reset_tensors(None)
    shapes = {key: tuple(value.shape) for key, value in shown.items()}
    assert shapes == {("observation", "policy"): (N, 2), ("observation", "critic"): (N, 3)}
    with pytest.raises(ConfigError, match=r"must name groups of observations \(got nobody\).* has policy, critic\."):
        make_batched_env(compose(*simulated("+env.kwargs.groups=true", "env.actor_groups=[nobody]")).env, N, seed=0)
    with pytest.raises(ConfigError, match=r"got privileged.* name a simulator's groups, env\.critic_groups"):
        fresh_policy(compose(*simulated(*CRITIC)))


def test_what_it_logs_becomes_metrics(compose):
    config = compose(*simulated(*KINDS["on request"]), *rows_of(2, LENGTH))
    collector = make_collector(config, fresh_policy(config))
    rows = collector.collect()
    found = collector.metrics()
    mean = pytest.approx(float(rows["next", "reward"].double().mean()))
    assert found == {"env/Mean/reward": mean, "env/count": 2.0, "env/Episode/begun": N}
    assert collector.metrics() == found
    evaluated = make_batched_env(config.env, N, seed=1)  # in the same simulator, by steps that are not the rollout's
    evaluated.step_tensors(torch.zeros_like(evaluated.reset_tensors(None)["observation"]))
    rows = collector.collect()
    assert collector.metrics()["env/Mean/reward"] == pytest.approx(float(rows["next", "reward"].double().mean()))


def test_a_launcher_runs_in_one_process_only(compose):
    config = compose(*simulated("env.launcher=app:start", "collector=multi_sync", "collector.num_workers=2"))
    assert "env.launcher must be null with several processes (got app:start). Use" in error_of(check_config, config)


def check_seeded(metrics):
    """The metrics of two simulations, of seed 0 and of another one."""
    (other,) = (int(name.removeprefix("env/of/")) for name in metrics if name.startswith("env/of/"))
    expected = {"env/seed": other / 2, "env/zero": 0.0, "env/not_zero": 2.0, f"env/of/{other}": 1.0}
    assert {name: value for name, value in metrics.items() if name.startswith("env/")} == expected


def test_what_the_simulators_of_ranks_log_is_averaged_by_name(train, tiny, tmp_path):
    options = ["evaluation.episodes=0", "consistency_check=false", "hydra.run.dir=run"]
    overrides = [*tiny, *simulated(name="Seeded"), *options]
    outcomes = in_ranks(2, lambda: train(*overrides)[:1])
    assert outcomes == [(0,), (0,)]
    for row in read_rows(tmp_path / "run" / "metrics.csv"):
        check_seeded(row)


@pytest.mark.slow
@pytest.mark.parametrize("collector", ["multi_sync", "multi_async"])
def test_what_the_simulators_of_workers_log_is_averaged_by_name_and_restored_with_their_rows(compose, collector):
    options = [f"collector={collector}", "collector.num_workers=2", "seed=0", *rows_of(2, LENGTH)]
    config = compose(*simulated(name="Seeded"), *options)
    policy, ahead = fresh_policy(config), collector == "multi_async"
    with collecting(config, policy) as first, collecting(config, policy) as second:
        first.collect()
        found = first.metrics()
        check_seeded(found)
        assert found.keys() >= {"collect/staleness"} if ahead else "collect/staleness" not in found
        second.load_state_dict(from_bytes(to_bytes(first.state_dict())))
        second.collect()
        check_seeded(second.metrics())


MESSAGES = {
    "observation": "Environment 1 of 4 (simulators:Failing), at step 4, returned a non-finite value of 'observation': "
    "[nan, ",
    "reward": "Environment 2 of 4 (simulators:Failing), at step 4, returned a non-finite value of 'reward': [nan]",
    "length": "(simulators:Failing), at step 4, returned 3 values from step. Have it return (observation, reward, term",
    "shape": "gave the observation 'observation' the shape (4, 1) and torch.float32 on cpu, but it must have (4, 2)",
    "dtype": "gave the observation 'observation' the shape (4, 2) and torch.float64 on cpu, but it must have (4, 2)",
    "device": "gave the observation 'observation' the shape (4, 2) and torch.float32 on meta, but it must have",
    "kind": "(simulators:Failing), at step 4, raised TypeError in step",
    "rewards": "(simulators:Failing), at step 4, returned reward of shape (3,) on cpu. Have it return one for each of",
    "flags": "(simulators:Failing), at step 4, returned terminated as torch.float32. Have it return True or False.",
}


@pytest.mark.parametrize("failure", MESSAGES)
def test_a_failure_is_an_error_that_names_the_environment_in_training_and_in_evaluation(compose, failure):
    config = compose(*simulated(f"+env.kwargs.failure={failure}", name="Failing"), f"frames_per_batch={2 * N}")
    policy = fresh_policy(config)
    assert MESSAGES[failure] in error_of(list, rollouts(config, policy, 2), kind=EnvError)
    release()
    assert MESSAGES[failure] in error_of(evaluate, config.env, policy, 4, seed=0, kind=EnvError)


@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_counts_equally_many_first_episodes_of_each_environment(compose, kind):
    config = compose(*simulated(*KINDS[kind]), "frames_per_batch=48")
    policy = fresh_policy(config)
    expected = evaluate(compose(*INLINE).env, policy, N, seed=3)
    torch.testing.assert_close(evaluate(config.env, policy, N, seed=3), expected, rtol=0, atol=1e-5)
    assert evaluate(config.env, policy, 2, seed=3) == pytest.approx(expected[:2], abs=1e-5)
    more = evaluate(config.env, policy, 7, seed=3)
    assert len(more) == 7
    assert more[:N] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("resets", ["same_step", "disabled"])
def test_short_episodes_count_no_more_than_long_ones_and_those_that_have_ended_are_reset(compose, resets):
    """Environment n has episodes of n + 1 steps, each with reward 1 at a step: their mean length is (1 + 2 + 3) / 3."""
    how = (f"env.resets={resets}", f"+env.kwargs.resets={resets}", "env.num_envs=3")
    assert evaluate(compose(*simulated(*how, name="Lengths")).env, None, 6, seed=0) == [1, 2, 3, 1, 2, 3]


def test_one_simulation_serves_training_evaluation_and_a_resumed_run(train, tiny, tmp_path, in_tmp_path):
    overrides = [*tiny, "env=vec_env", "env.id=simulators:Simulation", "cell=gru", "evaluation.every_frames=32"]
    outcome = train(*overrides, "hydra.run.dir=run").succeeded()
    assert Simulation.made == 1
    assert "Restarting all training episodes" in outcome.out
    found = summary(tmp_path / "run")
    assert found["frames"] == 64
    assert math.isfinite(found["eval_return_mean"])
    agent = recurrl.load(tmp_path / "run", trust_packages=True)
    assert len(agent.evaluate(3)) == 3
    *_, (*_, truncated) = acted(agent, LENGTH)
    assert truncated
    env = agent.make_env()
    train("resume=run", "total_frames=128").succeeded()
    assert Simulation.made == 1
    assert summary(tmp_path / "run")["frames"] == 128
    release()
    assert env._env._env.closed


def test_a_curriculum_survives_a_kill_and_evaluation_leaves_it_alone(train, tiny, tmp_path, monkeypatch):
    settings = [*tiny, "env=vec_env", "env.id=simulators:Levels", "frames_per_batch=64", "total_frames=320"]
    settings += ["checkpoint.every_frames=64", "evaluation.every_frames=64", "hydra.run.dir=run"]

    def saved():
        paths = sorted((tmp_path / "run" / "checkpoints").iterdir())
        state = torch.load(paths[-1] / "state-collector_state.pt", weights_only=True)
        return int(paths[-1].name[-12:]), state["curriculum"]["level"].item()

    monkeypatch.setattr(Levels, "steps_left", 50)
    assert "killed" in train(*settings).error
    frames, level = saved()
    assert 0 < frames < 320
    # Rows of 64 / N steps, which begin with new episodes after each evaluation.
    ended = N * (64 // N // LENGTH)
    assert level == 1 + ended * (frames // 64)
    release()
    monkeypatch.setattr(Levels, "steps_left", math.inf)
    train("resume=run", "hydra.run.dir=run").succeeded()
    assert saved() == (320, 1 + ended * 5)
    release()
    changed = train("resume=run", "env.packages=[simulators]", "total_frames=384", "hydra.run.dir=run").succeeded()
    assert "The simulator's own state, such as its curriculum, starts over." in changed.out


def test_episodes_after_a_resume_begin_with_the_saved_curriculum(compose):
    config = compose(*simulated(name="Levels"), *rows_of(2, LENGTH))
    policy = fresh_policy(config)
    collector = make_collector(config, policy)
    collector.collect()
    state = collector.state_dict()
    assert state["curriculum"] == {"level": torch.tensor(1.0 + 2 * N, dtype=torch.float64)}
    release()
    resumed = make_collector(config, policy)
    resumed.load_state_dict(state)
    number = torch.arange(N).double()
    first = (1 + 2 * N) * start(number, resumed.env.raw._env.episode).float()
    assert torch.equal(resumed.collect()["observation"][:, 0], first)
    assert state["curriculum"] == {"level": torch.tensor(1.0 + 2 * N, dtype=torch.float64)}


def test_after_another_user_training_begins_episodes_that_nobody_has_seen(compose):
    config = compose(*simulated(name="Seeded"), *rows_of(1, LENGTH))
    policy = fresh_policy(config)
    collector, seeds = make_collector(config, policy), []
    for other in (lambda: evaluate(config.env, policy, N, seed=3), lambda: SingleEnv(collector.env.raw).reset(seed=3)):
        for _ in range(2):
            other()
            seeds.append(collector.env.raw._env.seed)
            assert collector.env.was_reset_elsewhere
            collector.collect()
            seeds.append(collector.env.raw._env.seed)
    assert len(set(seeds)) == len(seeds) - 2, "each of the other users has one seed"


def test_a_curriculum_of_anything_but_tensors_and_plain_values_is_an_error(compose):
    config = compose(*simulated(name="Unsavable"), *rows_of(2, LENGTH))
    error = error_of(list, rollouts(config, fresh_policy(config)), kind=RunError)
    assert "state_dict() of simulators:Unsavable must return tensors and plain values" in error


@pytest.mark.parametrize(("frames", "count"), [(16, 0), (192, 32)])
def test_without_evaluation_the_episodes_of_training_are_reported(train, tiny, tmp_path, frames, count):
    overrides = [*tiny, "epochs=1", "evaluation.episodes=0", f"frames_per_batch={min(frames, 64)}", "hydra.run.dir=run"]
    simulation = ["env=vec_env", "env.id=simulators:Simulation", "collector.on_env_error=restart"]
    outcome = train(*overrides, *simulation, f"total_frames={frames}").succeeded()
    assert "Restarting all training episodes" not in outcome.out
    row = read_rows(tmp_path / "run" / "metrics.csv")[-1]
    assert row["train/episodes"] >= count
    assert row.get("eval/episodes", 0) == count
    if count:
        assert row["eval/return_mean"] == row["train/return_mean"]
        assert len(recurrl.load(tmp_path / "run", trust_packages=True).evaluate(3)) == 3
    else:
        assert "s of training; no episode of training has ended; " in outcome.out
        assert "eval/return_mean" not in row
        with pytest.raises(ConfigError, match=r"holds no evaluated checkpoint: .* or no episode of training had ended"):
            recurrl.load(tmp_path / "run", trust_packages=True)
    assert summary(tmp_path / "run")["eval_return_mean"] == row.get("eval/return_mean")
    assert summary(tmp_path / "run")["best_eval_return_mean"] == row.get("eval/return_mean")
    train("resume=run", f"total_frames={2 * frames}").succeeded()
    assert summary(tmp_path / "run")["frames"] == 2 * frames


def test_what_a_simulator_cannot_do_is_rejected_before_it_is_made(rejected):
    error = rejected("env=vec_env", "env.id=simulators:Simulation", "env.num_envs=1")
    assert error.startswith("env.num_envs must be at least 2 with env.source=vec_env")


OTHERS = [
    ("rsl_vec_env", "env.resets=disabled", "env.resets=disabled needs a reset with an argument env_ids, mask or opt"),
    ("one_more", "seed=0", "4 environments of env.id=simulators:one_more, as one of batch size [4] (got [5])"),
    ("deaf", "env.device=meta", "env.device must be where env.id=simulators:deaf runs, which is cpu (got meta)"),
]


@pytest.mark.parametrize(("name", "override", "message"), OTHERS)
def test_another_number_device_or_reset_than_configured_is_rejected(compose, name, override, message):
    config = compose(*simulated(override, name=name)).env
    assert message in error_of(make_batched_env, config, N, seed=0)
