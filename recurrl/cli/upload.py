"""``recurrl-upload``: adds a run's files to its wandb run."""

import argparse
import sys
from pathlib import Path

from recurrl.cli.messages import errors_as_messages
from recurrl.cli.overrides import TRUST


def upload_main() -> None:
    """``recurrl-upload``: adds a run's best checkpoint, exported policy and videos to its wandb run, as artifacts."""
    parser = argparse.ArgumentParser(
        prog="recurrl-upload",
        description="Adds files of a finished run with logger=wandb to its wandb run, as artifacts: the best "
        "checkpoint, and what recurrl-export and recurrl-evaluate --video wrote into the run's directory. Without a "
        "login they are recorded for a later wandb sync.",
    )
    parser.add_argument("run", type=Path, help="a run directory")
    parser.add_argument(
        "kind", nargs="*", metavar="checkpoint|export|video", help="only these (default: all that there are)"
    )
    parser.add_argument("--trust-packages", action="store_true", help=TRUST)
    arguments = parser.parse_args()
    with errors_as_messages():
        from recurrl.cli.upload_run import upload_run  # with torch, which help and typos do not wait for

        kinds, where = upload_run(arguments.run, arguments.kind, arguments.trust_packages)
    sys.stdout.write(f"{', '.join(kinds)}: artifacts of the run's wandb run. {where}\n")
