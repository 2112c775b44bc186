"""Options of custom parts: by a name and by a yaml, changed on the command line, on resume, and wrong ones."""

import re
import sys
from functools import partial

import pytest
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf
from rejections import error_of
from run_files import settings

from recurrl.config.composed import as_schema, plain, with_defaults
from recurrl.config.plugins import GROUPS, base_options, key_of
from recurrl.runs.overrides import compose, text_of

PARTS = """
from dataclasses import dataclass

from recurrl.algorithms.ppo import PPO
from recurrl.config import CellConfig, EncoderConfig, PPOConfig
from recurrl.config.options import WEIGHT, option
from recurrl.recurrent.cells import make_cell

@dataclass
class CoupledConfig(CellConfig):
    forget_bias: float = option("bias of the forget gate", WEIGHT, default=1.0)
    peephole: bool = option("let the gates see the state", default=False)

def Coupled(options: CoupledConfig):
    return make_cell("lstm", options.hidden_size)

@dataclass
class WeightedConfig(PPOConfig):
    temperature: float = option("of the advantages", WEIGHT, default=1.0)
    nested: dict[str, int] = option("anything", default={})

class Weighted(PPO):
    options: WeightedConfig

    def __init__(self, options: WeightedConfig, policy, config):
        super().__init__(options, policy, config)

@dataclass
class OwnCriticConfig(PPOConfig):
    critic_kind = "own"

def Own(options: OwnCriticConfig): ...

@dataclass
class BareConfig(EncoderConfig):
    width: float = option("a width", WEIGHT)

def Bare(options: BareConfig): ...
"""
CELL, ALGORITHM = "cell=coupled:Coupled", "algorithm=coupled:Weighted"


@pytest.fixture(scope="module")
def resumed(recurrl_train, tiny, tmp_path_factory):
    """Resumes a finished run of both, in the folder of their module. The run has to stay as it is."""
    folder = tmp_path_factory.mktemp("coupled")
    (folder / "coupled.py").write_text(PARTS, encoding="utf-8")
    recurrl_train(*tiny, CELL, ALGORITHM, "cell.peephole=true", "hydra.run.dir=run", cwd=folder).succeeded()
    return partial(recurrl_train, "resume=run", "total_frames=96", cwd=folder)


# On resume


@pytest.mark.parametrize("override", ["cell.forget_bias=3.0", "algorithm.temperature=0.5"])
def test_an_option_of_a_custom_part_is_changed_on_resume(resumed, tmp_path, override):
    resumed(override, f"hydra.run.dir={tmp_path / 'run'}").succeeded()
    key, _, value = override.partition("=")
    group, _, name = key.partition(".")
    assert settings(tmp_path / "run")[group][name] == float(value)


WRONG_ON_RESUME = [
    ("cell.forget_bia=3", "Unknown configuration key 'cell.forget_bia'. Did you mean cell.forget_bias?"),
    ("cell.forget_bias=often", "cell.forget_bias must be a number from 0 to 1_000_000 (got often)."),
    ("cell.state_size=3", "cell.state_size is an option of cell=lru or s5, but this run has another cell."),
]


@pytest.mark.parametrize(("override", "error"), WRONG_ON_RESUME)
def test_a_wrong_option_of_a_custom_part_is_rejected_on_resume_without_blaming_the_file(resumed, override, error):
    assert resumed(override).error.startswith(error)


def test_a_name_whose_options_the_run_does_not_have_is_answered_with_the_choice(resumed):
    error = "cell.name=lru does not accept the options that this run has for coupled:Coupled. Choose cell=lru, which "
    assert resumed("cell.name=lru").error == f"{error}starts from the defaults of lru."


def test_an_option_that_another_cell_does_not_have_is_absent(resumed):
    error = resumed("cell=lstm", "cell.hidden_size=9").error
    for change in ("cell.forget_bias is absent and was 1.0", "cell.peephole is absent and was True"):
        assert change in error


# Wrong ones


WRONG = [
    ("cell.zzz=3", "Unknown configuration key 'cell.zzz'. cell has: hidden_size, num_layers, forget_bias, peephole."),
    ("cell.peephole=2", "cell.peephole must be true or false (got 2)."),
    (
        f"{ALGORITHM} algorithm.nested.a=x",
        "algorithm.nested.a has a value that cannot be used (Value 'x' of type 'str'",
    ),
    (
        "algorithm=coupled:Own",
        "critic_kind of algorithm=coupled:Own must be shared, recurrent, feedforward or None (got",
    ),
    ("encoder=coupled:Bare", "encoder.width=... to the command line. Or give it a default where it is declared: opti"),
]


@pytest.mark.parametrize(("override", "error"), WRONG)
def test_a_wrong_option_of_a_custom_part_is_rejected(rejected, tmp_path, override, error):
    (tmp_path / "coupled.py").write_text(PARTS, encoding="utf-8")
    assert error in rejected(CELL, *override.split())


# By a yaml

GROUP = """
from dataclasses import dataclass
from recurrl.config import {base}
from recurrl.config.options import WEIGHT, option

@dataclass
class OwnConfig({base}):
    width: float = option("a width", WEIGHT, default=0.5)

def own(options: OwnConfig, *_): ...
"""


@pytest.fixture
def own_choice(tmp_path, monkeypatch, yamls):
    """Makes a custom choice of a group whose options derive from the group's, and a yaml with its name only."""
    monkeypatch.syspath_prepend(tmp_path)

    def own_choice(group, **content):
        (tmp_path / f"own_{group}.py").write_text(GROUP.format(base=base_options(group).__name__), encoding="utf-8")
        yamls(group, "short", **{key_of(group).partition(".")[2]: f"own_{group}:own"} | content)
        return f"own_{group}:own"

    yield own_choice
    for group in GROUPS:
        sys.modules.pop(f"own_{group}", None)
        ConfigStore.instance().repo.get(group, {}).pop(f"own_{group}:own.yaml", None)


@pytest.mark.parametrize("group", GROUPS)
def test_a_yaml_needs_the_name_only_and_has_the_values_of_the_choice_by_name(own_choice, tmp_path, group):
    name = own_choice(group)
    by_name = as_schema(compose([f"{group}={name}"]))
    by_yaml = compose([f"{group}=short"], tmp_path / "mine")
    assert as_schema(by_yaml) == by_name
    options = vars(getattr(by_name, group))
    overrides = [f"{group}.{key}={text_of(value)}" for key, value in options.items()]
    assert as_schema(compose([f"{group}=short", *overrides], tmp_path / "mine")) == by_name
    assert plain(with_defaults(by_yaml))[group] == options  # what the run saves


@pytest.mark.parametrize("group", GROUPS)
def test_a_configuration_without_a_group_is_rejected(group):
    config = OmegaConf.create({key: value for key, value in plain(compose([])).items() if key != group})
    assert error_of(as_schema, config).startswith(f"{group} is required and has no value. Add {group}=... to the")


CHOICES = ["env=torchrl", "cell=lmu", "encoder=mlp", "algorithm=ppo", "collector=ray", "buffer=replay", "logger=wandb"]


@pytest.mark.parametrize("base", CHOICES)
def test_a_yaml_whose_defaults_have_options_that_its_own_lack_is_rejected_with_what_to_do(own_choice, tmp_path, base):
    group, _, choice = base.partition("=")
    own_choice(group, defaults=[choice, "_self_"])
    error = error_of(lambda: as_schema(compose([f"{group}=short"], tmp_path / "mine")))
    assert re.match(rf"{group}\.\w+ is an option of {group}=[\w ]*{choice}", error)
    assert error.endswith(
        f"If you did not set it yourself, either the defaults of a yaml did (remove them), or {key_of(group)}=... did, "
        f"which keeps the options of the previous choice (write {group}=... instead)."
    )


@pytest.mark.parametrize("group", [group for group in GROUPS if group != "backend"])
def test_an_experiment_takes_a_custom_choice_by_a_yaml_as_its_error_says(own_choice, yamls, tmp_path, group):
    name = own_choice(group)
    yamls("experiment", "mine", defaults=[{f"override /{group}": name}])
    error = error_of(compose, ["experiment=mine"], tmp_path / "mine")
    key = key_of(group).partition(".")[2]
    assert error == (
        f"{group}={name} can be given only on the command line. In the defaults of a yaml, name a yaml in the folder "
        f"{group} with the line '{key}: {name}'."
    )
    yamls("experiment", "mine", defaults=[{f"override /{group}": "short"}])
    assert as_schema(compose(["experiment=mine"], tmp_path / "mine")) == as_schema(compose([f"{group}={name}"]))
