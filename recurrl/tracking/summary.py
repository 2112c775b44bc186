"""``summary.json``: the results of a run, for scripts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recurrl.runtime.atomic import atomic_write
from recurrl.runtime.run_directory import SUMMARY


def write_summary(run_dir: Path, summary: Mapping[str, Any]) -> Path:
    """Writes the summary of a run and returns its path, replacing an earlier summary atomically.

    NaN and infinity, which JSON lacks, become null.

    Raises:
        TypeError: a value cannot be represented in JSON, such as a tensor. An earlier summary stays.
    """
    path = run_dir / SUMMARY
    text = json.dumps(_finite(summary), indent=2, ensure_ascii=False, allow_nan=False)
    with atomic_write(path) as file:
        file.write(text + "\n")
    return path


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
