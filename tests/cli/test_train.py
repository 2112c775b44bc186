"""``recurrl-train``, one run: what it writes and says."""

import re
from dataclasses import fields

import pytest
import yaml
from run_files import ended, metrics, settings, summary

from recurrl.config import TrainConfig
from recurrl.returns import return_format


def test_the_console_command_writes_a_run_directory_below_its_folder(console_run, console_call):
    folder, _ = console_call
    place = console_run.relative_to(folder).as_posix()
    assert re.fullmatch(r"outputs/\d{4}-\d\d-\d\d/\d\d-\d\d-\d\d-\d{6}", place)
    assert [path.name for path in folder.iterdir()] == ["outputs"]
    contents = {path.name for path in console_run.iterdir()}
    assert contents >= {".hydra", "config.yaml", "metrics.csv", "checkpoints", "learning_curve.png", "summary.json"}


def test_a_run_says_what_it_runs_and_what_came_out(console_call, console_run):
    _, out = console_call
    result = summary(console_run)
    assert "CartPole-v1, 4 environments; lstm 8, backend=auto, on cpu" in out
    assert f"backend=auto chose {result['backend']}" in out
    mean, std = result["eval_return_mean"], result["eval_return_std"]
    form = return_format(mean, std)
    assert f"evaluation return {mean:{form}} ± {std:{form}} over 2 episodes, " in out
    zeroed, shuffled = result["eval_return_mean_zeroed_state"], result["eval_return_mean_shuffled_state"]
    assert f", {zeroed:{form}} with its memory zeroed, {shuffled:{form}} with another episode's memory; " in out
    assert str(console_run) in out


def test_a_run_records_the_configuration_it_ran_with(console_run):
    recorded = settings(console_run)
    assert recorded.keys() == {field.name for field in fields(TrainConfig)}
    assert (recorded["cell"], recorded["seed"]) == ({"name": "lstm", "hidden_size": 8, "num_layers": 1}, 1)
    assert recorded["env"]["mask"] == [1, 3]
    assert yaml.safe_load((console_run / ".hydra" / "config.yaml").read_text(encoding="utf-8")) == recorded


def test_the_summary_of_a_run_says_what_it_came_to(console_run):
    result = summary(console_run)
    assert {"pretrain_log_likelihood", "eval_return_mean_random", "eval_return_std_random", "warnings"} <= result.keys()
    expected = {"status": "completed", "error": None, "frames": 64, "seed": 1, "device": "cpu", "cell": "lstm"}
    assert result | expected | {"eval_episodes": 2} == result
    assert result["backend"] in ("native", "scan", "pad")
    assert result["checkpoint"] == "checkpoints/frames_000000000064"
    assert (console_run / result["checkpoint"]).is_dir()


def test_the_summary_of_a_run_agrees_with_its_metrics(console_run):
    result, rows = summary(console_run), metrics(console_run)
    assert result["train_return_mean"] == float(rows[-1]["train/return_mean"])
    assert result["eval_return_mean"] == result["best_eval_return_mean"] == float(rows[-1]["eval/return_mean"])
    assert result["eval_return_std"] == float(rows[-1]["eval/return_std"])
    seconds = sum(float(row["time/collect_s"]) + float(row["time/learn_s"]) for row in rows)
    assert result["train_time_s"] == pytest.approx(seconds)
    assert result["frames_per_s"] == pytest.approx(64 / seconds)
    assert result["startup_time_s"] + result["train_time_s"] < result["wall_time_s"]


def test_evaluation_and_checkpoints_come_as_often_as_configured_and_at_the_end(train, tiny, tmp_path):
    # At the multiples, or where an iteration passes one.
    every = ("checkpoint.every_frames=64", "evaluation.every_frames=80")
    train(*tiny, "total_frames=191", *every, "hydra.run.dir=run").succeeded()  # one less than another iteration
    run = tmp_path / "run"
    evaluations = {row["frames"]: float(row["eval/return_mean"]) for row in metrics(run) if row["eval/return_mean"]}
    assert list(evaluations) == ["96", "160"]
    assert summary(run)["best_eval_return_mean"] == max(evaluations.values())
    # The last three; one comes before each evaluation too.
    kept = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert kept == [f"frames_000000000{frames:03}" for frames in (96, 128, 160)]


def test_a_policy_without_memory_runs_without_a_backend(train, tiny, tmp_path):
    outcome = train(*tiny, "cell=none", "hydra.run.dir=run").succeeded()
    assert "no memory (cell=none)" in outcome.out
    how = ended(tmp_path / "run", "cell", "backend", "eval_return_mean_zeroed_state")
    assert how == ("completed", "none", None, None)
    assert "with its memory" not in outcome.out
    assert not {"state/drift", "eval/return_mean_zeroed_state"} & metrics(tmp_path / "run")[-1].keys()
