"""The options of ``configs/``: each composes and is fine where it can run, and one that there is not is refused."""

from __future__ import annotations

import importlib.resources
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from recurrl import envs
from recurrl.config.composed import typed
from recurrl.errors import ConfigError
from recurrl.losses import algorithm_names
from recurrl.validation import check

CONFIGS = Path(str(importlib.resources.files("recurrl.configs")))
GROUPS = ("env", "cell", "backend", "recompute", "precision", "algorithm", "collector", "logger")
OPTIONS = [(group, path.stem) for group in GROUPS for path in sorted((CONFIGS / group).glob("*.yaml"))]
EXPERIMENTS = sorted(path.stem for path in (CONFIGS / "experiment").glob("*.yaml"))
NOT_ON_A_CPU = {("backend", "triton"), ("precision", "tf32"), ("precision", "tf32x3"), ("precision", "bf16")}
NEEDS_AN_ID = ("env", "gym")


@pytest.fixture(scope="session")
def composed_options(compose) -> dict[tuple[str, str], object]:
    """Each option of each group, composed. One composition takes a third of a second, so each is of several groups."""
    composed = {}
    for row in zip_longest(*([pair for pair in OPTIONS if pair[0] == group] for group in GROUPS)):
        pairs = [pair for pair in row if pair is not None]
        needed = ["env.id=Acrobot-v1"] if NEEDS_AN_ID in pairs else []
        config = compose(*(f"{group}={option}" for group, option in pairs), *needed)
        composed |= {(group, option): getattr(config, group) for group, option in pairs}
    return composed


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_of_every_group_composes_and_is_fine_where_it_can_run(
    defaults, composed_options, group, option, monkeypatch
):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    chosen = composed_options[group, option]
    assert chosen.name == option
    config = replace(defaults, **{group: chosen})
    for package in (*config.env.packages, *(["tensorboard"] if option == "tensorboard" else [])):
        pytest.importorskip(package)
    if (group, option) in NOT_ON_A_CPU:
        with pytest.raises(ConfigError, match=f"{group}={option} "):
            check(config)
    else:
        check(config)
        envs.check(config.env)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_composes_and_is_fine(compose, experiment):
    config = compose(f"experiment={experiment}")
    for package in config.env.packages:
        pytest.importorskip(package)
    # What an experiment says about the device is for its own machine.
    check(replace(config, device="cpu", precision=replace(config.precision, name="ieee")))
    envs.check(config.env)


def test_a_users_own_experiment_composes(recurrl_train, tmp_path):
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    (tmp_path / "mine" / "experiment" / "long.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /cell: lstm\ntotal_frames: 2048\n", encoding="utf-8"
    )
    outcome = recurrl_train("--config-dir", "mine", "--cfg", "job", "experiment=long", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    composed = typed(OmegaConf.create(outcome.out))
    assert (composed.cell.name, composed.total_frames) == ("lstm", 2048)


@pytest.mark.parametrize("group", ["cell", "backend", "env", "precision", "algorithm", "logger"])
def test_an_option_that_does_not_exist_is_refused_with_those_that_do(refused, group):
    error = refused(f"{group}=nonesuch")
    assert f"'{group}/nonesuch'" in error
    assert {option for listed, option in OPTIONS if listed == group} <= set(error.split())


def test_several_options_of_a_group_that_takes_one_are_refused_by_name(refused):
    assert refused("recompute=[gru,lstm]").startswith("In 'train': Could not load 'recompute/lstm'.")


def test_an_experiment_that_does_not_exist_is_refused(refused):
    assert "experiment/nonesuch" in refused("experiment=nonesuch")


def test_an_algorithm_that_does_not_exist_is_refused_with_those_that_do(refused):
    assert refused("algorithm.name=nonesuch") == (
        f"algorithm=nonesuch does not exist. Choose one of: {', '.join(algorithm_names())}."
    )


def test_a_group_without_a_choice_is_refused(refused):
    assert "cell" in refused("cell=null")
