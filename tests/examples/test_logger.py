"""The example of a logger, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "extending"


@pytest.fixture
def train(recurrl_train, tiny, tmp_path):
    """Trains from the folder of the examples, into a folder of the test."""
    return lambda *arguments: recurrl_train(*arguments, *tiny, f"hydra.run.dir={tmp_path / 'run'}", cwd=EXAMPLES)


def lines(tmp_path):
    return [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def test_a_logger_with_a_yaml(train, tmp_path):
    outcome = train("--config-dir", "configs", "logger=json_lines")
    assert outcome.code == 0, outcome.err
    assert [line["frames"] for line in lines(tmp_path)] == [32, 64]
    assert {name.partition("/")[0] for line in lines(tmp_path) for name in line} == {"frames", "train", "eval"}


def test_a_logger_without_a_yaml(train, tmp_path):
    outcome = train("logger=my_package.json_lines:JsonLines")
    assert outcome.code == 0, outcome.err
    assert {"train", "optim", "time"} <= {name.partition("/")[0] for line in lines(tmp_path) for name in line}
    assert (tmp_path / "run" / "metrics.csv").is_file()


def test_a_logger_with_an_option_on_the_command_line(train, tmp_path):
    outcome = train("logger=my_package.json_lines:JsonLines", "logger.only=[optim/]")
    assert outcome.code == 0, outcome.err
    assert {name.partition("/")[0] for line in lines(tmp_path) for name in line} == {"frames", "optim"}


def test_its_options_are_explained(train):
    outcome = train("--cfg", "job", "logger=my_package.json_lines:JsonLines")
    assert "  only: []                          # beginnings of the metrics to log" in outcome.out
