"""Metrics as TensorBoard events in the run directory's ``tensorboard/``."""

from collections.abc import Mapping
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from recurrl.config import LoggerConfig
from recurrl.tracking import Resumed, Settings, Tracker
from recurrl.tracking.csv import log_history


class TensorboardTracker(Tracker):
    """Writes each metric as a scalar over frames, flushed after each iteration.

    Purges events that an interrupted run left in the directory at or after the first frame count logged here, so that
    TensorBoard shows each frame count once.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writer: SummaryWriter | None = None

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Writes one event per metric."""
        if self._writer is None:
            self._writer = SummaryWriter(str(self._directory), purge_step=frames)
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, global_step=frames)
        self._writer.flush()

    def close(self, failed: bool = False) -> None:
        """Closes the events file."""
        if self._writer is not None:
            self._writer.close()


def make(
    options: LoggerConfig, run_dir: Path, settings: Settings, resumed: Resumed | None = None
) -> TensorboardTracker:
    """Creates the tracker of a run in ``run_dir``, with the rows before a resume if it has no events yet."""
    directory = run_dir / "tensorboard"
    tracker = TensorboardTracker(directory)
    if not directory.exists():
        log_history(tracker, run_dir, resumed)
    return tracker
