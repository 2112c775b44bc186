"""The commands: their installation, help, and errors of the command line."""

import importlib.metadata
import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from rejections import error_of

from recurrl.config import TrainConfig
from recurrl.config.keys import SYNONYMS, check_key, packaged_keys
from recurrl.config.plugins import GROUPS, choice_names
from recurrl.runs.overrides import prepared

COMMANDS = ("train", "evaluate", "check", "export", "upload", "compare", "report")


def test_the_commands_are_installed_with_the_package():
    scripts = importlib.metadata.distribution("recurrl").entry_points.select(group="console_scripts")
    assert {each.name for each in scripts} == {f"recurrl-{command}" for command in COMMANDS}
    assert all(callable(each.load()) for each in scripts)


def test_the_configuration_can_be_printed_with_every_key_and_nothing_runs(train, tmp_path, finished_run):
    outcome = train("--cfg", "job", "cell=lstm", "lr=1e-4").succeeded()
    printed = yaml.safe_load(outcome.out)
    assert printed.keys() == {field.name for field in fields(TrainConfig)}
    assert (printed["cell"]["name"], printed["lr"]) == ("lstm", 0.0001)
    lines = [line.partition("#")[0].strip() for line in outcome.out.splitlines()]
    assert {"mask: [1, 3]", "desired_kl: 0.01", "name: lstm"} <= set(lines)
    resumed = yaml.safe_load(train("--cfg", "job", f"resume={finished_run}", "total_frames=96").out)
    assert (resumed["cell"]["name"], resumed["total_frames"]) == ("lstm", 96)
    assert "schedule_frames: 50000\n" in train("--cfg", "job", "--resolve", "schedule_frames=${total_frames}").out
    assert train("--cfg", "job", "--config-name", "nope").error.startswith("Cannot find primary config 'nope'")
    assert train("--cfg", "job", "lr=-1").error == "lr must be a number above 0 and at most 1 (got -1.0)."
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shown", [["--help"], ["--cfg", "job"], ["--cfg", "hydra"]], ids=" ".join)
def test_what_starts_no_run_is_not_a_sweep(train, tmp_path, shown):
    error = "-m cannot be combined with --help or --cfg, which start no run. Leave one of them out."
    assert train("-m", *shown, "cell=gru,lstm").error == error
    assert train(*shown, "cell=gru,lstm").error.startswith("cell=gru,lstm has several values. Add -m before it to run")
    assert list(tmp_path.iterdir()) == []


def test_the_help_lists_the_choices_and_the_most_used_keys_and_nothing_runs(train, tmp_path, compose):
    outcome = train("--help").succeeded()
    lines, words = outcome.out.splitlines(), " ".join(outcome.out.split())
    for group in (group for group in GROUPS if group != "env"):
        assert f" {group}: {', '.join(choice_names(group))} " in words
    assert max(map(len, lines)) <= 120
    config = compose()
    keys = [line.partition("#")[0].strip() for line in lines]
    assert {f"total_frames: {config.total_frames}", f"lr: {config.lr}", "env.mask: [1, 3]"} <= set(keys)
    assert [line for line in lines if line.startswith("total_frames:") and "# environment steps" in line]
    assert len(lines) < 80
    assert list(tmp_path.iterdir()) == []


def test_the_examples_of_the_help_compose(train, recurrl_train):
    examples = Path(__file__).parents[2] / "examples" / "extending"
    block = train("--help").out.partition("Examples:\n")[2].partition("\n\n")[0]
    commands = [re.split(r" {2,}", line.strip())[0].split()[1:] for line in block.splitlines()]
    assert ["cell=lstm", "frames_per_batch=2048", "seed=1"] in commands
    for words in commands:
        if "-m" in words:
            prepared(words)
        elif not any(word.startswith("resume=") for word in words):
            recurrl_train("--cfg", "job", *words, cwd=examples).succeeded()


def test_the_help_lists_custom_choices(train, yamls):
    yamls("cell", "elman")
    cells = ", ".join(sorted({*choice_names("cell"), "elman"}))
    assert f" cell: {cells} " in " ".join(train("--config-dir", "mine", "--help").out.split())


LIGHT = """
import json, os, sys
import hydra
from recurrl.cli.train import main
for arguments in json.loads(sys.argv[1]):
    if os.fork() == 0:
        sys.argv[1:] = arguments
        try:
            sys.exit(main())
        finally:
            print("torch was imported" if "torch" in sys.modules else "torch was not imported", "by", *arguments)
    os.wait()
"""
MISTYPED = ("--seed 1", "learning_rate=1", "cell=gruu", "lr=abc", "hydra.run.dir=existing")


def test_help_and_mistyped_commands_are_answered_without_importing_torch(tmp_path):
    (tmp_path / "existing").mkdir()
    (tmp_path / "existing" / "metrics.csv").touch()
    commands = ("--help", "--hydra-help", "--version", "--cfg job", *MISTYPED)
    program = [sys.executable, "-c", LIGHT, json.dumps([words.split() for words in commands])]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True)
    for words in commands:
        assert f"torch was not imported by {words}\n" in done.stdout, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("error: ") == len(MISTYPED)
    assert [path.name for path in tmp_path.iterdir()] == ["existing"]


def test_an_option_among_the_overrides_is_rejected(train):
    assert "Put options such as -m before the overrides" in train("seed=0", "-m", "cell=gru,lstm").error


@pytest.mark.parametrize("override", ["seed", "seed=[1", "seed={", "env.mask=[1,2", 'lr="1'])
def test_what_is_not_an_override_is_rejected_without_a_parsers_words(train, override):
    outcome = train(override)
    assert outcome.error.startswith(f"{override} is not an override.")
    assert "Exception" not in outcome.err


@pytest.mark.parametrize("name", SYNONYMS)
def test_other_libraries_names_for_a_key_lead_to_ours(name):
    assert SYNONYMS[name].partition(",")[0] in {*packaged_keys(), "hydra.run.dir"}
    assert name not in packaged_keys()
    error = error_of(check_key, name, packaged_keys())
    assert error == f"Unknown configuration key {name!r}. Did you mean {SYNONYMS[name]}?"


@pytest.mark.parametrize(("content", "lacks"), [({"name": "maze", "source": "gymnasium"}, "num_envs"), ({}, "name")])
def test_a_yaml_without_the_one_it_builds_on_is_rejected_with_what_it_lacks(train, yamls, content, lacks):
    yamls("env", "maze", id="CartPole-v1", **content)
    error = train("--config-dir", "mine", "env=maze").error
    assert f"env.{lacks} is required" in error
    assert "defaults: [gym, _self_]" in error


def test_a_yaml_that_cannot_be_read_is_rejected_with_the_place(train, yamls, tmp_path):
    yamls("env", "maze")
    (tmp_path / "mine" / "env" / "maze.yaml").write_text("id: CartPole-v1\n  mask: [1]\n")
    assert 'mine/env/maze.yaml", line 2' in train("--config-dir", "mine", "env=maze").error


def test_an_unknown_precision_in_the_environment_is_an_error_message(rejected, monkeypatch):
    monkeypatch.setattr("recurrl.recurrent.precision._override", "fp16")  # what the environment named at the import
    error = "TORCHRL_RNN_PRECISION must be one of auto, ieee, tf32, tf32x3, bf16, fast, high-prec (got 'fp16')."
    assert rejected("device=cpu").startswith(error)
