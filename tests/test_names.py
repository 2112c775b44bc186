"""The choices of each group, as found: each has a yaml with its name, and a factory with options."""

import importlib
import pkgutil
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

import recurrl.configs
from recurrl.config.cell import NO_CELL
from recurrl.config.keys import keys_of
from recurrl.config.plugins import GROUPS, PRESETS, base_options, default_name, factory, names, options_class, values
from recurrl.config.run import PRECISIONS
from recurrl.recurrent import precision
from recurrl.recurrent.backends import RECOMPUTE, backend_names

CONFIGS = Path(recurrl.configs.__path__[0])
NOT_IN_DEV = ("ray",)
"""Choices that need a package of the same name, which is not in the extra ``dev``."""
YAMLS = [(path.parent.name, path.stem) for path in sorted(CONFIGS.glob("*/*.yaml")) if path.parent.name not in PRESETS]


def test_every_group_of_the_schema_is_a_folder_of_yamls_with_a_default():
    assert {group for group, _ in YAMLS} == set(GROUPS)
    assert all((group, default_name(group)) in YAMLS for group in GROUPS)


@pytest.mark.parametrize(("group", "name"), [(group, name) for group in GROUPS for name in names(group)])
def test_every_choice_has_a_factory_with_options(group, name):
    if name in NOT_IN_DEV:
        pytest.importorskip(name)
    assert issubclass(options_class(group, name), base_options(group))
    if name != NO_CELL and group != "backend":  # the package's backends are modules
        assert callable(factory(group, name))


def test_the_names_of_groups_without_factories_are_those_of_the_recurrent_layer():
    assert set(names("backend")) == set(backend_names())
    assert set(PRECISIONS) == {precision.AUTO, *precision.MODES}
    (recompute,) = (meaning for key, _, meaning in keys_of() if key == "recompute")
    assert set(recompute.choices) == set(RECOMPUTE)


@pytest.mark.parametrize("group", GROUPS)
def test_every_module_with_a_factory_is_a_choice(group):
    package = importlib.import_module(GROUPS[group])
    modules = [
        importlib.import_module(f"{GROUPS[group]}.{found.name}")
        for found in pkgutil.iter_modules(package.__path__)
        if found.name not in NOT_IN_DEV or find_spec(found.name)
    ]
    assert {module.__name__.rpartition(".")[2] for module in modules if hasattr(module, "make")} <= set(names(group))


def test_every_source_of_environments_has_a_yaml_that_names_it():
    assert {values("env", name)["source"] for group, name in YAMLS if group == "env"} == set(names("env"))


def test_a_named_environment_does_not_say_how_to_learn_it():
    own = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in (CONFIGS / "env").glob("*.yaml")}
    named = {name: set(found) for name, found in own.items() if name != "gym"}
    assert named
    assert [name for name, keys in named.items() if keys & {"reward_scale", "normalize_reward", "num_envs"}] == []
