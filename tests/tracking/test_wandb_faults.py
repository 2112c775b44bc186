"""wandb with its server unreachable or lost or its process killed; and resumed runs."""

from __future__ import annotations

import csv
import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import wandb
from disks import with_a_disk_of_its_own
from wandb_server import WandbServer

from recurrl.algorithms import Algorithm
from recurrl.tracking import Resumed, make_trackers


@pytest.fixture
def key(machine, monkeypatch) -> None:
    """A login that only the server could reject."""
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)


@pytest.fixture
def server(key, monkeypatch) -> Iterator[WandbServer]:
    """A recording server."""
    server = WandbServer()
    monkeypatch.setenv("WANDB_BASE_URL", server.url)
    yield server
    wandb.teardown()
    server.stop()


@pytest.fixture
def online(logger_options):
    return logger_options("wandb", mode="online", project="memory")


def trackers_of(options, run_dir: Path, resumed: Resumed | None = None):
    run_dir.mkdir(exist_ok=True)
    settings = {"seed": 0, "resume": None if resumed is None else str(run_dir)}
    return make_trackers(options, run_dir, settings, resumed)


def log(trackers, *frames: int) -> None:
    for count in frames:
        trackers.log(count, {"loss/critic": count / 10})


def recorded(server: WandbServer, run_id: str) -> list[tuple[int, int]]:
    return [(row["frames"], row["_step"]) for row in server.history[run_id]]


def processes_of_wandb() -> list[int]:
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return [int(child) for child in children if "wandb-core" in Path(f"/proc/{child}/cmdline").read_text()]


# Resumed runs


def test_a_resumed_run_is_one_server_run_with_increasing_steps(server, online, tmp_path):
    first = trackers_of(online, tmp_path / "run")
    log(first, 32, 64, 96)
    # Like a killed run, which never reports its end.
    first.close(exit_code=1)
    second = trackers_of(online, tmp_path / "run", Resumed(64, first.ids))
    assert second.ids == first.ids
    log(second, 96, 128)
    second.close()
    [(run_id, rows)] = server.history.items()
    assert first.ids == {"wandb": run_id}
    assert [row["frames"] for row in rows] == [32, 64, 96, 128]
    assert [row["_step"] for row in rows] == [32, 64, 96, 128]


def test_metrics_the_server_lacks_after_a_kill_are_logged_again(server, online, tmp_path):
    first = trackers_of(online, tmp_path / "run")
    log(first, 32, 64, 96)
    first.close(exit_code=1)
    run_id = first.ids["wandb"]
    del server.history[run_id][1:]
    second = trackers_of(online, tmp_path / "run", Resumed(32, first.ids))
    log(second, 64, 96)
    second.close()
    assert recorded(server, run_id) == [(32, 32), (64, 64), (96, 96)]


def test_a_second_branch_of_a_run_needs_a_new_id(server, logger_options, tmp_path):
    options = logger_options("wandb", mode="online", project="memory")
    first = trackers_of(options, tmp_path / "first")
    log(first, 32, 64, 96)
    first.close()
    with pytest.raises(ValueError, match=r"already has metrics up to 96 frames, but this run begins at 32") as caught:
        trackers_of(options, tmp_path / "other", Resumed(32, first.ids))
    assert "logger.id=" in str(caught.value)
    options.id = "mine"
    second = trackers_of(options, tmp_path / "third", Resumed(32, first.ids))
    log(second, 64)
    second.close()
    assert recorded(server, "mine") == [(64, 64)]
    assert [frames for frames, _ in recorded(server, first.ids["wandb"])] == [32, 64, 96]


def test_a_resumed_run_without_a_wandb_run_starts_one(server, online, tmp_path):
    trackers = trackers_of(online, tmp_path / "run", Resumed(64, {}))
    log(trackers, 96)
    trackers.close()
    assert recorded(server, trackers.ids["wandb"]) == [(96, 96)]


def test_the_wandb_id_survives_a_part_logged_elsewhere(logger_options, tmp_path):
    trackers = make_trackers(logger_options("csv"), tmp_path, {}, Resumed(64, {"wandb": "abc"}))
    trackers.close()
    assert trackers.ids == {"wandb": "abc"}


def test_a_run_resumed_offline_uploads_as_one_run_with_increasing_steps(
    machine, recurrl_train, tiny, tmp_path, monkeypatch
):
    ours = [*tiny, "logger=wandb", "logger.mode=offline", "checkpoint.every_frames=32", "hydra.run.dir=run"]
    assert recurrl_train(*ours, "total_frames=96", cwd=tmp_path).code == 0
    # As if killed before its last checkpoint: the third iteration is repeated.
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "frames_000000000096")
    outcome = recurrl_train(*ours, "total_frames=128", "resume=auto", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    assert outcome.err.count("wandb: WARNING") == 0
    [upload] = re.findall(r"wandb sync (\S+)", outcome.out)
    server = WandbServer()
    environment = {**os.environ, "WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": server.url}
    subprocess.run(
        [sys.executable, "-m", "wandb", "sync", upload], cwd=tmp_path, env=environment, check=True, timeout=60
    )
    server.stop()
    [run_id] = server.history
    assert recorded(server, run_id) == [(32, 32), (64, 64), (96, 96), (128, 128)]


# The server is unreachable


@contextmanager
def socket_that_listens() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield f"http://127.0.0.1:{silent.getsockname()[1]}"


@pytest.fixture
def training(recurrl_train, tiny, tmp_path):
    """Trains online; returns the outcome, the summary and the seconds it took."""

    def training(*overrides: str):
        began = time.monotonic()
        outcome = recurrl_train(
            *tiny, "logger=wandb", "logger.mode=online", "hydra.run.dir=run", *overrides, cwd=tmp_path
        )
        summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
        return outcome, summary, time.monotonic() - began

    return training


def is_refused(outcome, summary, reason: str) -> None:
    assert outcome.code == 1
    assert "Traceback" not in outcome.err
    assert outcome.error.startswith("logger=wandb could not start a run with mode online (logger.mode=online).")
    assert reason in outcome.error
    for advice in ("logger.mode=offline", "logger=csv"):
        assert advice in outcome.error
    assert (summary["status"], summary["frames"]) == ("failed", 0)
    assert reason in summary["error"]


def test_an_unreachable_server_fails_the_run_before_training(key, training, monkeypatch):
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "1.5")
    outcome, summary, seconds = training()
    is_refused(outcome, summary, "connection refused")
    assert 1 < seconds < 10


def test_a_silent_server_is_given_up_after_wandbs_timeout(key, training, monkeypatch):
    with socket_that_listens() as url:
        monkeypatch.setenv("WANDB_BASE_URL", url)
        monkeypatch.setenv("WANDB_INIT_TIMEOUT", "1.5")
        outcome, summary, seconds = training()
    is_refused(outcome, summary, "WANDB_INIT_TIMEOUT")
    assert seconds < 10


def test_a_rejected_key_fails_the_run_with_a_message(key, training, monkeypatch):
    server = WandbServer(status=401)
    monkeypatch.setenv("WANDB_BASE_URL", server.url)
    outcome, summary, seconds = training()
    server.stop()
    is_refused(outcome, summary, "user is not logged in")
    assert seconds < 10


@pytest.mark.parametrize(
    ("name", "value"), [("WANDB_MODE", "sometimes"), ("WANDB_INIT_TIMEOUT", "soon"), ("WANDB_BASE_URL", "nowhere")]
)
def test_invalid_wandb_settings_fail_the_run_with_a_message(key, training, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    outcome, summary, _ = training()
    assert outcome.code == 1
    assert outcome.error.startswith("logger=wandb cannot be used with wandb's settings"), outcome.err
    assert name.removeprefix("WANDB_").lower() in outcome.error
    assert summary["status"] == "failed"


# The server disappears


def test_a_server_that_disappears_loses_no_metrics_and_respects_the_timeout(
    server, online, tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv("WANDB_FINISH_TIMEOUT", "1.5")
    trackers = trackers_of(online, tmp_path / "run")
    log(trackers, 32)
    server.stop()
    log(trackers, 64, 96)
    began = time.monotonic()
    trackers.close()
    assert time.monotonic() - began < 10
    [said] = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert "could not be uploaded within 1.5 s (WANDB_FINISH_TIMEOUT)" in said
    assert said.endswith(f"wandb sync --include-online {tmp_path / 'run' / 'wandb'}")


def test_training_continues_when_wandbs_process_is_killed_and_reports_it(
    machine, recurrl_train, tiny, tmp_path, monkeypatch
):
    learn, killed = Algorithm.update, []

    def killing(*arguments, **options):
        for process in [] if killed else processes_of_wandb():
            os.kill(process, signal.SIGKILL)
            killed.append(process)
        return learn(*arguments, **options)

    monkeypatch.setattr(Algorithm, "update", killing)
    ours = [*tiny, "logger=wandb", "logger.mode=offline"]
    outcome = recurrl_train(*ours, "total_frames=128", "hydra.run.dir=run", cwd=tmp_path)
    assert killed
    assert outcome.code == 0, outcome.err
    assert "wandb's service process has ended" in outcome.out
    assert "Traceback" not in outcome.err
    with (tmp_path / "run" / "metrics.csv").open(encoding="utf-8", newline="") as file:
        assert [row["frames"] for row in csv.DictReader(file)] == ["32", "64", "96", "128"]
    # The next run in this process is recorded.
    outcome = recurrl_train(*ours, "hydra.run.dir=next", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    assert "wandb's service process has ended" not in outcome.out
    assert len(list((tmp_path / "next").glob("wandb/offline-run-*/*.wandb"))) == 1


# wandb cannot write


@pytest.mark.slow
@pytest.mark.skipif(not with_a_disk_of_its_own("/dev/shm", "1m"), reason="a disk of its own cannot be had here")
def test_training_continues_when_wandbs_disk_is_full_and_the_next_run_is_recorded(machine, tiny, tmp_path):
    folder = tmp_path / "0" / "wandb"
    folder.mkdir(parents=True)
    train = [*with_a_disk_of_its_own(str(folder), "20k"), str(Path(sys.executable).parent / "recurrl-train")]
    sweep = ["--multirun", "seed=0,1", "hydra.sweep.dir=.", "hydra.sweep.subdir=${hydra.job.num}"]
    ours = [*tiny, "logger=wandb", "logger.mode=offline", "total_frames=3200"]
    outcome = subprocess.run([*train, *sweep, *ours], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert outcome.returncode == 0, outcome.stderr
    assert re.findall(r"wandb could not write all of wandb run \w+: (.*?)\. All metrics are in", outcome.stdout) == [
        "No space left on device"
    ]
    for job in ("0", "1"):
        with (tmp_path / job / "metrics.csv").open(encoding="utf-8", newline="") as file:
            assert [row["frames"] for row in csv.DictReader(file)][-1] == "3200"
        assert json.loads((tmp_path / job / "summary.json").read_text(encoding="utf-8"))["status"] == "completed"
    [recorded] = (tmp_path / "1").glob("wandb/offline-run-*/*.wandb")
    assert recorded.stat().st_size > 50_000
