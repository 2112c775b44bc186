"""Where the metrics of a run go: one module a destination, each with ``make(config, run_dir, settings)``.

A module's name is the name of its yaml in the group ``logger``; it is imported when a run asks for it, and not before.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from recurrl.config import TrainConfig

FRAMES = "frames"
"""The axis of all metrics: environment steps summed over environments."""

ALWAYS = "csv"
"""The destination every run has."""


class Tracker(Protocol):
    """A destination of metrics."""

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Records the metrics of one iteration.

        Args:
            frames: environment steps so far, the iteration's own included.
            metrics: values by name, such as ``train/return_mean``. NaN means that there is no value yet.
        """

    def close(self, exit_code: int = 0) -> None:
        """Writes what is left and lets go of files, threads and connections.

        Args:
            exit_code: 0 for a run that ended as it should, another number for one that failed.
        """


class Trackers:
    """Several destinations that take the same metrics."""

    def __init__(self, trackers: Iterable[Tracker]) -> None:
        self.trackers = tuple(trackers)

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Records the metrics of one iteration in each destination.

        Raises:
            ValueError: a metric is named ``frames``, which is the axis.
        """
        if FRAMES in metrics:
            raise ValueError(
                f"A metric cannot be named {FRAMES!r}: that is the axis of all metrics. Rename the metric."
            )
        for tracker in self.trackers:
            tracker.log(frames, metrics)

    def close(self, exit_code: int = 0) -> None:
        """Closes each destination, also when another fails to close; the failure is raised after that."""
        with ExitStack() as stack:
            for tracker in reversed(self.trackers):
                stack.callback(tracker.close, exit_code)


def make_trackers(config: TrainConfig, run_dir: Path, settings: Mapping[str, Any]) -> Trackers:
    """The destinations a run asked for: ``metrics.csv``, and the one that ``config.logger`` names if it is another.

    Args:
        config: the run; ``logger`` and ``resume`` are used here.
        run_dir: the run's directory, which exists.
        settings: the run's whole configuration as plain nested dictionaries, for destinations that store it.

    Raises:
        ConfigError: the directory holds the metrics of another run, or a destination is not available here. What was
            opened before is closed again.
    """
    with ExitStack() as opened:
        trackers: list[Tracker] = []
        for name in dict.fromkeys((ALWAYS, config.logger.name)):
            tracker: Tracker = importlib.import_module(f"{__name__}.{name}").make(config, run_dir, settings)
            opened.callback(tracker.close, 1)
            trackers.append(tracker)
        opened.pop_all()
    return Trackers(trackers)
