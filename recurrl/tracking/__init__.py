"""Destinations of a run's metrics: the interface of a logger, and the loggers of a run.

Each choice of the group ``logger`` is a module with ``make(options, run_dir, settings, resumed)``, which returns a
:class:`Tracker`, see :func:`make_trackers`.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from recurrl.config import LoggerConfig
from recurrl.config.plugins import factory
from recurrl.errors import require

Settings = Mapping[str, Any]
"""The whole configuration of a run, as plain values in nested mappings."""
FRAMES = "frames"
"""The x-axis of all metrics: environment steps summed over environments."""


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
        id: the run's id at the destination, which checkpoints store as text; None if it has none.
    """

    id: str | None = None

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Records the metrics of one iteration.

        Args:
            frames: environment steps so far, including this iteration.
            metrics: values by name, such as ``train/return_mean``. NaN means no value yet.
        """
        raise NotImplementedError

    def close(self, failed: bool = False) -> None:
        """Flushes and releases files, threads and connections.

        Args:
            failed: True if the run failed, which a web service may show.
        """


def make_trackers(
    logger: LoggerConfig, run_dir: Path, settings: Settings, resumed: Resumed | None = None
) -> dict[str, Tracker]:
    """Opens a run's destinations, by name: ``metrics.csv`` first, then the configured ones.

    Args:
        logger: the options of the configured destinations.
        run_dir: the run's directory, which must exist.
        settings: the whole configuration, for destinations that store it.
        resumed: state to resume from; None for a new run.

    Raises:
        ConfigError: ``metrics.csv`` is malformed, or a destination is not available. Destinations already opened are
            closed.
    """
    trackers: dict[str, Tracker] = {}
    with ExitStack() as opened:
        for name in dict.fromkeys(["csv", *logger.names]):
            tracker = factory("logger", name)(replace(logger, name=name), run_dir, settings, resumed)
            require(
                isinstance(tracker, Tracker),
                f"logger={name} must be a recurrl.tracking.Tracker (got {type(tracker).__name__}). Derive from it.",
            )
            opened.callback(tracker.close, failed=True)
            trackers[name] = tracker
        opened.pop_all()
    return trackers
