"""What tests read from the directory of a run."""

import csv
import json

import yaml

SUMMARY_KEYS = {
    *("status", "error", "frames", "wall_time_s", "train_time_s", "frames_per_s", "startup_time_s"),
    *("pretrain_log_likelihood", "train_return_mean", "eval_return_mean", "eval_return_std", "eval_episodes"),
    *("eval_return_mean_zeroed_state", "eval_return_mean_shuffled_state", "best_eval_return_mean"),
    *(
        "eval_return_mean_random",
        "eval_return_std_random",
        "seed",
        "device",
        "cell",
        "backend",
        "checkpoint",
        "warnings",
    ),
}


def summary(run):
    return json.loads((run / "summary.json").read_text(encoding="utf-8"))


def settings(run):
    return yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))


def metrics(run):
    with (run / "metrics.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def learning_rates(run):
    return [float(row["optim/lr"]) for row in metrics(run)]


def without_times(rows):
    """The rows as written, but for how long things took."""
    return [{name: value for name, value in row.items() if not name.startswith("time/")} for row in rows]
