"""Exporting the policy of a run."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from recurrl.agent import Agent
from recurrl.cli.load_run import Opened, open_run
from recurrl.export.export import FORMATS, export
from recurrl.runtime.resources import resource_errors_as_messages
from recurrl.runtime.run_directory import EXPORTS, run_directory_of


@resource_errors_as_messages()
def export_run(
    run: Path,
    folder: Path | None = None,
    which: str = "best",
    sampled: bool = False,
    formats: Collection[str] | None = None,
    trust_packages: bool = False,
) -> tuple[Path, dict[str, Any]]:
    """Writes a run's policy into a folder, ``export`` in the run by default; see :func:`recurrl.export.export.export`.

    Returns the folder, and what ``policy.json`` says.

    Raises:
        ConfigError: the run has no such checkpoint, a package is missing, or the export is not exact.
    """
    opened = open_run(run, which, "cpu", trust_packages)
    agent = Agent(opened.make_policy(), opened.config.env)
    folder = folder or run_directory_of(run) / EXPORTS
    return folder, export(agent, folder, described(opened, run), sampled, formats or FORMATS)


def described(opened: Opened, run: Path) -> dict[str, Any]:
    """Where a policy comes from, for ``policy.json``."""
    saved, config = opened.saved, opened.config
    return {
        "directory": str(run),
        "checkpoint": saved.path.name,
        "frames": saved.frames,
        "eval_return_mean": (saved.evaluation or {}).get("eval/return_mean"),
        "env": config.env.id,
        "cell": config.cell.name,
        "hidden_size": config.cell.hidden_size,
        "seed": config.seed,
    }
