"""The commands: that they are installed, and what they print when nothing is to run."""

from __future__ import annotations

import importlib.metadata
from dataclasses import fields

import yaml

from recurrl.config import TrainConfig
from recurrl.recurrent.backends import backend_names
from recurrl.recurrent.cells import cell_names


def test_the_commands_are_installed_with_the_package():
    commands = {script.name: script.value for script in importlib.metadata.entry_points(group="console_scripts")}
    assert commands["recurrl-train"] == "recurrl.cli:main"
    assert commands["recurrl-evaluate"] == "recurrl.cli:evaluate_main"
    assert commands["recurrl-check"] == "recurrl.cli:check_main"


def test_the_configuration_can_be_printed_and_nothing_runs(train, tmp_path):
    outcome = train("--cfg", "job", "cell=lstm", "lr=1e-4")
    assert outcome.code == 0, outcome.err
    printed = yaml.safe_load(outcome.out)
    assert printed.keys() == {field.name for field in fields(TrainConfig)}
    assert (printed["cell"]["name"], printed["lr"]) == ("lstm", 0.0001)
    assert list(tmp_path.iterdir()) == []


def test_the_help_lists_the_choices_and_the_keys_and_nothing_runs(train, tmp_path, compose):
    outcome = train("--help")
    assert outcome.code == 0, outcome.err
    lines = [line.strip() for line in outcome.out.splitlines()]
    assert f"cell: {', '.join(sorted((*cell_names(), 'none')))}" in lines
    assert f"backend: {', '.join(sorted(backend_names()))}" in lines
    assert "recompute: chunk, full, none" in lines
    config = compose()
    assert {
        f"total_frames: {config.total_frames}",
        f"lr: {config.lr}",
        f"hidden_size: {config.cell.hidden_size}",
    } <= set(lines)
    assert list(tmp_path.iterdir()) == []
