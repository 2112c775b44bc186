"""``recurrl-check``: checks a run without training, or diagnoses one that produced NaN or Inf."""

import argparse
import sys
from pathlib import Path

from recurrl.cli.messages import errors_as_messages
from recurrl.cli.overrides import TRUST, check_overrides


def check_main() -> None:
    """``recurrl-check``: checks that the update would see what the rollout saw, and trains nothing."""
    parser = argparse.ArgumentParser(
        prog="recurrl-check",
        description="Collects a first batch and checks that the update would see what the rollout saw. Trains nothing "
        "and writes no files.",
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="as for recurrl-train")
    parser.add_argument("--config-dir", type=Path, help="a folder of your own yamls, as for recurrl-train")
    parser.add_argument(
        "--not-finite",
        type=Path,
        metavar="PATH",
        help="instead, examine the batch that a run saved when training produced NaN or Inf, and report where they "
        "appear",
    )
    parser.add_argument("--trust-packages", action="store_true", help=f"with --not-finite: {TRUST}")
    arguments = parser.parse_args()
    with errors_as_messages():
        check_overrides(arguments.overrides)
        from recurrl.cli.check_run import check_run, diagnose_run  # with torch, which typos need not wait for

        if arguments.not_finite is None:
            line = check_run(arguments.overrides, arguments.config_dir)
        else:
            line = "\n".join(diagnose_run(arguments.not_finite, arguments.trust_packages))
    sys.stdout.write(line + "\n")
