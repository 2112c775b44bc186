"""``recurrl-report``: one HTML page about runs."""

import argparse
import sys
from pathlib import Path

from recurrl.cli.messages import errors_as_messages
from recurrl.cli.results import results_of


def report_main() -> None:
    """``recurrl-report``: one HTML page about runs."""
    parser = argparse.ArgumentParser(
        prog="recurrl-report",
        description="Writes one self-contained HTML page: learning curves over seeds, returns, the use of memory, "
        "where the time went, what differs between the configurations, warnings, and videos in the runs' directories.",
    )
    parser.add_argument("run", nargs="+", type=Path, metavar="run|sweep", help="run directories, or those of sweeps")
    parser.add_argument("--output", type=Path, help="the file; default: report.html in the first directory")
    arguments = parser.parse_args()
    with errors_as_messages():
        from recurrl.reporting.page import write_report  # plotly takes half a second

        runs = [run for path in arguments.run for run in results_of(path)]
        page = write_report(runs, arguments.run, arguments.output)
    sys.stdout.write(f"{page}\n")
