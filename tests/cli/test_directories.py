"""Run directories: each command has one of its own, and a second command keeps out of it."""

import re

import pytest
from run_files import contents, ended, metrics


@pytest.mark.parametrize(("options", "key"), [([], "hydra.run.dir"), (["-m"], "hydra.sweep.dir")])
def test_a_directory_that_cannot_be_made_is_an_error_with_a_remedy(train, options, key):
    assert train(*options, "seed=1", f"{key}=/proc/nope").error == (
        "No such file or directory: /proc/nope. Set a writable directory with "
        "hydra.run.dir=..., hydra.sweep.dir=..., --output or --video."
    )


def test_a_directory_that_another_process_has_locked_is_not_used(train, tiny, tmp_path, holder):
    (tmp_path / "run").mkdir()
    process = holder(tmp_path / "run")
    for overrides in ([], ["resume=auto"]):
        error = train(*tiny, "hydra.run.dir=run", *overrides).error
        assert re.search(rf"is in use by process {process.pid} on \S+ since \d{{4}}-.*hydra.run.dir=", error)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["run.lock"]


def test_a_finished_run_keeps_all_its_files_and_says_that_it_is_complete(train, tiny, tmp_path):
    again = [*tiny, "hydra.run.dir=run", "resume=auto"]
    train(*again).succeeded()
    before = contents(tmp_path / "run")
    train(*tiny, "hydra.run.dir=run", "seed=1").failed()
    train(*again, "lr=-1").failed()
    assert "is complete: 64 frames" in train(*again).succeeded().out
    assert contents(tmp_path / "run") == before


def test_a_foreign_file_in_place_of_a_runs_file_is_an_error(train, tiny, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("port: 80\n")
    assert "config.yaml was not written by a run" in train(*tiny, "hydra.run.dir=run").error
    assert (tmp_path / "run" / "config.yaml").read_text() == "port: 80\n"


def test_a_run_that_was_killed_before_its_summary_completes_it(train, tiny, tmp_path):
    again = [*tiny, "hydra.run.dir=run", "resume=auto"]
    train(*again).succeeded()
    same = ("frames", "eval_return_mean", "best_eval_return_mean", "train_return_mean", "checkpoint")
    before = ended(tmp_path / "run", *same)
    (tmp_path / "run" / "summary.json").unlink()
    train(*again).succeeded()
    assert ended(tmp_path / "run", *same) == before
    assert [row["frames"] for row in metrics(tmp_path / "run")] == ["32", "64"]


def test_a_wrong_option_is_reported_before_the_directory_of_another_run(train, finished_run):
    where = f"hydra.run.dir={finished_run}"
    before = contents(finished_run)
    assert train(where, "cell.hidden_size=many").error.startswith("cell.hidden_size must be an integer from 2")
    assert train(where).error.startswith(f"{finished_run} already holds another run.")
    assert contents(finished_run) == before
