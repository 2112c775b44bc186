"""The wandb workspace that ``scripts/dashboard.py`` makes."""

import json
import re
import sys
from pathlib import Path

from commands import output_of
from wandb_server import without_a_login

ROOT = Path(__file__).parents[2]


def dashboard(home, *arguments, **environment):
    """What it prints."""
    command = [sys.executable, ROOT / "scripts/dashboard.py", *arguments]
    return output_of(command, cwd=home, env=without_a_login(home, **environment), timeout=60)


def panels(spec):
    for section in spec["section"]["panelBankConfig"]["sections"]:
        yield from section["panels"]


def test_without_a_login_it_writes_what_it_would_make_and_says_so(tmp_path):
    group = "2026-01-01/12-00-00"
    output = dashboard(tmp_path, "--by", "cell.name", "--by", "lr", "--group", group)
    assert "no login was found" in output
    assert "wandb_workspace.json is the workspace that would be made" in output
    workspace = json.loads((tmp_path / "wandb_workspace.json").read_text(encoding="utf-8"))
    assert workspace["project"] == "recurrl"
    # Its panels name only metrics of the glossary.
    glossary = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    rows = [line.split(" | ")[0] for line in glossary.splitlines() if line.startswith("| `")]
    known = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    configs = [panel["config"] for panel in panels(workspace["spec"])]
    named = {name for config in configs for name in config["metrics"]}
    assert {"eval/return_mean", "train/return_mean", "policy/entropy", "value/explained_variance"} <= named <= known
    [bars] = [panel["config"] for panel in panels(workspace["spec"]) if panel["viewType"] == "Bar Chart"]
    assert "eval/return_mean_zeroed_state" in bars["metrics"]
    assert {config["xAxis"] for config in configs if "xAxis" in config} == {"frames"}
    # Runs are grouped by the settings, and those of the sweep are shown.
    [runs] = workspace["spec"]["section"]["runSets"]
    settings = [(key["section"], key["name"]) for key in runs["grouping"]]
    assert settings == [("config", "cell.value.name"), ("config", "lr.value")]
    assert group in json.dumps(runs["filters"])


def test_with_a_login_it_saves_the_workspace(server, tmp_path):
    printed = dashboard(tmp_path, WANDB_API_KEY="0" * 40, WANDB_BASE_URL=server.url)
    [view] = server.views
    assert (view["entityName"], view["projectName"]) == ("me", "recurrl")
    assert len(list(panels(json.loads(view["spec"])))) > 5
    assert "/me/recurrl" in printed
    assert list(tmp_path.glob("*.json")) == []
