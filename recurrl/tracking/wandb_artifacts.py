"""Files of a run as artifacts of its wandb run."""

import logging
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb
from wandb.sdk.lib.service.service_connection import WandbApiFailedError

CHECKPOINT = "checkpoint"
FAILURES = (OSError, ValueError, wandb.Error, WandbApiFailedError)
"""Raised where an artifact cannot be recorded or uploaded. The last has no public name."""

logger = logging.getLogger(__name__)


def log_artifact(run: wandb.Run, kind: str, folder: Path, metadata: Mapping[str, Any]) -> None:
    """Makes a folder the newest version of the run's artifact of a kind.

    Online, waits for its upload, as long as a finishing run waits for its last metrics. Offline, copies the folder
    to the run's files, from where ``wandb sync`` uploads it.

    Raises:
        OSError: the folder cannot be read or copied.
        ValueError: the server refused the artifact.
        wandb.Error: the upload took too long.
    """
    if run.disabled:
        return
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", f"{kind}-{run.id}")
    artifact = wandb.Artifact(name, type=kind, metadata=dict(metadata))
    source = _copied(folder, Path(run.dir).resolve().parent / "artifacts" / kind) if run.offline else folder
    artifact.add_dir(str(source), skip_cache=True, policy="immutable")
    logged = run.log_artifact(artifact)
    if not run.offline:
        logged.wait(timeout=round(run.settings.finish_timeout))
    logger.info("wandb artifact %s: %s", name, folder)


def _copied(folder: Path, to: Path) -> Path:
    """Copies a folder's files whole or not at all, so that a full disk still has space for the last metrics."""
    try:
        for file in folder.rglob("*"):
            if file.is_file():
                target = to / file.relative_to(folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)
    except OSError:
        shutil.rmtree(to, ignore_errors=True)
        raise
    return to
