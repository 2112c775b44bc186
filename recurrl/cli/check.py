"""``recurrl-check``: what learning would see of a run that it does not start, or saw of one that ended."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import hydra
from hydra.errors import HydraException

from recurrl import not_finite
from recurrl.cli.overrides import check_overrides
from recurrl.cli.rules import check_config
from recurrl.cli.run_config import saved_config
from recurrl.collector import carry, make_collector
from recurrl.config.composed import typed
from recurrl.errors import ConfigError, RunError
from recurrl.replay_check import check_replay
from recurrl.time_limit import time_limit
from recurrl.train import make_policy_for, set_process_state


def check_main() -> None:
    """``recurrl-check``: makes sure that an update would see what the rollout saw, and trains nothing."""
    parser = argparse.ArgumentParser(
        prog="recurrl-check",
        description="Collects a first batch, and checks that learning would see what the rollout saw. Trains nothing, "
        "and writes no files.",
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="as for recurrl-train")
    parser.add_argument("--config-dir", type=Path, help="a folder of your own yamls, as for recurrl-train")
    parser.add_argument(
        "--not-finite",
        type=Path,
        metavar="PATH",
        help="instead, go over what a run kept when learning yielded no numbers any more, and say where they end",
    )
    arguments = parser.parse_args()
    try:
        if arguments.not_finite is None:
            line = check_run(arguments.overrides, arguments.config_dir)
        else:
            line = "\n".join(examine_run(arguments.not_finite))
    except (ConfigError, RunError, HydraException) as error:
        sys.exit(f"error: {error}")
    sys.stdout.write(line + "\n")


def check_run(overrides: Sequence[str], config_dir: Path | None = None) -> str:
    """What the start-up check says of the run that ``recurrl-train`` would start with these overrides.

    Raises:
        ConfigError: the run would be refused; a :class:`ReplayError` if by the check.
    """
    logging.getLogger("torchrl").setLevel(logging.WARNING)
    check_overrides(overrides)
    search = [] if config_dir is None else [f"hydra.searchpath=[file://{config_dir.resolve()}]"]
    with hydra.initialize_config_module("recurrl.configs", version_base="1.3"):
        config = typed(hydra.compose("train", [*overrides, *search]))
    if config.resume is not None:
        raise ConfigError(
            "recurrl-check checks a run from its beginning; a run that goes on checks itself. Leave resume out."
        )
    check_config(config)
    set_process_state(config)
    with time_limit(config.collector.timeout_s):
        policy = make_policy_for(config)
        collector = make_collector(config, policy)
        try:
            line = check_replay(config, policy, next(iter(collector)))
            return "\n".join([line, *carry.check(collector)])
        finally:
            collector.shutdown()


def examine_run(path: Path) -> list[str]:
    """What there is to say of the last batch of a run that ended because learning yielded no numbers any more.

    Args:
        path: what the run's error names.

    Raises:
        ConfigError: the path is none, or what is there is damaged.
    """
    # One pass over a few minibatches is not worth compiling for, and is to show the loss as it is written.
    config = replace(typed(saved_config(path)), compile=False)
    check_config(config)
    set_process_state(config)
    return list(not_finite.examine(config, make_policy_for(config), path))
