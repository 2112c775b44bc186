"""Continues a run from its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recurrl.checkpoint import Checkpoint, Stateful
from recurrl.runtime.report import Report
from recurrl.runtime.run_directory import CHECKPOINTS


def resume(
    start: Checkpoint, run_dir: Path, parts: Mapping[str, Stateful], settings: Mapping[str, Any], report: Report
) -> None:
    """Loads a checkpoint, and the result of the evaluation after it.

    Raises:
        ConfigError: the checkpoint does not fit the configuration.
    """
    start.load(parts, settings)
    if start.path_in(run_dir, start.frames) is not None:
        report.checkpoint = f"{CHECKPOINTS}/{start.path.name}"
    if start.evaluation is not None:
        report.take(start.metrics | start.evaluation)
