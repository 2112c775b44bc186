"""Custom choices, ``package.module:Name``: imported, or rejected with the reason."""

import sys
from dataclasses import fields

import pytest
from rejections import error_of

from recurrl.config.plugins import custom_values, factory, options_class, yaml_values

ELMAN = """
from __future__ import annotations
from dataclasses import dataclass
from recurrl.config import CellConfig

@dataclass
class ElmanConfig(CellConfig):
    pass

class Elman:
    def __init__(self, options: ElmanConfig) -> None: ...

    @classmethod
    def other(cls, options: ElmanConfig): ...

def make(options: ElmanConfig): ...
def without(options): ...
def nothing(): ...
def plain(options: int): ...
def unknown(options: Nonesuch): ...
NUMBER = 3
"""
MINE = """
from dataclasses import dataclass
from recurrl.config import {base}
from recurrl.config.options import option

@dataclass
class Mine({base}):
    width: int = option("a width")
    leak: float = option("how much of the state is replaced", default=1.0)

def make(options: Mine, policy): ...
"""


@pytest.fixture
def package(tmp_path, in_tmp_path, monkeypatch):
    """Writes a module of ``own_package`` into the current folder."""
    monkeypatch.setattr(sys, "path", sys.path[:])

    def write(name, text):
        (tmp_path / "own_package").mkdir(exist_ok=True)
        (tmp_path / "own_package" / f"{name}.py").write_text(text, encoding="utf-8")

    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] == "own_package"]:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["Elman", "Elman.other", "make"])
def test_a_factory_in_a_module_of_the_current_folder_is_found_with_its_options(package, name):
    package("elman", ELMAN)
    assert callable(factory("cell", f"own_package.elman:{name}"))
    assert options_class("cell", f"own_package.elman:{name}").__name__ == "ElmanConfig"


def test_a_module_in_the_current_folder_does_not_hide_an_installed_one(package, tmp_path):
    (tmp_path / "yaml.py").write_text("raise RuntimeError('hidden')")
    assert factory("cell", "yaml:Dumper").__module__ == "yaml.dumper"


NO_NAMES = ("own_package/elman.py:Elman", "own_package.elman:", ":Elman", "own package:Elman", "..elman:Elman")
UNUSABLE = [
    ("own_package.elman:Elmann", "the module own_package.elman has no Elmann. Did you mean Elman? It is at "),
    ("own_package.lstm:LSTM", "there is no module own_package.lstm. Install its package, or run from the folder"),
    ("nonesuch.elman:Elman", "there is no module nonesuch."),
    ("own_package.broken:Cell", "importing own_package.broken fails with ZeroDivisionError: division by zero."),
    ("own_package.needy:Cell", " needs the module nonesuch_package, which is not installed. Install it."),
    ("own_package.circular:Cell", "importing own_package.circular fails with ImportError: cannot import name"),
    ("own_package.nameless:Cell", "importing own_package.nameless fails with ModuleNotFoundError: buy it."),
    ("own_package.elman:without", "its options (got no annotation). examples/extending"),
    ("own_package.elman:nothing", "its options (got no annotation)."),
    ("own_package.elman:plain", "derived from recurrl.config.CellConfig, its options (got int)."),
    ("own_package.elman:unknown", "reading the parameters of its factory fails with NameError: name 'Nonesuch' is not"),
    ("own_package.elman:NUMBER", "reading the parameters of its factory fails with "),
    *((name, "must have the form package.module:Name") for name in NO_NAMES),
]


@pytest.mark.parametrize(("name", "reason"), UNUSABLE)
def test_what_cannot_be_used_is_rejected_with_the_reason(package, name, reason):
    package("elman", ELMAN)
    package("broken", "1 / 0")
    package("needy", "import nonesuch_package")
    package("circular", "from own_package.elman import Nonesuch")
    package("nameless", "raise ModuleNotFoundError('buy it')")
    error = error_of(options_class, "cell", name)
    assert error.startswith(f"cell={name}")
    assert reason in error


def test_a_custom_source_has_the_values_of_env_gym_and_its_name_as_the_id():
    name = "my_package.corridor:Corridor"
    own, inherited = custom_values("env", name), yaml_values("env", "gym")
    assert (own["name"], own["source"], own["id"]) == (name, name, "Corridor")
    for key in ("mask", "num_envs", "reward_scale", "packages"):
        assert own[key] == inherited[key]


INHERITED = [("cell", "CellConfig", "gru")]
INHERITED += [("algorithm", *of) for of in (("PPOConfig", "ppo"), ("GRPOConfig", "grpo"), ("ClippedConfig", "ppo"))]


@pytest.mark.parametrize(("group", "base", "choice"), INHERITED)
def test_a_choice_has_its_own_defaults_and_the_values_of_that_whose_options_it_extends(package, group, base, choice):
    package("mine", MINE.format(base=base))
    name, inherited = "own_package.mine:make", yaml_values(group, choice)
    shared = {field.name: inherited.get(field.name) for field in fields(options_class(group, name))}
    assert custom_values(group, name) == shared | {"name": name, "width": "???", "leak": 1.0}
