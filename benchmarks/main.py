"""The command line: one subcommand for each module that has ``run``."""

import argparse
import importlib
import pkgutil

import benchmarks


def parser() -> argparse.ArgumentParser:
    """The parser of all subcommands."""
    parser = argparse.ArgumentParser(prog="benchmark.py", description="Benchmarks recurrl against its peers.")
    subparsers = parser.add_subparsers(required=True, metavar="benchmark")
    for entry in pkgutil.iter_modules(benchmarks.__path__):
        module = importlib.import_module(f"benchmarks.{entry.name}")
        if not hasattr(module, "run"):
            continue
        summary = (module.__doc__ or "").partition("\n")[0]
        subparser = subparsers.add_parser(entry.name, help=summary, description=module.__doc__)
        subparser.formatter_class = argparse.RawDescriptionHelpFormatter
        module.add_arguments(subparser)
        subparser.set_defaults(run=module.run)
    return parser


def main(arguments: list[str] | None = None) -> None:
    """Runs the subcommand named on the command line."""
    chosen = parser().parse_args(arguments)
    chosen.run(chosen)
