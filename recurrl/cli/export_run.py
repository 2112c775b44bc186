"""Exporting the policy of a run."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from recurrl.agent import Agent
from recurrl.cli.load_run import open_run
from recurrl.export.export import FORMATS, export
from recurrl.runtime.resources import resource_errors_as_messages


@resource_errors_as_messages()
def export_run(
    run: Path,
    folder: Path,
    which: str = "best",
    sampled: bool = False,
    formats: Collection[str] | None = None,
    trust_packages: bool = False,
) -> dict[str, Any]:
    """Writes a run's policy into a folder; see :func:`recurrl.export.export.export`.

    Raises:
        ConfigError: the run has no such checkpoint, a package is missing, or the export is not exact.
    """
    opened = open_run(run, which, "cpu", trust_packages)
    saved, config = opened.saved, opened.config
    agent = Agent(opened.make_policy(), config.env)
    described = {
        "directory": str(run),
        "checkpoint": saved.path.name,
        "frames": saved.frames,
        "eval_return_mean": (saved.evaluation or {}).get("eval/return_mean"),
        "env": config.env.id,
        "cell": config.cell.name,
        "hidden_size": config.cell.hidden_size,
        "seed": config.seed,
    }
    return export(agent, folder, described, sampled, formats or FORMATS)
