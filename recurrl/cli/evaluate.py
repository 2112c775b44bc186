"""``recurrl-evaluate``: plays episodes with the policies of runs."""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recurrl.cli.messages import errors_as_messages
from recurrl.cli.overrides import TRUST
from recurrl.cli.results import table
from recurrl.errors import ConfigError

_OVERRIDE = re.compile(r"[+~]*[\w.]+=.*", re.DOTALL)
_STARTS = {"kept": "", "zeroed": "with its memory zeroed: ", "shuffled": "with another episode's: "}
_COLUMNS = ("mean", "95% interval", "interquartile mean", "std", "min", "max", "episodes")


def evaluate_main() -> None:
    """``recurrl-evaluate``: plays episodes with the policies of runs, and prints their returns."""
    arguments = _parser().parse_intermixed_args()
    overrides = [text for text in arguments.run if _OVERRIDE.fullmatch(text) and not Path(text).exists()]
    runs = [Path(text) for text in arguments.run if text not in overrides]
    # With torch, which help and typos do not wait for.
    from recurrl.cli.evaluate_run import evaluate_run, video_files
    from recurrl.returns import summarized

    with errors_as_messages():
        if not runs:
            raise ConfigError(f"{overrides[0]} changes the environment of a run. Give a run directory too.")
        files = [] if arguments.video is None else video_files(runs, Path(arguments.video) if arguments.video else None)
        described = {"overrides": overrides, "deterministic": not arguments.sampled}
        described |= {"video": [str(file) for file in files]} if files else {}
        states = list(_STARTS) if arguments.memory else ["kept"]
        given = (states, arguments.trust_packages, arguments.which, not arguments.sampled, overrides, files)
        reports = []
        for run in runs:
            returns = evaluate_run(run, arguments.episodes, arguments.seed, arguments.device, *given)
            found = {state: summarized(each) for state, each in returns.items()}
            reports.append({"run": str(run), **described, "returns": found})
    sys.stdout.write(_text(reports, arguments.json))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="recurrl-evaluate",
        description="Plays episodes with the policies of runs and prints the returns: their mean, a 95% interval of "
        "the mean (percentiles of a bootstrap over episodes), the interquartile mean, and their standard deviation. "
        "Each environment plays one episode, so that short ones count no more than long ones.",
    )
    parser.add_argument(
        "run",
        nargs="+",
        metavar="run|env.key=value",
        help="run directories, or checkpoints in them; several are compared. env.key=value changes their environment: "
        "env.kwargs.length=20",
    )
    parser.add_argument("--episodes", type=int, help="episodes per seed (default: the run's evaluation.episodes)")
    parser.add_argument(
        "--seed", type=_seeds, metavar="SEED[,...]", help="seeds of the environments (default: the run's)"
    )
    parser.add_argument("--which", default="last", help="the last checkpoint of a run, or the best (default: last)")
    parser.add_argument("--sampled", action="store_true", help="sample actions instead of taking the most probable")
    parser.add_argument("--device", help="where the policy runs (default: the run's device)")
    parser.add_argument(
        "--memory",
        action="store_true",
        help="also evaluate with recurrent states zeroed at each step, and with those of another episode",
    )
    parser.add_argument(
        "--video",
        nargs="?",
        const="",
        metavar="FILE|DIR",
        help="show the first episode of each seed: the environment, what env.mask hides, the value and the recurrent "
        "states; a file named .mp4 or .gif, or a folder for both (default: video in the run)",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON, with all returns")
    parser.add_argument("--trust-packages", action="store_true", help=TRUST)
    return parser


def _seeds(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def _text(reports: Sequence[dict[str, Any]], as_json: bool) -> str:
    if as_json:
        return json.dumps(reports, indent=2, ensure_ascii=False) + "\n"
    rows = [
        (f"{each['run']} {_STARTS[states].removesuffix(': ')}".rstrip(), found, _STARTS[states])
        for each in reports
        for states, found in each["returns"].items()
    ]
    if len(reports) == 1:
        lines = [*(f"{start}{_line(found)}" for _, found, start in rows), *reports[0].get("video", ())]
        return "".join(f"{line}\n" for line in lines)
    return table([("run", *_COLUMNS), *((name, *_cells(found)) for name, found, _ in rows)])


def _line(found: dict[str, Any]) -> str:
    mean, interval, interquartile, std, low, high, episodes = _cells(found)
    return (
        f"return {mean} ± {std} over {episodes} episodes (min {low}, max {high}); 95% interval of the mean {interval}, "
        f"interquartile mean {interquartile}"
    )


def _cells(found: dict[str, Any]) -> tuple[str, ...]:
    low, high = found["interval_95"]
    numbers = [f"{found[key]:.1f}" for key in ("mean", "interquartile_mean", "std", "min", "max")]
    return (numbers[0], f"{low:.1f} to {high:.1f}", *numbers[1:], str(found["episodes"]))
