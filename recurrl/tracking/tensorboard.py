"""Metrics as TensorBoard events in the run directory's ``tensorboard/``."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from recurrl.config import LoggerConfig
from recurrl.tracking.trackers import Resumed

DIRECTORY = "tensorboard"


class TensorboardTracker:
    """Writes each metric as a scalar over frames, flushed after each iteration.

    Purges events that an interrupted run left in the directory at or after the first frame count logged here, so that
    TensorBoard shows each frame count once.
    """

    id = None

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writer: SummaryWriter | None = None
        self._print_exception = threading.excepthook
        threading.excepthook = self._print_unless_raised_here

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Writes one event per metric."""
        if self._writer is None:
            self._writer = SummaryWriter(str(self._directory), purge_step=frames)
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, global_step=frames)
        self._writer.flush()

    def close(self, exit_code: int = 0) -> None:
        """Closes the events file."""
        try:
            if self._writer is not None:
                self._writer.close()
        finally:
            threading.excepthook = self._print_exception

    def _print_unless_raised_here(self, exception: threading.ExceptHookArgs) -> None:
        """Skips what TensorBoard's thread fails in, such as a full disk: the writer raises it again in :meth:`log`."""
        if not type(exception.thread).__module__.startswith("tensorboard."):
            self._print_exception(exception)


def make(
    options: LoggerConfig, run_dir: Path, settings: Mapping[str, Any], resumed: Resumed | None = None
) -> TensorboardTracker:
    """Creates the tracker of a run in ``run_dir``."""
    return TensorboardTracker(run_dir / DIRECTORY)
