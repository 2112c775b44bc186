"""``recurrl-train resume=...``: going on with a run, and the runs that cannot be gone on with."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from run_files import learning_rates, metrics, settings, summary, without_times


@pytest.fixture(scope="module")
def resumed_run(in_a_folder, recurrl_train, finished_run) -> Path:
    """A run of 128 frames that continues the finished one of 64."""
    folder, outcome = in_a_folder(recurrl_train, f"resume={finished_run}", "total_frames=128", "hydra.run.dir=run")
    assert outcome.code == 0, outcome.err
    return folder / "run"


def test_a_resumed_run_continues_from_the_frames_of_the_run_before(resumed_run):
    assert [row["frames"] for row in metrics(resumed_run)] == ["96", "128"]
    found = summary(resumed_run)
    assert (found["status"], found["frames"]) == ("completed", 128)
    assert found["checkpoint"] == "checkpoints/frames_000000000128"


def test_a_resumed_run_keeps_the_settings_of_the_run_before_but_for_what_is_overridden(resumed_run, finished_run):
    expected = settings(finished_run) | {"total_frames": 128, "schedule_frames": 64, "resume": str(finished_run)}
    assert expected["cell"]["name"] == "lstm"
    assert settings(resumed_run) == expected
    assert yaml.safe_load((resumed_run / ".hydra" / "config.yaml").read_text(encoding="utf-8")) == expected
    assert summary(resumed_run)["cell"] == "lstm"


def test_a_resumed_run_says_which_settings_are_not_those_of_the_run_before(train, finished_run):
    outcome = train(f"resume={finished_run}", "total_frames=96", "lr=3e-3", "epochs=1", "hydra.run.dir=run")
    assert "resuming with total_frames=96, which was 64" in outcome.out
    assert "resuming with epochs=1, which was 2" in outcome.out
    assert "lr=" not in outcome.out


def test_an_environment_that_is_made_otherwise_begins_new_episodes_and_says_so(train, finished_run, tmp_path):
    outcome = train(f"resume={finished_run}", "total_frames=96", "env.max_episode_steps=2", "hydra.run.dir=run")
    assert outcome.code == 0, outcome.err
    assert "Unfinished episodes are restarted: env.max_episode_steps is 2 and was None." in outcome.out, outcome.out
    [row] = metrics(tmp_path / "run")
    # Of 32 frames.
    assert float(row["train/episodes"]) - float(metrics(finished_run)[-1]["train/episodes"]) == 16


def test_the_best_evaluation_is_that_of_all_parts_of_a_run(train, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("recurrl.evaluation.evaluate", lambda *_: [5.0])
    assert train(*tiny, "hydra.run.dir=run").code == 0
    monkeypatch.setattr("recurrl.evaluation.evaluate", lambda *_: [2.0])
    assert train("resume=run", "total_frames=96", "hydra.run.dir=run").code == 0
    found = summary(tmp_path / "run")
    assert (found["eval_return_mean"], found["best_eval_return_mean"]) == (2.0, 5.0)


def test_a_checkpoint_alone_is_enough_to_resume_and_to_evaluate(train, evaluate, finished_run, tmp_path):
    shutil.copytree(finished_run / "checkpoints" / "frames_000000000032", tmp_path / "mine")
    outcome = train("resume=mine", "hydra.run.dir=run")
    assert outcome.code == 0, outcome.err
    run = tmp_path / "run"
    assert without_times(metrics(run)) == without_times(metrics(finished_run))[1:]
    assert settings(run) == settings(finished_run) | {"resume": "mine"}
    assert evaluate(tmp_path / "mine").code == 0


def test_a_run_that_is_extended_stays_at_the_learning_rate_it_had_come_to(train, finished_run, tmp_path):
    # From 3e-3 to a tenth of it over 64 frames, at the beginning of each iteration.
    last = 3e-3 * (1 - 0.9 / 2)
    assert learning_rates(finished_run) == pytest.approx([3e-3, last])
    outcome = train(f"resume={finished_run}", "total_frames=128", "hydra.run.dir=run")
    assert learning_rates(tmp_path / "run") == pytest.approx([last, last])
    assert "The schedules end at 64 frames, as before. schedule_frames=128 stretches them over the whole" in outcome.out
    # And again, from there.
    assert train("resume=run", "total_frames=160", "hydra.run.dir=run").code == 0
    assert learning_rates(tmp_path / "run") == pytest.approx([last, last, last])
    assert settings(tmp_path / "run")["schedule_frames"] == 64


@pytest.mark.parametrize("asked", ["128", "null"])
def test_a_run_that_is_extended_takes_another_schedule_where_it_is_asked_for(train, finished_run, tmp_path, asked):
    outcome = train(f"resume={finished_run}", "total_frames=128", f"schedule_frames={asked}", "hydra.run.dir=run")
    assert outcome.code == 0, outcome.err
    rates = [3e-3 * (1 - 0.9 * 64 / 128), 3e-3 * (1 - 0.9 * 96 / 128)]
    assert learning_rates(tmp_path / "run") == pytest.approx(rates)


def test_a_run_can_be_resumed_from_one_of_its_checkpoints_by_a_relative_path(recurrl_train, finished_run, tmp_path):
    run = tmp_path / "run"
    outcome = recurrl_train(
        "resume=run/checkpoints/frames_000000000032", f"hydra.run.dir={run}", cwd=finished_run.parent
    )
    assert outcome.code == 0, outcome.err
    assert [row["frames"] for row in metrics(run)] == ["64"]
    assert learning_rates(run) == pytest.approx([3e-3 * (1 - 0.9 / 2)])


def test_a_run_resumed_in_its_own_directory_keeps_its_settings_and_its_metrics(train, finished_run, tmp_path):
    run = shutil.copytree(finished_run, tmp_path / "run")
    outcome = train("resume=run", "total_frames=96", "hydra.run.dir=run")
    assert outcome.code == 0, outcome.err
    assert settings(run) == settings(finished_run) | {"total_frames": 96, "schedule_frames": 64, "resume": "run"}
    assert [row["frames"] for row in metrics(run)] == ["32", "64", "96"]
    assert without_times(metrics(run))[:2] == without_times(metrics(finished_run))


# What is refused


def test_resuming_with_another_network_is_refused(train, finished_run):
    outcome = train(f"resume={finished_run}", "total_frames=128", "cell.hidden_size=16")
    assert outcome.code == 1
    assert outcome.error.startswith(
        f"The checkpoint {finished_run / 'checkpoints' / 'frames_000000000064'} does not fit"
    )
    assert f"or start a new run with the weights that fit: init_from={finished_run}/checkpoints/" in outcome.error
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    ("before", "change", "reason"),
    [
        ((), "seed=7", "its random number generators are restored"),
        (("lr_schedule=adaptive",), "lr=1e-5", "lr_schedule=adaptive resumes from its last"),
    ],
)
def test_a_change_that_would_change_nothing_is_refused(train, tiny, tmp_path, before, change, reason):
    assert train(*tiny, *before, "hydra.run.dir=run").code == 0
    outcome = train("resume=run", "total_frames=96", change)
    assert outcome.code == 1
    assert outcome.error.startswith(f"{change.replace('1e-5', '1e-05')} has no effect in a resumed run")
    assert reason in outcome.error
    assert (
        "a new run with these weights: init_from=run/checkpoints/frames_000000000064 instead of resume."
        in outcome.error
    )


def test_resuming_with_an_experiment_is_refused(train, finished_run, tmp_path):
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    (tmp_path / "mine" / "experiment" / "long.yaml").write_text("# @package _global_\nepochs: 9\n", encoding="utf-8")
    outcome = train("--config-dir", "mine", f"resume={finished_run}", "experiment=long", "total_frames=128")
    assert outcome.error == (
        "experiment= cannot be combined with resume=, which keeps its run's settings. Leave it out, or start a new run "
        f"with its weights: init_from={finished_run}/checkpoints/frames_000000000064 instead of resume."
    )


def test_going_on_from_a_run_without_a_checkpoint_is_refused(refused, finished_run, tmp_path):
    run = shutil.copytree(finished_run, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    assert refused(f"resume={run}") == (
        f"resume={run}: {run} holds no checkpoint: its run ended before it wrote one. Choose another run, or start a "
        "new one without it."
    )


def test_going_on_with_nothing_left_to_do_is_refused(refused, finished_run):
    assert refused(f"resume={finished_run}") == (
        f"total_frames must be at least 96 (got 64), because resume={finished_run} is already at 64 frames. Give more "
        "total_frames."
    )
