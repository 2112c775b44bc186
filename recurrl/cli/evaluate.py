"""``recurrl-evaluate``: plays deterministic episodes with the policy of a run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev

from recurrl import checkpoint
from recurrl.cli.rules import check_config
from recurrl.cli.run_config import TRUST, config_of, plain, source_of, trusted
from recurrl.errors import ConfigError, RunError
from recurrl.evaluation import KEPT, SHUFFLED, ZEROED, evaluate
from recurrl.resources import shortages_as_sentences
from recurrl.time_limit import time_limit
from recurrl.train import make_policy_for, set_process_state


def evaluate_main() -> None:
    """``recurrl-evaluate``: plays deterministic episodes with the policy of a run."""
    parser = argparse.ArgumentParser(
        prog="recurrl-evaluate",
        description="Plays deterministic episodes with the policy of a run, and prints returns.",
    )
    parser.add_argument("run", type=Path, help="a run directory, or a checkpoint in one")
    parser.add_argument("--episodes", type=int, help="how many (default: as many as the run's own evaluation)")
    parser.add_argument("--seed", type=int, help="seed of the environments (default: the run's)")
    parser.add_argument("--device", help="where the policy runs (default: the run's device)")
    parser.add_argument(
        "--memory",
        action="store_true",
        help="also with the recurrent states zeroed at each step, and with those of another episode",
    )
    parser.add_argument("--trust-packages", action="store_true", help=TRUST)
    arguments = parser.parse_args()
    begun = {KEPT: ""}
    if arguments.memory:
        begun |= {ZEROED: "with its memory zeroed: ", SHUFFLED: "with another episode's: "}
    try:
        with shortages_as_sentences():
            returns = evaluate_run(
                *(arguments.run, arguments.episodes, arguments.seed, arguments.device, list(begun)),
                trust_packages=arguments.trust_packages,
            )
    except (ConfigError, RunError) as error:
        sys.exit(f"error: {error}")
    for states, start in begun.items():
        sys.stdout.write(f"{start}{_return_line(returns[states])}\n")


def evaluate_run(
    path: Path,
    episodes: int | None = None,
    seed: int | None = None,
    device: str | None = None,
    states: Sequence[str] = (KEPT,),
    trust_packages: bool = False,
) -> dict[str, list[float]]:
    """Returns of deterministic episodes of a run's policy in the environment it was trained in, for each of ``states``.

    Args:
        path: a run directory, or one of its checkpoints; of a run directory the newest checkpoint is taken.
        episodes: how many; default: as many as the run's own evaluation.
        seed: of the environments; default: the run's.
        device: where the policy runs; default: the run's.
        states: what may become of the recurrent states between two steps, see :func:`recurrl.evaluation.evaluate`.
        trust_packages: import the packages that the run's configuration names.

    Raises:
        ConfigError: the path is no run, its configuration names packages that are not trusted, its environment or
            device is not available here, or its policy has no states.
    """
    saved = checkpoint.Saved(checkpoint.find(path))
    settings = config_of(saved)
    config = trusted(settings, source_of(saved), trust_packages)
    config = replace(config, resume=None, device=device or config.device)
    check_config(config)
    set_process_state(config)
    episodes = config.evaluation.episodes if episodes is None else episodes
    if episodes < 1:
        raise ConfigError(f"--episodes {episodes} is too small. Give at least 1.")
    seed = config.seed if seed is None else seed
    with time_limit(config.collector.timeout_s):
        policy = make_policy_for(config)
        saved.load_policy(policy, plain(settings))
        if set(states) != {KEPT} and not policy.state_keys:
            raise ConfigError(f"--memory is about recurrent states, and the policy of {path} has none. Leave it out.")
        return {each: evaluate(config.env, policy, episodes, seed, each) for each in states}


def _return_line(returns: list[float]) -> str:
    return (
        f"return {fmean(returns):.1f} ± {pstdev(returns):.1f} over {len(returns)} episodes "
        f"(min {min(returns):.1f}, max {max(returns):.1f})"
    )
