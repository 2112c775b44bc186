"""``recurrl-evaluate``: plays deterministic episodes with the policy of a run."""

import argparse
import sys
from pathlib import Path
from statistics import fmean, pstdev

from recurrl.cli.overrides import TRUST
from recurrl.errors import ConfigError, RunError


def evaluate_main() -> None:
    """``recurrl-evaluate``: plays deterministic episodes with the policy of a run."""
    parser = argparse.ArgumentParser(
        prog="recurrl-evaluate",
        description="Plays deterministic episodes with a run's policy and prints the returns.",
    )
    parser.add_argument("run", type=Path, help="a run directory, or a checkpoint in one")
    parser.add_argument("--episodes", type=int, help="number of episodes (default: the run's evaluation.episodes)")
    parser.add_argument("--seed", type=int, help="seed of the environments (default: the run's)")
    parser.add_argument("--device", help="where the policy runs (default: the run's device)")
    parser.add_argument(
        "--memory",
        action="store_true",
        help="also evaluate with recurrent states zeroed at each step, and with those of another episode",
    )
    parser.add_argument("--trust-packages", action="store_true", help=TRUST)
    arguments = parser.parse_args()
    begun = {"kept": ""}
    if arguments.memory:
        begun |= {"zeroed": "with its memory zeroed: ", "shuffled": "with another episode's: "}
    from recurrl.cli.evaluate_run import evaluate_run  # with torch, which help and typos do not wait for

    try:
        returns = evaluate_run(
            *(arguments.run, arguments.episodes, arguments.seed, arguments.device, list(begun)),
            trust_packages=arguments.trust_packages,
        )
    except (ConfigError, RunError) as error:
        sys.exit(f"error: {error}")
    for states, start in begun.items():
        sys.stdout.write(f"{start}{_return_line(returns[states])}\n")


def _return_line(returns: list[float]) -> str:
    return (
        f"return {fmean(returns):.1f} ± {pstdev(returns):.1f} over {len(returns)} episodes "
        f"(min {min(returns):.1f}, max {max(returns):.1f})"
    )
