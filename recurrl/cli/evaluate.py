"""``recurrl-evaluate``: plays episodes with the policies of runs."""

import argparse
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recurrl.cli.messages import TRUST_HELP, print_result
from recurrl.errors import ConfigError, require
from recurrl.reporting.results import table
from recurrl.returns import STATISTICS, summarized, table_row
from recurrl.runs.launcher import launch_saved
from recurrl.runtime.run_directory import CONFIG_FILE, VIDEOS, run_directory_of

_OVERRIDE = re.compile(r"[+~]*[\w.]+=.*", re.DOTALL)
_MEMORY = {"kept": "", "zeroed": " with its memory zeroed", "shuffled": " with another episode's memory"}


def evaluate_main() -> None:
    """Plays episodes with the policies of runs and prints the returns: their mean, a 95% interval of the mean
    (Student's t over episodes), the interquartile mean, and their standard deviation. Each environment plays one
    episode. With more than 240 episodes, each plays a number that is fixed in advance, so that short episodes are not
    over-represented.
    """
    parser = argparse.ArgumentParser(prog="recurrl-evaluate", description=evaluate_main.__doc__)
    parser.add_argument(
        "run",
        nargs="+",
        metavar="run|env.key=value",
        help="run directories, or checkpoints in them; several are compared. env.key=value changes their environment: "
        "env.kwargs.length=20",
    )
    parser.add_argument("--episodes", type=int, help="episodes per seed (default: the run's evaluation.episodes)")
    parser.add_argument("--seed", type=seeds, metavar="SEED,...", help="of the environments (default: the run's)")
    parser.add_argument("--which", default="best", help="the best checkpoint of a run, or the last (default: best)")
    parser.add_argument("--sampled", action="store_true", help="sample actions instead of taking the most probable")
    parser.add_argument("--device", help="where the policy runs (default: the run's device)")
    memory = "also evaluate with recurrent states zeroed at each step, and with those of another episode"
    parser.add_argument("--memory", action="store_true", help=memory)
    video = (
        "show the first episode of each seed: the environment, what env.mask hides, the value and the recurrent "
        "states; a file named .mp4 or .gif, or a folder for both (default: video in the run)"
    )
    parser.add_argument("--video", nargs="?", const="", metavar="FILE|DIR", help=video)
    parser.add_argument("--json", action="store_true", help="print everything as JSON, with all returns")
    parser.add_argument("--trust-packages", action="store_true", help=TRUST_HELP)
    print_result(parser, _evaluate)


def _evaluate(arguments: argparse.Namespace) -> str:
    overrides = [text for text in arguments.run if _OVERRIDE.fullmatch(text) and not Path(text).exists()]
    runs = [Path(text) for text in arguments.run if text not in overrides]
    trusts, deterministic = arguments.trust_packages, not arguments.sampled
    for run in runs:
        launch_saved(run, trusts)
    if not runs:
        raise ConfigError(f"{overrides[0]} is an override, but no run was given. Pass a run directory as well.")
    from recurrl.runs.open_run import open_run  # imports torch

    files = [] if arguments.video is None else video_files(runs, Path(arguments.video) if arguments.video else None)
    states = list(_MEMORY) if arguments.memory else ["kept"]
    reports: list[dict[str, Any]] = []
    for run in runs:
        opened = open_run(run, arguments.which, arguments.device, trusts, overrides)
        played = opened.evaluate(arguments.episodes, arguments.seed, states, deterministic, files)
        statistics = {state: summarized(each) for state, each in played.items()}
        reports.append({"run": str(run), "overrides": overrides, "deterministic": deterministic, "returns": statistics})
    if arguments.json:
        written = {"video": [str(file) for file in files]} if files else {}
        return json.dumps([each | written for each in reports], indent=2, ensure_ascii=False) + "\n"
    lines = [
        (each["run"] + _MEMORY[state], *table_row(statistics, "episodes"), str(statistics["episodes"]))
        for each in reports
        for state, statistics in each["returns"].items()
    ]
    return table([("run", *STATISTICS, "episodes"), *lines]) + "".join(f"{file}\n" for file in files)


def video_files(runs: Sequence[Path], path: Path | None) -> list[Path]:
    """The files of a video, by default in the folder ``video`` of the run.

    Args:
        runs: the runs to evaluate; there must be one.
        path: a file or a folder.

    Raises:
        ConfigError: there are several runs, the path does not fit, or a package is missing.
    """
    from recurrl.video.writing import files_of

    require(len(runs) == 1, f"--video shows one run (got {len(runs)}). Evaluate them one by one.")
    is_run = path is not None and os.path.lexists(path / CONFIG_FILE)
    require(not is_run, f"--video {path} would write into a run. Name the run before --video, or another folder.")
    return files_of(path or run_directory_of(runs[0]) / VIDEOS)


def seeds(text: str) -> list[int]:
    """The seeds in a text that separates them by commas."""
    return [int(each) for each in text.split(",")]
