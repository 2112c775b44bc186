"""Run directories: each command has one of its own, and a second command keeps out of it."""

import signal
import subprocess
import sys
import time

import pytest
from run_files import contents, metrics, summary

LONG = ["total_frames=100_000_000", "checkpoint.every_frames=32"]


@pytest.fixture
def start(tmp_path):
    """Starts ``recurrl-train`` in a process of its own."""
    started = []

    def start(*overrides):
        command = [sys.executable, "-m", "recurrl", *overrides]
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("options", "key"), [([], "hydra.run.dir"), (["-m"], "hydra.sweep.dir")])
def test_a_directory_that_cannot_be_made_is_an_error_with_a_remedy(train, options, key):
    assert train(*options, "seed=1", f"{key}=/proc/nope").error == (
        "The operating system says: No such file or directory for /proc/nope. Set a writable directory with "
        "hydra.run.dir=..., hydra.sweep.dir=..., --output or --video."
    )


def wait_for_frames(run):
    """Until a run has a checkpoint."""
    deadline = time.monotonic() + 120
    while not list(run.glob("checkpoints/frames_*")):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_directory_that_another_process_has_locked_is_not_used(train, tiny, tmp_path, holder):
    (tmp_path / "run").mkdir()
    process = holder(tmp_path / "run")
    for overrides in ([], ["resume=auto"]):
        error = train(*tiny, "hydra.run.dir=run", *overrides).error
        assert f"is in use by process {process.pid} on" in error
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["run.lock"]


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3, 10])
def test_of_several_runs_started_in_one_directory_one_runs(start, tiny, tmp_path, count):
    runs = [start(*tiny, "hydra.run.dir=run", "resume=auto", *LONG) for _ in range(count)]
    rejected = []
    while len(rejected) < count - 1:
        rejected = [run for run in runs if run.poll() is not None]
        time.sleep(0.01)
    for run in rejected:
        message = run.stderr.read()
        assert run.returncode == 1
        assert "Traceback" not in message
    (runner,) = [run for run in runs if run not in rejected]
    assert f"is in use by process {runner.pid} on" in message or "is in use by another process" in message
    wait_for_frames(tmp_path / "run")
    runner.send_signal(signal.SIGTERM)
    assert runner.wait(60) == 128 + signal.SIGTERM
    frames = [int(row["frames"]) for row in metrics(tmp_path / "run")]
    assert frames == list(range(32, 32 * len(frames) + 1, 32))
    assert summary(tmp_path / "run")["frames"] == frames[-1]


def test_a_finished_run_keeps_all_its_files_and_says_that_it_is_complete(train, tiny, tmp_path):
    again = [*tiny, "hydra.run.dir=run", "resume=auto"]
    train(*again).succeeded()
    before = contents(tmp_path / "run")
    train(*tiny, "hydra.run.dir=run", "seed=1").failed()
    train(*again, "lr=-1").failed()
    assert "is complete: 64 frames" in train(*again).succeeded().out
    assert contents(tmp_path / "run") == before


def test_a_folder_or_a_foreign_file_in_place_of_a_runs_file_is_an_error(train, tiny, tmp_path):
    (tmp_path / "run" / "config.yaml").mkdir(parents=True)
    error = train(*tiny, "hydra.run.dir=run").error
    assert "run/config.yaml" in error
    (tmp_path / "run" / "config.yaml").rmdir()
    (tmp_path / "run" / "config.yaml").write_text("port: 80\n")
    assert "config.yaml was not written by a run" in train(*tiny, "hydra.run.dir=run").error
    assert (tmp_path / "run" / "config.yaml").read_text() == "port: 80\n"


def test_a_run_that_was_killed_before_its_summary_completes_it(train, tiny, tmp_path):
    again = [*tiny, "hydra.run.dir=run", "resume=auto"]
    train(*again).succeeded()
    before = summary(tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    train(*again).succeeded()
    after = summary(tmp_path / "run")
    same = ("status", "frames", "eval_return_mean", "best_eval_return_mean", "train_return_mean", "checkpoint")
    assert {key: after[key] for key in same} == {key: before[key] for key in same}
    assert [row["frames"] for row in metrics(tmp_path / "run")] == ["32", "64"]


def test_a_wrong_option_is_reported_before_the_directory_of_another_run(train, finished_run):
    where = f"hydra.run.dir={finished_run}"
    before = contents(finished_run)
    assert train(where, "cell.hidden_size=many").error.startswith("cell.hidden_size must be an integer from 2")
    assert train(where).error.startswith(f"{finished_run} already holds another run.")
    assert contents(finished_run) == before
