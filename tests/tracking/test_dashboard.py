"""The wandb workspace that ``scripts/dashboard.py`` makes."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
from commands import output_of
from wandb_server import WandbServer

ROOT = Path(__file__).parents[2]


def dashboard(home, *arguments, **environment):
    """What it prints."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "NETRC"))}
    command = [sys.executable, ROOT / "scripts/dashboard.py", *arguments]
    env = {**kept, "HOME": str(home), **environment}
    return output_of(command, cwd=home, env=env, timeout=60)


def panels(spec):
    for section in spec["section"]["panelBankConfig"]["sections"]:
        yield from section["panels"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """What it prints and writes without a login."""
    home = tmp_path_factory.mktemp("home")
    printed = dashboard(home, "--by", "cell.name", "--by", "lr", "--group", "2026-01-01/12-00-00")
    return printed, json.loads((home / "wandb_workspace.json").read_text(encoding="utf-8"))


def test_without_a_login_it_writes_what_it_would_make_and_says_so(written):
    output, workspace = written
    assert "no login was found" in output
    assert "wandb_workspace.json is the workspace that would be made" in output
    assert workspace["project"] == "recurrl"


def test_its_panels_name_only_metrics_of_the_glossary(written):
    glossary = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    rows = [line.split(" | ")[0] for line in glossary.splitlines() if line.startswith("| `")]
    known = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    configs = [panel["config"] for panel in panels(written[1]["spec"])]
    named = {name for config in configs for name in config["metrics"]}
    assert {"eval/return_mean", "train/return_mean", "policy/entropy", "value/explained_variance"} <= named <= known
    [bars] = [panel["config"] for panel in panels(written[1]["spec"]) if panel["viewType"] == "Bar Chart"]
    assert "eval/return_mean_zeroed_state" in bars["metrics"]
    assert {config["xAxis"] for config in configs if "xAxis" in config} == {"frames"}


def test_runs_are_grouped_by_settings_and_filtered_by_their_sweep(written):
    [runs] = written[1]["spec"]["section"]["runSets"]
    assert {key["section"] for key in runs["grouping"]} == {"config"}
    assert [key["name"] for key in runs["grouping"]] == ["cell.value.name", "lr.value"]
    assert "2026-01-01/12-00-00" in json.dumps(runs["filters"])


def test_with_a_login_it_saves_the_workspace(tmp_path):
    server = WandbServer()
    printed = dashboard(tmp_path, WANDB_API_KEY="0" * 40, WANDB_BASE_URL=server.url)
    server.stop()
    [view] = server.views
    assert (view["entityName"], view["projectName"]) == ("me", "recurrl")
    assert len(list(panels(json.loads(view["spec"])))) > 5
    assert "/me/recurrl" in printed
    assert list(tmp_path.glob("*.json")) == []
