"""wandb with its server unreachable or lost or its process killed; and resumed runs."""

import logging
import os
import re
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

import pytest
from commands import output_of
from disks import with_a_small_disk
from rejections import error_of
from run_files import column, ended, summary
from wandb_server import synced

from recurrl.checkpoint import Checkpoint, files
from recurrl.tracking import Resumed, make_trackers
from recurrl.tracking.csv import CsvTracker


@pytest.fixture
def online(logger_options):
    return logger_options("wandb", mode="online")


def trackers_of(options, run_dir, resumed=None):
    run_dir.mkdir(exist_ok=True)
    return make_trackers(options, run_dir, {"seed": 0}, resumed)


def log(trackers, *frames):
    for tracker in trackers.values():
        for count in frames:
            tracker.log(count, {"loss/critic": count / 10})


def close(trackers, failed=False):
    for tracker in trackers.values():
        tracker.close(failed)


def ids(trackers):
    return {"wandb": trackers["wandb"].id}


def recorded(server, run_id):
    return [(row["frames"], row["_step"]) for row in server.history[run_id]]


# Resumed runs


@pytest.mark.parametrize("arrived", [3, 1], ids=["everything arrived", "the server lacks metrics after a kill"])
def test_a_resumed_run_is_one_server_run_with_increasing_steps(server, online, tmp_path, arrived):
    first = trackers_of(online, tmp_path / "run")
    log(first, 32, 64, 96)
    # Like a killed run, which never reports its end.
    close(first, failed=True)
    [(run_id, rows)] = server.history.items()
    assert ids(first) == {"wandb": run_id}
    del rows[arrived:]
    second = trackers_of(online, tmp_path / "run", Resumed(32 * min(arrived, 2), ids(first)))
    assert ids(second) == ids(first)
    log(second, *(64, 96, 128)[min(arrived, 2) - 1 :])
    close(second)
    assert server.completed[run_id] == [1, 0]
    assert recorded(server, run_id) == [(32, 32), (64, 64), (96, 96), (128, 128)]


def test_a_second_branch_of_a_run_needs_a_new_id(server, online, tmp_path):
    first = trackers_of(online, tmp_path / "first")
    log(first, 32, 64, 96)
    close(first)
    error = error_of(trackers_of, online, tmp_path / "other", Resumed(32, ids(first)))
    assert re.search(r"up to 96 frames, but this run begins at 32: .* Set logger.id=\.\.\.", error)
    online.id = "mine"
    second = trackers_of(online, tmp_path / "third", Resumed(32, ids(first)))
    log(second, 64)
    close(second)
    assert recorded(server, "mine") == [(64, 64)]
    assert [frames for frames, _ in recorded(server, ids(first)["wandb"])] == [32, 64, 96]


def test_the_wandb_id_survives_a_part_logged_elsewhere(trained, tmp_path):
    trained("logger.mode=offline").succeeded()
    trained("logger=csv", "total_frames=96", "resume=auto").succeeded()
    first, last = (Checkpoint(path).resumed for path in files.checkpoints_in(tmp_path / "run" / "checkpoints"))
    assert (first.frames, last.frames) == (64, 96)
    assert first.ids.keys() == {"wandb"}
    assert first.ids == last.ids


def test_a_run_resumed_offline_uploads_as_one_run_with_increasing_steps(trained, tmp_path):
    ours = ("logger.mode=offline", "checkpoint.every_frames=32")
    trained(*ours, "total_frames=96").succeeded()
    # As if killed before its last checkpoint: the third iteration is repeated.
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "frames_000000000096")
    outcome = trained(*ours, "total_frames=128", "resume=auto").succeeded()
    assert outcome.err.count("wandb: WARNING") == 0
    assert re.findall(r"wandb sync (\S+)", outcome.out) == [str(tmp_path / "run" / "wandb")]
    server = synced(tmp_path / "run")
    [run_id] = server.history
    assert recorded(server, run_id) == [(32, 32), (64, 64), (96, 96), (128, 128)]


# wandb cannot start


FAILURES = [
    ("the server is unreachable", "connection refused"),
    ("the server is silent", "WANDB_INIT_TIMEOUT"),
    ("the server rejects the key", "user is not logged in"),
    ("a wrong mode", "mode"),
]


@pytest.mark.parametrize(("failure", "reason"), FAILURES)
def test_a_run_that_wandb_cannot_start_fails_before_training(server, trained, tmp_path, monkeypatch, failure, reason):
    server.status = 401
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "1.5")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        if failure == "a wrong mode":
            monkeypatch.setenv("WANDB_MODE", "sometimes")
        elif failure != "the server rejects the key":
            port = silent.getsockname()[1] if failure == "the server is silent" else 9
            monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
        began = time.monotonic()
        outcome = trained("logger.mode=online")
        seconds = time.monotonic() - began
    assert (outcome.code, "Traceback" in outcome.err) == (1, False)
    assert seconds < 10
    assert outcome.error.startswith("logger=wandb could not start a run with logger.mode=online: ")
    assert ended(tmp_path / "run", "frames") == ("failed", 0)
    assert reason in summary(tmp_path / "run")["error"]
    for text in (reason, "logger.mode=offline", "logger=csv"):
        assert text in outcome.error


# wandb fails


def test_a_lost_server_loses_no_metrics_and_the_timeout_holds(server, online, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("WANDB_FINISH_TIMEOUT", "1.5")
    trackers = trackers_of(online, tmp_path / "run")
    log(trackers, 32)
    server.stop()
    log(trackers, 64, 96)
    began = time.monotonic()
    close(trackers)
    assert time.monotonic() - began < 10
    [message] = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert "is incomplete: no answer within 1.5 s (WANDB_FINISH_TIMEOUT). All metrics are in" in message
    assert message.endswith(f"wandb sync --include-online {tmp_path / 'run' / 'wandb'}")
    assert column(tmp_path / "run", "frames") == [32, 64, 96]


def test_training_continues_when_wandbs_process_is_killed_and_reports_it(trained, tmp_path, monkeypatch):
    log, killed = CsvTracker.log, []

    def killing(*arguments):
        children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
        for child in [] if killed else children:
            if "wandb-core" in Path(f"/proc/{child}/cmdline").read_text():
                os.kill(int(child), signal.SIGKILL)
                killed.append(child)
        log(*arguments)

    monkeypatch.setattr(CsvTracker, "log", killing)
    outcome = trained("logger.mode=offline", "total_frames=128").succeeded()
    assert killed
    assert len(re.findall(r"wandb run \w+ is incomplete", outcome.out)) == 1
    assert "Traceback" not in outcome.err
    assert column(tmp_path / "run", "frames") == [32, 64, 96, 128]
    # The next run in this process is recorded.
    outcome = trained("logger.mode=offline", "hydra.run.dir=next").succeeded()
    assert "is incomplete" not in outcome.out
    assert len(list((tmp_path / "next").glob("wandb/offline-run-*/*.wandb"))) == 1


@pytest.mark.slow
def test_training_continues_when_wandbs_disk_is_full_and_the_next_run_is_recorded(machine, tiny, tmp_path):
    (tmp_path / "0" / "wandb").mkdir(parents=True)
    small_disk = with_a_small_disk(tmp_path / "0" / "wandb", "20k")
    sweep = ("-m", "seed=0,1", "hydra.sweep.dir=.", "hydra.sweep.subdir=${hydra.job.num}", *tiny, "total_frames=3200")
    program = [*small_disk, sys.executable, "-m", "recurrl", *sweep, "logger=wandb", "logger.mode=offline"]
    out = output_of(program, cwd=tmp_path, timeout=300)
    assert len(re.findall(r"wandb run \w+ is incomplete: .*No space left on device", out)) == 1
    assert [ended(tmp_path / job, "frames") for job in ("0", "1")] == [("completed", 3200)] * 2
    [record] = (tmp_path / "1").glob("wandb/offline-run-*/*.wandb")
    assert record.stat().st_size > 50_000
