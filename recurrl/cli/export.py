"""``recurrl-export``: writes the policy of a run as files that run without recurrl."""

import argparse
import sys
from pathlib import Path

from recurrl.cli.overrides import TRUST
from recurrl.errors import ConfigError, RunError


def export_main() -> None:
    """``recurrl-export``: writes the policy of a run as ONNX and as a program of ``torch.export``."""
    parser = argparse.ArgumentParser(
        prog="recurrl-export",
        description="Writes one step of a run's policy, from raw observations to the environment's own actions, as "
        "policy.onnx and policy.pt2, and policy.json, which describes its inputs and outputs. Each is compared with "
        "the policy before it is written.",
    )
    parser.add_argument("run", type=Path, help="a run directory, or a checkpoint in one")
    parser.add_argument("--output", type=Path, metavar="DIR", help="where to write (default: export in the run)")
    parser.add_argument("--which", default="best", help="the best checkpoint of a run, or the last (default: best)")
    parser.add_argument("--sampled", action="store_true", help="draw actions with the noise given as an input")
    parser.add_argument("--format", action="append", metavar="onnx|pt2", help="only this one; may be repeated")
    parser.add_argument("--trust-packages", action="store_true", help=TRUST)
    arguments = parser.parse_args()
    from recurrl.cli.export_run import export_run  # with torch, which help and typos do not wait for

    try:
        given = (arguments.which, arguments.sampled, arguments.format, arguments.trust_packages)
        folder, written = export_run(arguments.run, arguments.output, *given)
    except (ConfigError, RunError) as error:
        sys.exit(f"error: {error}")
    for name, file in written["files"].items():
        sys.stdout.write(f"{folder / name}: at most {file['largest_difference']:.1e} of the scale off the policy\n")
