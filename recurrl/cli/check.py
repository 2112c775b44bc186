"""``recurrl-check``: what learning would see of a run that it does not start, or saw of one that ended."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hydra.errors import HydraException

from recurrl.cli.overrides import TRUST, check_overrides
from recurrl.errors import ConfigError, RunError


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
    parser.add_argument("--trust-packages", action="store_true", help=f"of --not-finite: {TRUST}")
    arguments = parser.parse_args()
    try:
        check_overrides(arguments.overrides)
        from recurrl.cli.check_run import check_run, examine_run  # with torch, which help and typos do not wait for

        if arguments.not_finite is None:
            line = check_run(arguments.overrides, arguments.config_dir)
        else:
            line = "\n".join(examine_run(arguments.not_finite, arguments.trust_packages))
    except (ConfigError, RunError, HydraException) as error:
        sys.exit(f"error: {error}")
    sys.stdout.write(line + "\n")
