"""The best checkpoint as an artifact at the end of a run, and other files after it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import wandb
from disks import with_a_disk_of_its_own
from wandb_files import history, only, records
from wandb_server import WandbServer, sync

from recurrl import checkpoint

OFFLINE = ("logger=wandb", "logger.mode=offline", "hydra.run.dir=run")


@pytest.fixture
def server(machine: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    """A recording server with a login."""
    server = WandbServer()
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", server.url)
    yield server
    wandb.teardown()
    server.stop()


@pytest.fixture
def trained(machine: Path, recurrl_train: Callable[..., Any], tiny: list[str], tmp_path: Path) -> Callable[..., Any]:
    """Trains in the directory ``run``."""
    return lambda *overrides: recurrl_train(*tiny, *overrides, cwd=tmp_path)


@pytest.fixture
def upload(machine: Path, recurrl_upload: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    return lambda *arguments: recurrl_upload(*arguments, cwd=tmp_path)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_without_the_option_a_run_has_no_artifact(trained, tmp_path):
    assert trained(*OFFLINE).code == 0
    assert only(records(tmp_path / "run"), "artifact") == []


def test_a_run_offline_leaves_its_best_checkpoint_for_wandb_sync(trained, tmp_path):
    outcome = trained(*OFFLINE, "logger.artifacts=true", "checkpoint.every_frames=32", "evaluation.every_frames=32")
    assert outcome.code == 0, outcome.err
    best, described = checkpoint.best(tmp_path / "run")
    expected = contents(best)
    # What is uploaded later is what the run left, whatever becomes of its directory.
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    server = WandbServer()
    sync(tmp_path / "run", server)
    server.stop()
    [run_id] = server.history
    [(name, artifact)] = server.artifacts.items()
    assert (name, artifact.told["artifactTypeName"], artifact.told["runName"]) == (
        f"checkpoint-{run_id}",
        "checkpoint",
        run_id,
    )
    assert artifact.files == expected
    assert artifact.metadata == described
    assert {"frames", "eval/return_mean", "version", "sha256"} <= described.keys()


def test_a_run_online_uploads_its_best_checkpoint(server, trained, tmp_path):
    outcome = trained("logger=wandb", "logger.artifacts=true", "hydra.run.dir=run")
    assert outcome.code == 0, outcome.err
    assert "[ERROR]" not in outcome.out
    [artifact] = server.artifacts.values()
    assert artifact.files == contents(checkpoint.best(tmp_path / "run")[0])
    assert list(server.completed.values()) == [[0]]


def is_completed_with_an_error(outcome: Any, run_dir: Path, reason: str) -> None:
    assert outcome.code == 0, outcome.err
    assert json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))["status"] == "completed"
    [said] = [line for line in outcome.out.splitlines() if "[ERROR]" in line]
    assert "The best checkpoint is not an artifact of wandb run" in said
    assert reason in said
    assert said.endswith(f"recurrl-upload {run_dir} checkpoint")


def test_a_refused_artifact_is_an_error_in_the_log(server, trained, tmp_path):
    server.refusal = "storage quota exceeded"
    outcome = trained("logger=wandb", "logger.artifacts=true", "hydra.run.dir=run")
    is_completed_with_an_error(outcome, tmp_path / "run", "storage quota exceeded")
    [rows] = server.history.values()
    assert [row["frames"] for row in rows] == [32, 64]


@pytest.mark.skipif(not with_a_disk_of_its_own("/dev/shm", "1m"), reason="a disk of its own cannot be had here")
def test_a_full_disk_is_an_error_in_the_log_and_loses_no_metrics(machine, tiny, tmp_path):
    folder, kept = tmp_path / "run" / "wandb", tmp_path / "kept"
    folder.mkdir(parents=True)
    kept.mkdir()
    train = shlex.join([str(Path(sys.executable).parent / "recurrl-train"), *tiny, *OFFLINE, "logger.artifacts=true"])
    command = f"{train} && cp -r run/wandb kept/"
    outcome = subprocess.run(
        [*with_a_disk_of_its_own(str(folder), "100k"), "sh", "-c", command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    told = SimpleNamespace(code=outcome.returncode, out=outcome.stdout, err=outcome.stderr)
    is_completed_with_an_error(told, tmp_path / "run", "No space left on device")
    found = records(kept)
    assert [step["frames"] for step in history(found)] == [32, 64]
    assert [ended.exit_code for ended in only(found, "exit")] == [0]


def test_damaged_checkpoints_are_an_error_in_the_log(trained, tmp_path, monkeypatch):
    best = checkpoint.best

    def damaged(run_dir: Path) -> Any:
        for file in run_dir.glob("checkpoints/*/manifest.json"):
            file.write_text("{}")
        return best(run_dir)

    monkeypatch.setattr(checkpoint, "best", damaged)
    outcome = trained(*OFFLINE, "logger.artifacts=true")
    is_completed_with_an_error(outcome, tmp_path / "run", "holds no evaluated checkpoint")


def test_a_service_killed_at_the_end_is_an_error_in_the_log(trained, tmp_path, monkeypatch):
    best = checkpoint.best

    def killing(run_dir: Path) -> Any:
        children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
        [service] = [int(each) for each in children if "wandb-core" in Path(f"/proc/{each}/cmdline").read_text()]
        os.kill(service, signal.SIGKILL)
        return best(run_dir)

    monkeypatch.setattr(checkpoint, "best", killing)
    outcome = trained(*OFFLINE, "logger.artifacts=true")
    assert outcome.code == 0, outcome.err
    assert "wandb's service process has ended" in outcome.out
    assert "Traceback" not in outcome.err


def test_exported_files_and_videos_join_the_run_later(trained, upload, tmp_path):
    assert trained(*OFFLINE).code == 0
    for folder, name in (("export", "policy.onnx"), ("video", "replay.mp4")):
        (tmp_path / "run" / folder).mkdir()
        (tmp_path / "run" / folder / name).write_bytes(name.encode())
    done = upload("run")
    assert done.code == 0, done.err
    assert "checkpoint, export, video: " in done.out
    server = WandbServer()
    sync(tmp_path / "run", server)
    server.stop()
    [(run_id, rows)] = server.history.items()
    assert [row["frames"] for row in rows] == [32, 64]
    assert set(server.artifacts) == {f"{kind}-{run_id}" for kind in ("checkpoint", "export", "video")}
    assert server.artifacts[f"export-{run_id}"].files == {"policy.onnx": b"policy.onnx"}
    assert server.artifacts[f"video-{run_id}"].files == {"replay.mp4": b"replay.mp4"}


def test_a_refused_upload_fails_the_command(server, trained, upload, tmp_path):
    assert trained("logger=wandb", "hydra.run.dir=run").code == 0
    server.refusal = "storage quota exceeded"
    done = upload("run")
    assert done.code == 1
    assert "storage quota exceeded" in done.error
    server.refusal = ""
    assert upload("run").code == 0
    [(run_id, rows)] = server.history.items()
    assert set(server.artifacts) == {f"checkpoint-{run_id}"}
    assert [row["frames"] for row in rows] == [32, 64]


def test_a_run_without_a_wandb_run_is_refused(upload, finished_run):
    done = upload(str(finished_run))
    assert done.code == 1
    assert "has no wandb run: it was trained with logger=csv" in done.error


def test_disabled_wandb_takes_no_files(trained, upload, monkeypatch):
    assert trained("logger=wandb", "hydra.run.dir=run").code == 0
    monkeypatch.setenv("WANDB_MODE", "disabled")
    done = upload("run")
    assert done.code == 1
    assert "wandb is disabled" in done.error
