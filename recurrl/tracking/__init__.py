"""Destinations of a run's metrics: a module for each choice of the group ``logger``, with ``make``.

``make(options, run_dir, settings, resumed)`` returns a :class:`Tracker`, see :func:`make_trackers`.
"""

from recurrl.tracking.trackers import FRAMES, Resumed, Settings, Tracker, make_trackers

__all__ = ["FRAMES", "Resumed", "Settings", "Tracker", "make_trackers"]
