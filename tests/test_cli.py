"""The command line: what a run writes and says, sweeps, going on with a run, and evaluating one."""

from __future__ import annotations

import csv
import importlib.metadata
import json
import re
import shutil
from dataclasses import fields
from pathlib import Path

import pytest
import torch
import yaml

from recurrl import checkpoint
from recurrl.cli import evaluate_run
from recurrl.config import TrainConfig
from recurrl.learner import Learner
from recurrl.recurrent.backends import backend_names
from recurrl.recurrent.cells import cell_names
from recurrl.train import make_policy_for

SUMMARY_KEYS = {
    "status",
    "error",
    "frames",
    "wall_time_s",
    "train_time_s",
    "frames_per_s",
    "startup_time_s",
    "train_return_mean",
    "eval_return_mean",
    "eval_return_std",
    "eval_episodes",
    "best_eval_return_mean",
    "seed",
    "device",
    "cell",
    "backend",
    "checkpoint",
}
GRID = [("gru", 0), ("gru", 1), ("lstm", 0), ("lstm", 1)]
REFUSAL = (
    "recompute=full is not possible with backend=pad, whose fused kernels manage their own backward workspace. "
    "Choose backend=scan, or recompute=none."
)


def summary(run: Path) -> dict[str, object]:
    return json.loads((run / "summary.json").read_text(encoding="utf-8"))


def settings(run: Path) -> dict[str, object]:
    return yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))


def metrics(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def learning_rates(run: Path) -> list[float]:
    return [float(row["optim/lr"]) for row in metrics(run)]


def without_times(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """The rows as written, but for how long things took."""
    return [{name: value for name, value in row.items() if not name.startswith("time/")} for row in rows]


def sentences(err: str) -> list[str]:
    """The lines of standard error but for the one with which Hydra names the overrides of a job that failed."""
    return [line for line in err.splitlines() if not line.startswith("Error executing job with overrides: ")]


def fails_in_iteration(monkeypatch, number: int, error: BaseException) -> None:
    """Makes learning fail in the iteration of that number, the first being 1."""
    learn = Learner.learn
    calls = []

    def failing(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == number:
            raise error
        return learn(self, *args, **kwargs)

    monkeypatch.setattr(Learner, "learn", failing)


@pytest.fixture
def train(recurrl_train, tmp_path):
    """Runs ``recurrl-train`` in this process, in a folder of its own."""
    return lambda *overrides: recurrl_train(*overrides, cwd=tmp_path)


@pytest.fixture
def evaluate(recurrl_evaluate, tmp_path):
    """Runs ``recurrl-evaluate`` in this process, in a folder of its own."""
    return lambda *arguments: recurrl_evaluate(*arguments, cwd=tmp_path)


@pytest.fixture(scope="module")
def console_folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("anywhere")


@pytest.fixture(scope="module")
def console_outcome(console, tiny, console_folder):
    """A run by the console command in a process of its own, in a folder that is not the repository."""
    return console("recurrl-train", *tiny, "cell=lstm", "seed=1", cwd=console_folder)


@pytest.fixture(scope="module")
def console_run(console_outcome, console_folder) -> Path:
    assert console_outcome.code == 0, console_outcome.err
    (run,) = console_folder.glob("outputs/*/*")
    return run


@pytest.fixture(scope="module")
def sweep_folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("sweep")


@pytest.fixture(scope="module")
def sweep_outcome(recurrl_train, tiny, sweep_folder):
    """A sweep over two cells and two seeds."""
    return recurrl_train("-m", *tiny, "cell=gru,lstm", "seed=0,1", cwd=sweep_folder)


@pytest.fixture(scope="module")
def sweep(sweep_outcome, sweep_folder) -> list[Path]:
    """The run directories of its jobs, in the order of ``GRID``."""
    assert sweep_outcome.code == 0, sweep_outcome.err
    (directory,) = sweep_folder.glob("outputs/sweeps/*/*")
    return [directory / str(job) for job in range(len(GRID))]


# One run


def test_both_commands_are_installed_with_the_package():
    commands = {script.name: script.value for script in importlib.metadata.entry_points(group="console_scripts")}
    assert commands["recurrl-train"] == "recurrl.cli:main"
    assert commands["recurrl-evaluate"] == "recurrl.cli:evaluate_main"


def test_the_console_command_writes_a_run_directory_below_the_folder_it_is_called_in(console_run, console_folder):
    assert re.fullmatch(r"outputs/\d{4}-\d\d-\d\d/\d\d-\d\d-\d\d", console_run.relative_to(console_folder).as_posix())
    assert [path.name for path in console_folder.iterdir()] == ["outputs"]
    contents = {path.name for path in console_run.iterdir()}
    assert contents >= {".hydra", "config.yaml", "metrics.csv", "checkpoints", "learning_curve.png", "summary.json"}


def test_a_run_says_what_it_runs_and_what_came_out(console_outcome, console_run):
    found = summary(console_run)
    assert (
        "CartPole-v1, 4 environments; lstm 8 by backend auto (measures on the first batch) on cpu"
        in console_outcome.out
    )
    assert re.search(rf"backend auto is {found['backend']} for 4 rows of 4 steps, .* ms a layer", console_outcome.out)
    mean, std = found["eval_return_mean"], found["eval_return_std"]
    assert f"evaluation return {mean:.1f} ± {std:.1f} over 2 episodes; " in console_outcome.out
    assert str(console_run) in console_outcome.out


def test_a_run_records_the_configuration_it_ran_with(console_run):
    recorded = settings(console_run)
    assert recorded.keys() == {field.name for field in fields(TrainConfig)}
    assert (recorded["cell"], recorded["seed"]) == ({"name": "lstm", "hidden_size": 8, "num_layers": 1}, 1)
    assert recorded["env"]["mask"] == [1, 3]
    assert yaml.safe_load((console_run / ".hydra" / "config.yaml").read_text(encoding="utf-8")) == recorded


def test_a_run_writes_a_row_of_metrics_an_iteration_by_frames(console_run):
    header = (console_run / "metrics.csv").read_text(encoding="utf-8").partition("\n")[0].split(",")
    assert header[0] == "frames"
    assert {"train/return_mean", "eval/return_mean", "time/frames_per_s", "optim/lr"} <= set(header)
    assert [row["frames"] for row in metrics(console_run)] == ["32", "64"]


def test_a_run_draws_its_learning_curve(console_run):
    assert (console_run / "learning_curve.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_the_summary_of_a_run_says_what_it_came_to(console_run):
    found = summary(console_run)
    assert found.keys() >= SUMMARY_KEYS
    assert {key: found[key] for key in ("status", "error", "frames", "seed", "device", "cell", "eval_episodes")} == {
        "status": "completed",
        "error": None,
        "frames": 64,
        "seed": 1,
        "device": "cpu",
        "cell": "lstm",
        "eval_episodes": 2,
    }
    assert found["backend"] in ("scan", "pad")
    assert found["checkpoint"] == "checkpoints/frames_000000000064"
    assert (console_run / found["checkpoint"]).is_dir()


def test_the_summary_of_a_run_agrees_with_its_metrics(console_run):
    found, rows = summary(console_run), metrics(console_run)
    assert found["train_return_mean"] == float(rows[-1]["train/return_mean"])
    assert found["eval_return_mean"] == found["best_eval_return_mean"] == float(rows[-1]["eval/return_mean"])
    assert found["eval_return_std"] == float(rows[-1]["eval/return_std"])
    seconds = sum(float(row["time/collect_s"]) + float(row["time/learn_s"]) for row in rows)
    assert found["train_time_s"] == pytest.approx(seconds)
    assert found["frames_per_s"] == pytest.approx(64 / seconds)
    assert found["startup_time_s"] + found["train_time_s"] < found["wall_time_s"]


def test_evaluation_and_checkpoints_come_as_often_as_asked_and_at_the_end(train, tiny, tmp_path):
    outcome = train(
        *tiny, "total_frames=160", "checkpoint.every_frames=64", "evaluation.every_frames=96", "hydra.run.dir=run"
    )
    assert outcome.code == 0, outcome.err
    run = tmp_path / "run"
    evaluations = {row["frames"]: float(row["eval/return_mean"]) for row in metrics(run) if row["eval/return_mean"]}
    assert list(evaluations) == ["96", "160"]
    assert summary(run)["best_eval_return_mean"] == max(evaluations.values())
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [
        "frames_000000000064",
        "frames_000000000128",
        "frames_000000000160",
    ]


def test_frames_that_are_no_whole_number_of_iterations_are_not_exceeded(train, tiny, tmp_path):
    outcome = train(*tiny, "total_frames=95", "hydra.run.dir=run")
    assert outcome.code == 0, outcome.err
    assert summary(tmp_path / "run")["frames"] == 64


def test_a_policy_without_memory_runs_without_a_backend(train, tiny, tmp_path):
    outcome = train(*tiny, "cell=none", "hydra.run.dir=run")
    assert outcome.code == 0, outcome.err
    assert "no memory (cell=none)" in outcome.out
    found = summary(tmp_path / "run")
    assert (found["status"], found["cell"], found["backend"]) == ("completed", "none", None)


def test_the_configuration_can_be_printed_and_nothing_runs(train, tmp_path):
    outcome = train("--cfg", "job", "cell=lstm", "lr=1e-4")
    assert outcome.code == 0, outcome.err
    printed = yaml.safe_load(outcome.out)
    assert printed.keys() == {field.name for field in fields(TrainConfig)}
    assert (printed["cell"]["name"], printed["lr"]) == ("lstm", 0.0001)
    assert list(tmp_path.iterdir()) == []


def test_the_help_lists_the_choices_and_the_keys_and_nothing_runs(train, tmp_path, compose):
    outcome = train("--help")
    assert outcome.code == 0, outcome.err
    lines = [line.strip() for line in outcome.out.splitlines()]
    assert f"cell: {', '.join(sorted((*cell_names(), 'none')))}" in lines
    assert f"backend: {', '.join(sorted(backend_names()))}" in lines
    assert "recompute: full, none" in lines
    config = compose()
    assert {
        f"total_frames: {config.total_frames}",
        f"lr: {config.lr}",
        f"hidden_size: {config.cell.hidden_size}",
    } <= set(lines)
    assert list(tmp_path.iterdir()) == []


# Runs that end badly


def test_a_refused_run_says_one_sentence(train):
    outcome = train("recompute=full", "backend=pad")
    assert outcome.code == 1
    assert sentences(outcome.err) == [f"error: {REFUSAL}"]


@pytest.mark.slow
def test_a_refused_run_says_one_sentence_in_a_process_of_its_own(console, tmp_path):
    outcome = console("recurrl-train", "recompute=full", "backend=pad", cwd=tmp_path)
    assert outcome.code == 1
    assert sentences(outcome.err) == [f"error: {REFUSAL}"]


def test_a_refused_run_is_recorded(train, tmp_path):
    train("recompute=full", "backend=pad", "seed=3", "hydra.run.dir=run")
    found = summary(tmp_path / "run")
    assert found.keys() >= SUMMARY_KEYS
    assert (found["status"], found["frames"], found["seed"]) == ("failed", 0, 3)
    assert REFUSAL in found["error"]


def test_a_run_in_the_directory_of_another_is_refused_and_leaves_its_results(train, finished_run, tmp_path, tiny):
    run = shutil.copytree(finished_run, tmp_path / "run")
    outcome = train(*tiny, "hydra.run.dir=run")
    assert outcome.code == 1
    assert str(run) in outcome.error
    assert "hydra.run.dir=" in outcome.error
    assert f"resume={run}" in outcome.error
    assert "Traceback" not in outcome.err
    assert summary(run) == summary(finished_run)
    assert metrics(run) == metrics(finished_run)
    assert evaluate_run(run) == evaluate_run(finished_run)


def test_the_directory_of_a_refused_run_can_be_used_again(train, tiny, tmp_path):
    assert train(*tiny, "seed=-1", "hydra.run.dir=run").code == 1
    outcome = train(*tiny, "hydra.run.dir=run")
    assert outcome.code == 0, outcome.err
    assert summary(tmp_path / "run")["status"] == "completed"


def test_a_run_that_fails_on_the_way_records_how_far_it_came(train, tiny, tmp_path, monkeypatch):
    fails_in_iteration(monkeypatch, 2, RuntimeError("the GPU fell off"))
    outcome = train(*tiny, "hydra.run.dir=run")
    assert outcome.code == 1
    assert "RuntimeError: the GPU fell off" in outcome.err
    found = summary(tmp_path / "run")
    assert (found["status"], found["error"]) == ("failed", "RuntimeError: the GPU fell off")
    assert (found["frames"], found["checkpoint"]) == (32, None)
    assert [row["frames"] for row in metrics(tmp_path / "run")] == ["32"]


def test_a_run_that_is_interrupted_says_so_in_its_summary(train, tiny, tmp_path, monkeypatch):
    fails_in_iteration(monkeypatch, 2, KeyboardInterrupt())
    outcome = train(*tiny, "hydra.run.dir=run")
    assert outcome.code == 130
    found = summary(tmp_path / "run")
    assert (found["status"], found["error"], found["frames"]) == ("interrupted", None, 32)


# Sweeps


def test_a_sweep_runs_each_combination_in_a_directory_of_its_own(sweep, sweep_outcome):
    assert [(summary(run)["cell"], summary(run)["seed"]) for run in sweep] == GRID
    assert {summary(run)["status"] for run in sweep} == {"completed"}
    assert {len(metrics(run)) for run in sweep} == {2}
    assert {(run / "learning_curve.png").is_file() for run in sweep} == {True}
    assert "4 of 4 jobs completed" in sweep_outcome.err.splitlines()


def test_the_times_of_a_job_of_a_sweep_are_its_own(sweep):
    walls = [summary(run)["wall_time_s"] for run in sweep]
    assert all(summary(run)["startup_time_s"] < wall for run, wall in zip(sweep, walls, strict=True))
    ended = [(run / "summary.json").stat().st_mtime for run in sweep]
    assert sum(walls[1:]) <= ended[-1] - ended[0] + 0.1


def test_the_last_job_of_a_sweep_is_the_same_as_the_same_run_in_a_process_of_its_own(sweep, console_run):
    assert GRID[3] == ("lstm", 1)
    assert without_times(metrics(sweep[3])) == without_times(metrics(console_run))


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(0, marks=pytest.mark.slow, id="gru-0"),
        pytest.param(1, id="gru-1"),
        pytest.param(2, marks=pytest.mark.slow, id="lstm-0"),
    ],
)
def test_a_job_of_a_sweep_is_the_same_as_the_same_run_alone(train, tiny, tmp_path, sweep, job):
    cell, seed = GRID[job]
    outcome = train(*tiny, f"cell={cell}", f"seed={seed}", "hydra.run.dir=alone")
    assert outcome.code == 0, outcome.err
    assert without_times(metrics(sweep[job])) == without_times(metrics(tmp_path / "alone"))


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_another_seed_gives_another_run(sweep, cell):
    first, second = (without_times(metrics(sweep[GRID.index((cell, seed))])) for seed in (0, 1))
    for row, other in zip(first, second, strict=True):
        assert row["policy/entropy"] != other["policy/entropy"]


def test_a_failed_job_does_not_stop_the_others_and_is_named_at_the_end(train, tiny, tmp_path, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    outcome = train("-m", *tiny, "backend=triton,scan", "hydra.sweep.dir=sweep")
    assert outcome.code == 1
    assert "Traceback" not in outcome.err
    assert [summary(tmp_path / "sweep" / job)["status"] for job in ("0", "1")] == ["failed", "completed"]
    lines = outcome.err.splitlines()
    report = lines[lines.index("1 of 2 jobs completed") :]
    (named,) = (line for line in report if line.startswith("failed: "))
    assert "backend=triton" in named
    assert "backend=triton needs a CUDA device" in named
    assert report[-1].startswith("error: backend=triton needs a CUDA device")


def test_a_sweep_over_an_option_that_does_not_exist_is_refused_before_its_first_job(train, tiny, tmp_path):
    outcome = train("-m", *tiny, "cell=gru,nonesuch", "hydra.sweep.dir=sweep")
    assert outcome.code == 1
    assert "'cell/nonesuch'" in outcome.error
    assert not list(tmp_path.glob("sweep/*/summary.json"))


# Going on with a run


@pytest.fixture(scope="module")
def resumed_folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("resumed")


@pytest.fixture(scope="module")
def resumed_run(recurrl_train, finished_run, resumed_folder) -> Path:
    """A run of 128 frames that goes on from the finished one of 64."""
    outcome = recurrl_train(f"resume={finished_run}", "total_frames=128", "hydra.run.dir=run", cwd=resumed_folder)
    assert outcome.code == 0, outcome.err
    return resumed_folder / "run"


def test_a_resumed_run_goes_on_from_the_frames_of_the_run_before(resumed_run):
    assert [row["frames"] for row in metrics(resumed_run)] == ["96", "128"]
    found = summary(resumed_run)
    assert (found["status"], found["frames"]) == ("completed", 128)
    assert found["checkpoint"] == "checkpoints/frames_000000000128"


def test_a_resumed_run_keeps_the_settings_of_the_run_before_but_for_what_is_overridden(resumed_run, finished_run):
    expected = settings(finished_run) | {"total_frames": 128, "resume": str(finished_run)}
    assert expected["cell"]["name"] == "lstm"
    assert settings(resumed_run) == expected
    assert yaml.safe_load((resumed_run / ".hydra" / "config.yaml").read_text(encoding="utf-8")) == expected
    assert summary(resumed_run)["cell"] == "lstm"


def test_a_resumed_run_goes_on_with_the_schedule_of_the_learning_rate(resumed_run, finished_run):
    # From 3e-3 to a tenth of it, over 64 frames in the first run and over 128 in the second; at the beginning of each
    # iteration.
    assert learning_rates(finished_run) == pytest.approx([3e-3, 3e-3 * (1 - 0.9 / 2)])
    assert learning_rates(resumed_run) == pytest.approx([3e-3 * (1 - 0.9 * 64 / 128), 3e-3 * (1 - 0.9 * 96 / 128)])


def test_a_resumed_run_counts_the_episodes_of_the_run_before(resumed_run, finished_run):
    before = float(metrics(finished_run)[-1]["train/episodes"])
    assert before > 0
    assert float(metrics(resumed_run)[0]["train/episodes"]) >= before


def test_a_resumed_run_goes_on_from_the_weights_that_were_learnt(train, finished_run, tmp_path, compose, tiny):
    outcome = train(f"resume={finished_run}", "total_frames=96", "lr=1e-9", "hydra.run.dir=run")
    assert outcome.code == 0, outcome.err
    config = compose(*tiny, "cell=lstm")
    fresh, before, after = (make_policy_for(config) for _ in range(3))
    checkpoint.load_policy(checkpoint.find(finished_run), before)
    checkpoint.load_policy(checkpoint.find(tmp_path / "run"), after)
    learnt = dict(before.named_parameters())
    for name, parameter in after.named_parameters():
        torch.testing.assert_close(parameter, learnt[name], rtol=0, atol=1e-6)
    assert any(not torch.equal(parameter, learnt[name]) for name, parameter in fresh.named_parameters())


def test_a_run_can_be_resumed_from_one_of_its_checkpoints_by_a_relative_path(recurrl_train, finished_run, tmp_path):
    run = tmp_path / "run"
    outcome = recurrl_train(
        "resume=run/checkpoints/frames_000000000032", f"hydra.run.dir={run}", cwd=finished_run.parent
    )
    assert outcome.code == 0, outcome.err
    assert [row["frames"] for row in metrics(run)] == ["64"]
    assert learning_rates(run) == pytest.approx([3e-3 * (1 - 0.9 / 2)])


def test_a_resumed_run_can_be_resumed(train, resumed_run, tmp_path):
    outcome = train(f"resume={resumed_run}", "total_frames=160", "hydra.run.dir=run")
    assert outcome.code == 0, outcome.err
    assert [row["frames"] for row in metrics(tmp_path / "run")] == ["160"]
    assert settings(tmp_path / "run")["cell"]["name"] == "lstm"


def test_a_resumed_run_can_be_evaluated(evaluate, resumed_run):
    outcome = evaluate(resumed_run)
    found = summary(resumed_run)
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith(
        f"return {found['eval_return_mean']:.1f} ± {found['eval_return_std']:.1f} over 2 episodes "
    )


def test_a_run_resumed_in_its_own_directory_keeps_its_settings_and_its_metrics(train, finished_run, tmp_path):
    run = shutil.copytree(finished_run, tmp_path / "run")
    outcome = train("resume=run", "total_frames=96", "hydra.run.dir=run")
    assert outcome.code == 0, outcome.err
    assert settings(run) == settings(finished_run) | {"total_frames": 96, "resume": "run"}
    assert [row["frames"] for row in metrics(run)] == ["32", "64", "96"]
    assert without_times(metrics(run))[:2] == without_times(metrics(finished_run))


def test_a_refused_resume_in_a_runs_own_directory_leaves_a_run_that_can_be_evaluated(train, finished_run, tmp_path):
    run = shutil.copytree(finished_run, tmp_path / "run")
    outcome = train("resume=run", "total_frames=64", "hydra.run.dir=run")
    assert outcome.error.startswith("resume=run has seen 64 frames already")
    assert metrics(run) == metrics(finished_run)
    assert evaluate_run(run) == evaluate_run(finished_run)


def test_resuming_with_another_network_is_refused(train, finished_run):
    outcome = train(f"resume={finished_run}", "total_frames=128", "cell.hidden_size=16")
    assert outcome.code == 1
    assert outcome.error.startswith(
        f"The checkpoint {finished_run / 'checkpoints' / 'frames_000000000064'} does not fit"
    )
    assert "Resume with the settings its run had (network, environment), or start anew without resume." in outcome.error
    assert "Traceback" not in outcome.err


def test_resuming_with_an_experiment_is_refused(train, finished_run, tmp_path):
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    (tmp_path / "mine" / "experiment" / "long.yaml").write_text("# @package _global_\nepochs: 9\n", encoding="utf-8")
    outcome = train("--config-dir", "mine", f"resume={finished_run}", "experiment=long", "total_frames=128")
    assert outcome.error == ("experiment= cannot be given with resume=, which keeps its run's settings. Leave it out.")


# Evaluating a run


def test_evaluating_a_run_prints_what_its_own_last_evaluation_gave(evaluate, finished_run):
    outcome = evaluate(finished_run)
    found = summary(finished_run)
    assert outcome.code == 0, outcome.err
    printed = re.fullmatch(
        r"return (-?[\d.]+) ± ([\d.]+) over (\d+) episodes \(min (-?[\d.]+), max (-?[\d.]+)\)\n", outcome.out
    )
    assert printed, outcome.out
    assert printed[1] == f"{found['eval_return_mean']:.1f}"
    assert printed[2] == f"{found['eval_return_std']:.1f}"
    assert printed[3] == "2"


def test_evaluating_the_same_run_twice_gives_the_same_returns(finished_run):
    first = evaluate_run(finished_run, episodes=3, seed=5)
    torch.manual_seed(99)
    assert evaluate_run(finished_run, episodes=3, seed=5) == first
    assert len(first) == 3


def test_a_checkpoint_can_be_evaluated(evaluate, finished_run):
    outcome = evaluate(finished_run / "checkpoints" / "frames_000000000032", "--episodes", 3)
    assert outcome.code == 0, outcome.err
    assert "over 3 episodes" in outcome.out


def test_evaluating_leaves_the_run_as_it_was(evaluate, finished_run, tmp_path):
    run = shutil.copytree(finished_run, tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert evaluate("run").code == 0
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("nowhere", "nowhere does not exist."), (".", ". is neither a run directory nor a checkpoint in one.")],
)
def test_evaluating_what_is_no_run_is_refused(evaluate, name, sentence):
    outcome = evaluate(name)
    assert outcome.code == 1
    assert outcome.err == (
        f"error: {sentence} Give a directory that a training run wrote (it holds config.yaml and "
        "checkpoints/), or one of the checkpoints in it.\n"
    )


def test_evaluating_no_episodes_is_refused(evaluate, finished_run):
    assert evaluate(finished_run, "--episodes", 0).err == "error: --episodes 0 is too small. Give at least 1.\n"


def test_evaluating_on_a_device_that_is_not_there_is_refused(evaluate, finished_run, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    outcome = evaluate(finished_run, "--device", "cuda")
    assert outcome.code == 1
    assert outcome.error.startswith("device=cuda was asked for, but torch ")
