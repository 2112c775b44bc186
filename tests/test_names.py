"""Yaml names and module names agree: a choice that can be typed exists, and what exists can be typed."""

from __future__ import annotations

import importlib
import importlib.resources
import pkgutil
from pathlib import Path

import pytest
import yaml

from recurrl import collector, envs, losses, tracking
from recurrl.config import NO_CELL
from recurrl.recurrent import precision
from recurrl.recurrent.backends import backend_names, load_backend
from recurrl.recurrent.cells import cell_names, load_cell

CONFIGS = Path(str(importlib.resources.files("recurrl.configs")))
NAMED_GROUPS = ("env", "cell", "backend", "recompute", "precision", "algorithm", "collector", "logger")


def options(group: str) -> set[str]:
    return {path.stem for path in (CONFIGS / group).glob("*.yaml")}


def values(group: str, option: str) -> dict[str, object]:
    return yaml.safe_load((CONFIGS / group / f"{option}.yaml").read_text(encoding="utf-8"))


def test_the_configuration_tree_is_data_of_the_installed_package():
    assert (CONFIGS / "train.yaml").is_file()
    assert all(options(group) for group in NAMED_GROUPS)


def test_each_group_of_the_defaults_list_is_a_folder_and_each_folder_is_in_it():
    defaults = yaml.safe_load((CONFIGS / "train.yaml").read_text(encoding="utf-8"))["defaults"]
    groups = {key.removeprefix("optional ") for entry in defaults if isinstance(entry, dict) for key in entry}
    folders = {path.name for path in CONFIGS.iterdir() if path.is_dir() and any(path.glob("*.yaml"))}
    assert groups - {"experiment"} == folders - {"experiment"} == set(NAMED_GROUPS)
    assert "experiment" in groups


@pytest.mark.parametrize(
    ("group", "option"), [(group, option) for group in NAMED_GROUPS for option in sorted(options(group))]
)
def test_the_name_in_a_yaml_is_the_name_of_its_file(group, option):
    assert values(group, option)["name"] == option


def test_each_cell_is_a_yaml_and_a_module():
    assert options("cell") - {NO_CELL} == set(cell_names())
    for name in cell_names():
        assert load_cell(name).STATES


def test_the_feed_forward_control_is_a_choice_of_cell():
    assert NO_CELL in options("cell")
    assert NO_CELL not in cell_names()


def test_each_backend_is_a_yaml_and_a_module():
    assert options("backend") == set(backend_names())
    for name in set(backend_names()) - {"auto"}:
        assert callable(load_backend(name).supports)
        assert callable(load_backend(name).sequence)


def test_each_precision_is_a_yaml_and_a_mode():
    assert options("precision") == set(precision.MODES)


def test_each_algorithm_is_a_yaml_and_a_module():
    assert options("algorithm") == set(losses.algorithm_names())


def test_each_logger_is_a_yaml_and_a_module():
    modules = [
        importlib.import_module(f"recurrl.tracking.{found.name}") for found in pkgutil.iter_modules(tracking.__path__)
    ]
    assert options("logger") == {module.__name__.rpartition(".")[2] for module in modules if hasattr(module, "make")}


def test_each_collector_is_a_yaml_and_a_module():
    modules = [
        importlib.import_module(f"recurrl.collector.{found.name}") for found in pkgutil.iter_modules(collector.__path__)
    ]
    assert options("collector") == {module.__name__.rpartition(".")[2] for module in modules if hasattr(module, "make")}


def source(environment: str) -> object:
    """The source in a yaml, or in the one that it is based on."""
    own = values("env", environment)
    return own["source"] if "source" in own else source(own["defaults"][0])


@pytest.mark.parametrize("option", sorted(options("env")))
def test_the_source_of_each_environment_is_a_module(option):
    assert source(option) in envs.source_names()


def test_each_source_of_environments_has_a_yaml_that_names_it():
    named = {values("env", option).get("source") for option in options("env")} - {None}
    assert named == set(envs.source_names())


@pytest.mark.parametrize("name", envs.source_names())
def test_a_source_of_environments_can_check_and_make(name):
    module = importlib.import_module(f"recurrl.envs.{name}")
    assert callable(module.check)
    assert callable(module.make)


@pytest.mark.parametrize("option", set(options("env")) - {"gym"})
def test_a_named_environment_says_what_it_is_and_not_how_to_learn_it(option):
    assert not {"reward_scale", "normalize_reward"} & set(values("env", option))
