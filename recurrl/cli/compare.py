"""``recurrl-compare`` and ``recurrl-report``: what differs between runs, and their results, as a table or a page."""

import argparse
from pathlib import Path

from recurrl.cli.messages import print_result
from recurrl.reporting.results import comparison, comparison_table, results_of


def compare_main() -> None:
    """Prints a table of runs: the settings that differ, the return of the last evaluation with the 95% interval of its
    mean over episodes, frames, time and status; and for runs that differ in their seeds only, statistics over those
    that completed. recurrl-evaluate plays new episodes instead.
    """
    parser = _parser("recurrl-compare", compare_main.__doc__)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    print_result(parser, _comparison)


def _comparison(arguments: argparse.Namespace) -> str:
    results = results_of(arguments.run)
    return comparison(results, "runs") if arguments.json else comparison_table(results, "run")


def report_main() -> None:
    """Writes one self-contained HTML page: learning curves over seeds, returns and times, the use of memory, what
    differs between the configurations, warnings, and videos in the runs' directories.
    """
    parser = _parser("recurrl-report", report_main.__doc__)
    parser.add_argument("--output", type=Path, help="a file or a folder; default: report.html in the first directory")
    print_result(parser, _report)


def _report(arguments: argparse.Namespace) -> str:
    from recurrl.reporting.page import write_report  # plotly takes half a second

    return f"{write_report(results_of(arguments.run), arguments.run, arguments.output)}\n"


def _parser(program: str, description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument("run", nargs="+", type=Path, metavar="run|sweep", help="run directories, or those of sweeps")
    return parser
