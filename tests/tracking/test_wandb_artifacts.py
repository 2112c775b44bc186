"""``recurrl-upload``: the best checkpoint of a run and other files as artifacts of its wandb run."""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from disks import with_a_small_disk
from run_files import contents, summary
from wandb_server import synced

from recurrl import checkpoint

OFFLINE = "logger.mode=offline"


def test_the_best_checkpoint_and_other_files_of_a_run_offline_wait_for_wandb_sync(trained, upload, tmp_path):
    trained(OFFLINE, "checkpoint.every_frames=32", "evaluation.every_frames=32").succeeded()
    run = tmp_path / "run"
    best = checkpoint.Checkpoint(checkpoint.find(run, "best"))
    expected = {"checkpoint": contents(best.path)}
    for folder, name in (("export", "policy.onnx"), ("video", "replay.mp4")):  # made later
        (run / folder).mkdir()
        (run / folder / name).write_bytes(name.encode())
        expected[folder] = {name: name.encode()}
    assert "checkpoint, export, video: " in upload("run").succeeded().out
    # Even if the run's directory changes afterwards.
    shutil.rmtree(run / "checkpoints")
    server = synced(run)
    [(run_id, rows)] = server.history.items()
    assert [row["frames"] for row in rows] == [32, 64]
    sent = {name: artifact.files for name, artifact in server.artifacts.items()}
    assert sent == {f"{kind}-{run_id}": files for kind, files in expected.items()}
    artifact = server.artifacts[f"checkpoint-{run_id}"]
    assert (artifact.request["artifactTypeName"], artifact.request["runName"]) == ("checkpoint", run_id)
    metadata = json.loads(artifact.request["metadata"])
    about = {"frames": best.frames, "version": best.version, "sha256": best.checksums}
    assert {name: metadata.pop(name) for name in about} == about
    assert metadata.pop("eval/return_mean") == best.metrics["eval/return_mean"]
    assert all(name.startswith("eval/") for name in metadata)


@pytest.mark.slow
def test_a_full_disk_is_an_error_and_loses_no_metrics(machine, tiny, tmp_path):
    folder, kept = tmp_path / "run" / "wandb", tmp_path / "kept"
    folder.mkdir(parents=True)
    kept.mkdir()
    commands = Path(sys.executable).parent
    train = [str(commands / "recurrl-train"), *tiny, "logger=wandb", OFFLINE, "hydra.run.dir=run"]
    train = [each.replace("hidden_size=8", "hidden_size=128") for each in train]  # the checkpoint is too large
    command = f"{shlex.join(train)} && ! {commands}/recurrl-upload run && cp -r run/wandb kept/"
    disk = with_a_small_disk(folder, "100k")
    done = subprocess.run([*disk, "sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "No space left on device" in done.stderr
    assert summary(tmp_path / "run")["status"] == "completed"
    for of_upload in sorted((kept / "wandb").glob("offline-run-*"))[1:]:
        shutil.rmtree(of_upload)
    [rows] = synced(kept).history.values()
    assert [row["frames"] for row in rows] == [32, 64]


def test_a_rejected_upload_fails_the_command_and_can_be_repeated(server, trained, upload, tmp_path):
    trained().succeeded()
    server.rejection = "storage quota exceeded"
    done = upload("run").failed()
    assert "storage quota exceeded" in done.error
    server.rejection = ""
    upload("run").succeeded()
    [(run_id, rows)] = server.history.items()
    [(name, artifact)] = server.artifacts.items()
    assert name == f"checkpoint-{run_id}"
    assert artifact.files == contents(checkpoint.find(tmp_path / "run", "best"))
    assert server.completed[run_id] == [0, 0, 0]
    assert [row["frames"] for row in rows] == [32, 64]


def test_a_run_without_a_wandb_run_is_an_error(upload, finished_run):
    done = upload(str(finished_run)).failed()
    assert "has no wandb run: it was trained with logger=csv" in done.error
