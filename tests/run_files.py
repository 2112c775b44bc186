"""What tests read from the directory of a run."""

import csv
import json
from pathlib import Path

import yaml

SUMMARY_KEYS = {
    "status",
    "error",
    "frames",
    "wall_time_s",
    "train_time_s",
    "frames_per_s",
    "startup_time_s",
    "pretrain_log_likelihood",
    "train_return_mean",
    "eval_return_mean",
    "eval_return_std",
    "eval_episodes",
    "eval_return_mean_zeroed_state",
    "eval_return_mean_shuffled_state",
    "eval_return_mean_random",
    "eval_return_std_random",
    "best_eval_return_mean",
    "seed",
    "device",
    "cell",
    "backend",
    "checkpoint",
    "warnings",
}


def summary(run: Path) -> dict[str, object]:
    return json.loads((run / "summary.json").read_text(encoding="utf-8"))


def settings(run: Path) -> dict[str, object]:
    return yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))


def metrics(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def learning_rates(run: Path) -> list[float]:
    return [float(row["optim/lr"]) for row in metrics(run)]


def without_times(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """The rows as written, but for how long things took."""
    return [{name: value for name, value in row.items() if not name.startswith("time/")} for row in rows]
