"""Makes a wandb workspace for the runs of a project; without a login, writes what it would make.

pip install -e '.[dashboard]'
python scripts/dashboard.py --by cell.name --by lr --group 2026-01-01/12-00-00
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import wandb
import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws
from wandb_workspaces import expr

from recurrl.tracking import FRAMES
from recurrl.tracking.wandb import choose_mode

CURVES = {
    "Returns": {"Evaluation return": ["eval/return_mean"], "Training return": ["train/return_mean"]},
    "Policy": {
        "Entropy": ["policy/entropy"],
        "KL from the behaviour policy": ["policy/kl"],
        "Clip fraction": ["policy/clip_fraction"],
    },
    "Critic": {"Explained variance": ["value/explained_variance"], "Loss": ["loss/critic"]},
    "Throughput": {"Frames per second": ["time/frames_per_s"], "Seconds": ["time/collect_s", "time/learn_s"]},
}
"""The metrics of each line plot by its title, by section."""
MEMORY = [
    "eval/return_mean",
    *("eval/return_mean_zeroed_state", "eval/return_mean_shuffled_state", "eval/return_mean_random"),
]
"""The returns with the policy's memory, without it, with another episode's, and of random actions."""


def workspace(entity: str, project: str, by: Sequence[str], group: str | None) -> ws.Workspace:
    """The workspace.

    Args:
        entity: wandb's user or team.
        project: wandb's project.
        by: keys of the configuration; runs that have the same values are drawn as their mean.
        group: show only the runs of this wandb group, such as a sweep; None for all.
    """
    curves = {
        name: [wr.LinePlot(title=title, x=FRAMES, y=metrics) for title, metrics in plots.items()]
        for name, plots in CURVES.items()
    }
    memory = wr.BarPlot(title="Return with the memory, and without it", metrics=MEMORY)
    panels = {"Returns": [*curves.pop("Returns"), memory], **curves}
    runs = ws.RunsetSettings(
        groupby=[expr.Config(key) for key in by], filters=[] if group is None else [expr.Metric("Group") == group]
    )
    sections = [ws.Section(name=name, panels=of, is_open=True) for name, of in panels.items()]
    settings = ws.WorkspaceSettings(x_axis=FRAMES)
    return ws.Workspace(entity, project, "recurrl", sections, settings, runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entity", default="", help="wandb's user or team (default: that of the login)")
    parser.add_argument("--project", default="recurrl", help="wandb's project (default: recurrl)")
    parser.add_argument("--by", action="append", metavar="KEY", help="group runs by this key; may be repeated")
    parser.add_argument("--group", help="only the runs of this wandb group: a sweep's is its folder, <date>/<time>")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="write what it would make as JSON, and save nothing"
    )
    arguments = parser.parse_args()
    mode, reason = choose_mode("auto")
    made = workspace(arguments.entity, arguments.project, arguments.by or ["cell.name"], arguments.group)
    if arguments.output is None and mode == "online":
        try:
            made.entity = made.entity or wandb.Api().default_entity
            print(made.save().url)
        except Exception as error:  # wandb's failures have no common public type
            sys.exit(f"error: wandb did not save the workspace: {error}. --output FILE writes it instead.")
        return
    output = arguments.output or Path("wandb_workspace.json")
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(made._spec, indent=1) + "\n", encoding="utf-8")
    why = "" if arguments.output else f"wandb is {mode} ({reason}), so nothing was saved there. "
    print(f"{why}{output} is the workspace that would be made.")


if __name__ == "__main__":
    main()
