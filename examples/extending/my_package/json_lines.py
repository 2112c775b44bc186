"""A logger: each iteration's metrics as a line of JSON in the run directory."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recurrl.config import LoggerConfig
from recurrl.config.options import option
from recurrl.tracking import Resumed, Tracker


@dataclass
class JsonLinesConfig(LoggerConfig):
    """Options of the logger."""

    only: list[str] = option("beginnings of the metrics to log, such as [train/,eval/]; []: all", default=[])


class JsonLines(Tracker):
    """Appends to ``metrics.jsonl``."""

    def __init__(self, options: JsonLinesConfig, run_dir: Path, settings: Mapping[str, Any], resumed: Resumed | None):
        self._only = tuple(options.only)
        self._file = (run_dir / "metrics.jsonl").open("a", encoding="utf-8", buffering=1)

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Writes one line; metrics without a value yet are null."""
        logged = {name: value for name, value in metrics.items() if not self._only or name.startswith(self._only)}
        values = {name: value if math.isfinite(value) else None for name, value in logged.items()}
        self._file.write(json.dumps({"frames": frames, **values}) + "\n")

    def close(self, failed: bool = False) -> None:
        """Closes the file."""
        self._file.close()
