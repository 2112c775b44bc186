"""What tests read from the directory of a run."""

import csv
import json
from collections.abc import Mapping

import torch
import yaml

from recurrl.tracking.csv import CsvTracker


def summary(run):
    return json.loads((run / "summary.json").read_text(encoding="utf-8"))


def ended(run, *names):
    """How a run ended: the status in its summary, and what else is named."""
    return tuple(summary(run)[name] for name in ("status", *names))


def settings(run):
    return yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))


def metrics(run):
    with (run / "metrics.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write_rows(path, rows):
    """Writes metrics as a run does: of each row, the frames and what was logged."""
    tracker = CsvTracker(path)
    for frames, logged in rows:
        tracker.log(frames, logged)


def contents(folder):
    """The bytes of each file in a folder, except logs."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".log")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def column(run, name):
    """A metric in each iteration."""
    return [float(row[name]) for row in metrics(run)]


def without_times(rows):
    """The rows as written, without times."""
    return [{name: value for name, value in row.items() if not name.startswith("time/")} for row in rows]


def whole_and_resumed(train, folder, frames, *overrides):
    """Trains, resumes from the checkpoint at ``frames``, and compares the metrics; returns both commands' outcomes."""
    whole = train(*overrides, "hydra.run.dir=whole").succeeded()
    resumed = train(f"resume=whole/checkpoints/frames_{frames:012d}", "hydra.run.dir=resumed").succeeded()
    assert without_times(metrics(folder / "resumed")) == without_times(metrics(folder / "whole"))
    return whole, resumed


def lasting(run):
    """The summary without times."""
    return {name: value for name, value in summary(run).items() if not name.endswith("_s")}


def state_in(path):
    """A file of a checkpoint: its values by their places, tensors as their dtypes, shapes and bytes."""
    return dict(_leaves((), torch.load(path, weights_only=True)))


def _leaves(place, value):
    if isinstance(value, Mapping | list | tuple):
        for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _leaves((*place, key), inner)
    elif isinstance(value, torch.Tensor):
        yield place, (value.dtype, value.shape, value.contiguous().numpy().tobytes())
    else:
        yield place, value
