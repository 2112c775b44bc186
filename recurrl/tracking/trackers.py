"""The interface of a logger, and several of them as one."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from recurrl.config import LoggerConfig
from recurrl.config.plugins import factory
from recurrl.errors import ConfigError

FRAMES = "frames"
"""The x-axis of all metrics: environment steps summed over environments."""

ALWAYS_ON = "csv"
"""The destination that every run uses."""

FindCheckpoint = Callable[[], tuple[Path, Mapping[str, Any]]]
"""Finds the best checkpoint, which reads all checkpoints of the run: its directory, and metadata."""


class Resumed(NamedTuple):
    """The tracking state that a run resumes from.

    Attributes:
        frames: frames seen so far.
        ids: external run ids by destination.
    """

    frames: int
    ids: Mapping[str, str]


class Tracker:
    """A destination of metrics.

    Training waits for its calls. An exception ends the run with its traceback; the iteration is then in
    ``metrics.csv``, which is written first, and ``resume=`` continues from the last checkpoint.

    Attributes:
        id: by which the destination identifies the run; None if it has none.
    """

    id: str | None = None

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Records the metrics of one iteration.

        Args:
            frames: environment steps so far, including this iteration.
            metrics: values by name, such as ``train/return_mean``. NaN means no value yet.
        """
        raise NotImplementedError

    def log_checkpoint(self, find: FindCheckpoint) -> None:
        """Called at the end of a run: may keep its best checkpoint. A failure must not end the run."""

    def close(self, exit_code: int = 0) -> None:
        """Flushes and releases files, threads and connections.

        Args:
            exit_code: 0 for a run that succeeded, nonzero for one that failed.
        """


class Trackers(Tracker):
    """Sends the same metrics to several destinations.

    Attributes:
        ids: external run ids by destination, for checkpoints.
    """

    def __init__(self, trackers: Iterable[Tracker], ids: Mapping[str, str] = MappingProxyType({})) -> None:
        self.trackers = tuple(trackers)
        self.ids = dict(ids)

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Records the metrics of one iteration in each destination.

        Raises:
            ValueError: a metric is named ``frames``, like the axis.
        """
        if FRAMES in metrics:
            raise ValueError(
                f"A metric cannot be named {FRAMES!r}, which is the axis of all metrics. Rename the metric."
            )
        for tracker in self.trackers:
            tracker.log(frames, metrics)

    def log_checkpoint(self, find: FindCheckpoint) -> None:
        """Offers the best checkpoint to each destination."""
        for tracker in self.trackers:
            tracker.log_checkpoint(find)

    def close(self, exit_code: int = 0) -> None:
        """Closes all destinations; if one fails, closes the others before raising."""
        with ExitStack() as stack:
            for tracker in reversed(self.trackers):
                stack.callback(tracker.close, exit_code)


def make_trackers(
    logger: LoggerConfig, run_dir: Path, settings: Mapping[str, Any], resumed: Resumed | None = None
) -> Trackers:
    """Opens a run's destinations: ``metrics.csv``, and the configured ones.

    Args:
        logger: the options of the configured ones.
        run_dir: the run's directory, which must exist.
        settings: the full configuration as nested dictionaries, for destinations that store it.
        resumed: state to resume from; None for a new run.

    Raises:
        ConfigError: ``metrics.csv`` is malformed, or a destination is not available. Destinations already opened are
            closed.
    """
    ids = {} if resumed is None else dict(resumed.ids)
    trackers: list[Tracker] = []
    with ExitStack() as opened:
        for name in dict.fromkeys([ALWAYS_ON, *logger.names]):
            tracker = factory("logger", name)(replace(logger, name=name), run_dir, settings, resumed)
            if not isinstance(tracker, Tracker):
                kind = type(tracker).__name__
                raise ConfigError(f"logger={name} must be a recurrl.tracking.Tracker (got {kind}). Derive from it.")
            opened.callback(tracker.close, 1)
            trackers.append(tracker)
            if tracker.id is not None:
                ids[name] = tracker.id
        opened.pop_all()
    return Trackers(trackers, ids)
