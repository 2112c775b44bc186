"""``recurrl-export``: writes the policy of a run as files that run without recurrl."""

import argparse
from pathlib import Path

from recurrl.cli.messages import TRUST_HELP, print_result
from recurrl.errors import require
from recurrl.runs.launcher import launch_saved
from recurrl.runtime.run_directory import EXPORTS, run_directory_of


def export_main() -> None:
    """Writes one step of a run's policy, from raw observations to the environment's own actions, as policy.onnx and
    policy.pt2, and policy.json, which describes its inputs and outputs. Each is compared with the policy before it is
    written.
    """
    parser = argparse.ArgumentParser(prog="recurrl-export", description=export_main.__doc__)
    parser.add_argument("run", type=Path, help="a run directory, or a checkpoint in one")
    parser.add_argument("--output", type=Path, metavar="DIR", help="where to write (default: export in the run)")
    parser.add_argument("--which", default="best", help="the best checkpoint of a run, or the last (default: best)")
    parser.add_argument("--sampled", action="store_true", help="draw actions with noise, which is another input")
    parser.add_argument("--format", action="append", metavar="onnx|pt2", help="only this one; may be repeated")
    parser.add_argument("--layout", metavar="rsl_rl", help="ONNX with its inputs and outputs: obs, h_in, c_in, ...")
    parser.add_argument(
        "--hub-folder",
        type=Path,
        metavar="DIR",
        help="write a new folder for a model hub instead: a model card with the return of an evaluation, the "
        "configuration, the checkpoint, the files above, and a video if the environment can be drawn",
    )
    parser.add_argument("--trust-packages", action="store_true", help=TRUST_HELP)
    print_result(parser, _write)


def _write(arguments: argparse.Namespace) -> str:
    launch_saved(arguments.run, arguments.trust_packages)
    return _export(arguments) if arguments.hub_folder is None else _hub_folder(arguments)


def _export(arguments: argparse.Namespace) -> str:
    # These import torch, which the help and messages about typos need not wait for.
    from recurrl.agent import Agent
    from recurrl.export.export import DESCRIPTION, FORMATS, ONNX, export
    from recurrl.runs.open_run import open_run

    opened = open_run(arguments.run, arguments.which, "cpu", arguments.trust_packages)
    folder = arguments.output or run_directory_of(arguments.run) / EXPORTS
    agent, facts = Agent(opened.make_policy(), opened.config.env), opened.described(str(arguments.run))
    formats = arguments.format or (FORMATS if arguments.layout is None else (ONNX,))
    written = export(agent, folder, facts, arguments.sampled, formats, arguments.layout)
    compared = "".join(
        f"wrote {folder / name} (differs from the policy by at most {each['largest_difference']:.1e} of the outputs' "
        "scale)\n"
        for name, each in written["files"].items()
    )
    return f"{compared}wrote {folder / DESCRIPTION}\n"


def _hub_folder(arguments: argparse.Namespace) -> str:
    for name in ("output", "sampled", "layout"):
        require(not getattr(arguments, name), f"--{name} has no effect with --hub-folder. Leave one of them out.")
    from recurrl.cli.hub_run import write_hub_folder

    options = (arguments.which, arguments.format, arguments.trust_packages)
    files, reason = write_hub_folder(arguments.run, arguments.hub_folder, *options)
    without = f"no video: {reason}\n" if reason else ""
    return f"{arguments.hub_folder}: {', '.join(files)} and the checkpoint\n{without}"
