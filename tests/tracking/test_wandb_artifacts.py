"""The best checkpoint as an artifact at the end of a run, and other files after it."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from disks import with_a_disk_of_its_own
from run_files import summary
from wandb_files import history, only, records
from wandb_server import synced

from recurrl import checkpoint

OFFLINE, ARTIFACTS = "logger.mode=offline", "logger.artifacts=true"


@pytest.fixture
def upload(machine, recurrl_upload, tmp_path):
    return lambda *arguments: recurrl_upload(*arguments, cwd=tmp_path)


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_offline_leaves_its_best_checkpoint_for_wandb_sync(trained, tmp_path):
    trained(OFFLINE, ARTIFACTS, "checkpoint.every_frames=32", "evaluation.every_frames=32").succeeded()
    best, described = checkpoint.best(tmp_path / "run")
    expected = contents(best)
    # Even if the run's directory changes afterwards.
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    server = synced(tmp_path / "run")
    [run_id] = server.history
    [(name, artifact)] = server.artifacts.items()
    sent = (name, artifact.request["artifactTypeName"], artifact.request["runName"])
    assert sent == (f"checkpoint-{run_id}", "checkpoint", run_id)
    assert artifact.files == expected
    assert artifact.metadata == described
    assert {"frames", "eval/return_mean", "version", "sha256"} <= described.keys()


def test_a_run_online_uploads_its_best_checkpoint(server, trained, tmp_path):
    outcome = trained(ARTIFACTS).succeeded()
    assert "[ERROR]" not in outcome.out
    [artifact] = server.artifacts.values()
    assert artifact.files == contents(checkpoint.best(tmp_path / "run")[0])
    assert list(server.completed.values()) == [[0]]


def is_completed_with_an_error(outcome, run_dir, reason):
    assert outcome.code == 0, outcome.err
    assert summary(run_dir)["status"] == "completed"
    line, *_ = [line for line in outcome.out.splitlines() if "[ERROR]" in line]
    assert "The best checkpoint is not an artifact of wandb run" in line
    assert reason in line
    assert line.endswith(f"recurrl-upload {run_dir}")


def test_a_rejected_artifact_is_an_error_in_the_log(server, trained, tmp_path):
    server.rejection = "storage quota exceeded"
    is_completed_with_an_error(trained(ARTIFACTS), tmp_path / "run", "storage quota exceeded")
    [rows] = server.history.values()
    assert [row["frames"] for row in rows] == [32, 64]


@pytest.mark.slow
@pytest.mark.skipif(not with_a_disk_of_its_own("/dev/shm", "1m"), reason="a disk of its own cannot be had here")
def test_a_full_disk_is_an_error_in_the_log_and_loses_no_metrics(machine, tiny, tmp_path):
    folder, kept = tmp_path / "run" / "wandb", tmp_path / "kept"
    folder.mkdir(parents=True)
    kept.mkdir()
    train = [str(Path(sys.executable).parent / "recurrl-train"), *tiny, "logger=wandb", OFFLINE, ARTIFACTS]
    train = [each.replace("hidden_size=8", "hidden_size=128") for each in train]  # the checkpoint is too large
    command = f"{shlex.join([*train, 'hydra.run.dir=run'])} && cp -r run/wandb kept/"
    disk = with_a_disk_of_its_own(str(folder), "100k")
    done = subprocess.run([*disk, "sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    outcome = SimpleNamespace(code=done.returncode, out=done.stdout, err=done.stderr)
    is_completed_with_an_error(outcome, tmp_path / "run", "No space left on device")
    found = records(kept)
    assert [step["frames"] for step in history(found)] == [32, 64]
    assert [ended.exit_code for ended in only(found, "exit")] == [0]


def damage(run_dir):
    for file in run_dir.glob("checkpoints/*/manifest.json"):
        file.write_text("{}")


def kill_service(_):
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    [service] = [int(each) for each in children if "wandb-core" in Path(f"/proc/{each}/cmdline").read_text()]
    os.kill(service, signal.SIGKILL)


@pytest.mark.parametrize(("happens", "reason"), [(damage, "no evaluated checkpoint"), (kill_service, "")])
def test_what_happens_at_the_end_is_an_error_in_the_log(trained, tmp_path, monkeypatch, happens, reason):
    best = checkpoint.best
    monkeypatch.setattr(checkpoint, "best", lambda run_dir: happens(run_dir) or best(run_dir))
    outcome = trained(OFFLINE, ARTIFACTS)
    is_completed_with_an_error(outcome, tmp_path / "run", reason)
    assert "Traceback" not in outcome.err
    assert ("is incomplete" in outcome.out) == (happens is kill_service)


def test_exported_files_and_videos_are_added_to_the_run_later(trained, upload, tmp_path):
    trained(OFFLINE).succeeded()
    for folder, name in (("export", "policy.onnx"), ("video", "replay.mp4")):
        (tmp_path / "run" / folder).mkdir()
        (tmp_path / "run" / folder / name).write_bytes(name.encode())
    done = upload("run").succeeded()
    assert "checkpoint, export, video: " in done.out
    server = synced(tmp_path / "run")
    [(run_id, rows)] = server.history.items()
    assert [row["frames"] for row in rows] == [32, 64]
    assert set(server.artifacts) == {f"{kind}-{run_id}" for kind in ("checkpoint", "export", "video")}
    assert server.artifacts[f"export-{run_id}"].files == {"policy.onnx": b"policy.onnx"}
    assert server.artifacts[f"video-{run_id}"].files == {"replay.mp4": b"replay.mp4"}


def test_a_rejected_upload_fails_the_command_and_can_be_repeated(server, trained, upload):
    trained().succeeded()
    server.rejection = "storage quota exceeded"
    done = upload("run").failed()
    assert "storage quota exceeded" in done.error
    server.rejection = ""
    upload("run").succeeded()
    [(run_id, rows)] = server.history.items()
    assert set(server.artifacts) == {f"checkpoint-{run_id}"}
    assert [row["frames"] for row in rows] == [32, 64]


def test_a_run_without_a_wandb_run_is_an_error(upload, finished_run):
    done = upload(str(finished_run)).failed()
    assert "has no wandb run: it was trained with logger=csv" in done.error
