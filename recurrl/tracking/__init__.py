"""Where the metrics of a run go: one module a destination, each with ``make(config, run_dir, settings)``.

A module's name is the name of its yaml in the group ``logger``; it is imported when a run asks for it, and not before.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from recurrl.config import TrainConfig

FRAMES = "frames"
"""The axis of all metrics: environment steps summed over environments."""

ALWAYS = "csv"
"""The destination every run has."""


class Resumed(NamedTuple):
    """What a run goes on from, as far as its metrics are concerned.

    Attributes:
        frames: how many had been seen.
        ids: those of the runs that were recorded elsewhere, by the name of the destination.
    """

    frames: int
    ids: Mapping[str, str]


class Tracker(Protocol):
    """A destination of metrics."""

    @property
    def id(self) -> str | None:
        """Under which the destination finds the run again; None if it has no such thing."""

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
    """Several destinations that take the same metrics.

    Attributes:
        ids: under which destinations find the run again, by their names; for checkpoints.
    """

    def __init__(self, trackers: Iterable[Tracker], ids: Mapping[str, str] = MappingProxyType({})) -> None:
        self.trackers = tuple(trackers)
        self.ids = dict(ids)

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


def make_trackers(
    config: TrainConfig, run_dir: Path, settings: Mapping[str, Any], resumed: Resumed | None = None
) -> Trackers:
    """The destinations a run asked for: ``metrics.csv``, and the one that ``config.logger`` names if it is another.

    Args:
        config: the run; ``logger`` and ``resume`` are used here.
        run_dir: the run's directory, which exists.
        settings: the run's whole configuration as plain nested dictionaries, for destinations that store it.
        resumed: what the run goes on from; None for one that begins.

    Raises:
        ConfigError: the directory holds the metrics of another run, or a destination is not available here. What was
            opened before is closed again.
    """
    ids = {} if resumed is None else dict(resumed.ids)
    with ExitStack() as opened:
        trackers: list[Tracker] = []
        for name in dict.fromkeys((ALWAYS, config.logger.name)):
            tracker: Tracker = importlib.import_module(f"{__name__}.{name}").make(config, run_dir, settings, resumed)
            opened.callback(tracker.close, 1)
            trackers.append(tracker)
            if tracker.id is not None:
                ids[name] = tracker.id
        opened.pop_all()
    return Trackers(trackers, ids)
