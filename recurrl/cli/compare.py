"""``recurrl-compare`` and ``recurrl-report``: what differs between runs, and their results, as a table or a page."""

import argparse
import sys
from pathlib import Path

from recurrl.cli.messages import errors_as_messages
from recurrl.reporting.results import comparison, comparison_table, results_of


def compare_main() -> None:
    """``recurrl-compare``: what differs between runs, and their results."""
    parser = _parser(
        "recurrl-compare",
        "Prints a table of runs: the settings that differ, the return of the last evaluation with the 95% interval of "
        "its mean over episodes, frames, time and status; and for runs that differ in their seeds only, statistics "
        "over those that completed. recurrl-evaluate plays new episodes instead.",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    arguments = parser.parse_args()
    with errors_as_messages():
        results = results_of(arguments.run)
        sys.stdout.write(comparison(results, "runs") if arguments.json else comparison_table(results, "run"))


def report_main() -> None:
    """``recurrl-report``: one HTML page about runs."""
    parser = _parser(
        "recurrl-report",
        "Writes one self-contained HTML page: learning curves over seeds, returns and times, the use of memory, "
        "what differs between the configurations, warnings, and videos in the runs' directories.",
    )
    parser.add_argument("--output", type=Path, help="a file or a folder; default: report.html in the first directory")
    arguments = parser.parse_args()
    with errors_as_messages():
        from recurrl.reporting.page import write_report  # plotly takes half a second

        page = write_report(results_of(arguments.run), arguments.run, arguments.output)
        sys.stdout.write(f"{page}\n")


def _parser(program: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument("run", nargs="+", type=Path, metavar="run|sweep", help="run directories, or those of sweeps")
    return parser
