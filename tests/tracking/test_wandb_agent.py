"""``wandb agent`` runs the example's sweep with a command that ``recurrl-train`` takes."""

from pathlib import Path

import pytest
import yaml

SWEEP = yaml.safe_load((Path(__file__).parents[2] / "examples/wandb/sweep.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("which", [0, -1])
def test_its_command_is_accepted(which, train):
    # Importing it takes seconds, which every process that collects the tests would spend.
    from wandb.sdk.launch.sweeps.utils import create_sweep_command_args, make_launch_sweep_entrypoint

    chosen = {
        name: {"value": parameter["values"][which] if "values" in parameter else parameter[("min", "max")[which]]}
        for name, parameter in SWEEP["parameters"].items()
    }
    macros = create_sweep_command_args({"args": chosen})
    (program, *fixed), arguments = make_launch_sweep_entrypoint(macros, list(SWEEP["command"]))
    assert program == "recurrl-train"
    assert len(arguments) == len(chosen)
    train(*fixed, *arguments, "--cfg", "job").succeeded()


def test_its_metric_is_one_that_runs_log():
    glossary = (Path(__file__).parents[2] / "docs/metrics.md").read_text(encoding="utf-8")
    assert f"`{SWEEP['metric']['name']}`" in glossary
