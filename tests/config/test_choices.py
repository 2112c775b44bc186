"""The choices of each group: yamls that compose and are valid where they can run, and factories with options."""

import importlib
import pkgutil
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

import recurrl.configs
from recurrl.config import plugins
from recurrl.config.cell import NO_CELL
from recurrl.config.composed import plain
from recurrl.config.keys import keys_of
from recurrl.config.plugins import GROUPS, PRESETS
from recurrl.config.run import PRECISIONS
from recurrl.recurrent import precision
from recurrl.recurrent.choice import AUTO, BACKENDS, RECOMPUTE
from recurrl.validation import check_config

CONFIGS = Path(recurrl.configs.__path__[0])
YAMLS = [(path.parent.name, path.stem) for path in sorted(CONFIGS.glob("*/*.yaml")) if path.parent.name not in PRESETS]
EXPERIMENTS = sorted(path.stem for path in (CONFIGS / "experiment").glob("*.yaml"))
NEEDED = {
    "gym": {"env.id": "Acrobot-v1"},
    "vec_env": {"env.id": "simulators:rsl_vec_env"},
    "torchrl": {"env.id": "test_torchrl:many"},
    "mjlab": {"env.id": "Mjlab-Cartpole-Balance"},
    "envpool": {"env.id": "CartPole-v1"},
    "distill": {"algorithm.teacher": "run"},
    # Whole episodes, and the buffer that its yaml chooses.
    "grpo": {"frames_per_batch": 16_000, "slice_len": 25, "total_frames": 16_000}
    | {"buffer": plugins.yaml_values("buffer", "on_policy")},
}
"""What a choice leaves to the user, or needs besides."""
NOT_IN_DEV = ("ray",)
"""Choices that need a package of the same name, which is not in the extra ``dev``."""


@pytest.mark.parametrize(("group", "option"), YAMLS)
def test_every_choice_is_valid_where_it_can_run(compose_untyped, checked, rejection, monkeypatch, group, option):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "envs")
    values = plain(compose_untyped(f"{group}={option}")[group], resolve=False)
    assert values["name"] == option
    for package in (*values.get("packages", ()), *({option} & {"tensorboard", "mjlab", "envpool"})):
        pytest.importorskip(package)
    changes = {group: values, **NEEDED.get(option, {})}
    if option == "triton":
        error = "backend=triton needs a CUDA device, and this is device=cpu. Choose backend=auto"
        assert error in rejection(changes)
    else:
        checked(changes)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_composes_and_is_valid(compose, experiment):
    config = compose(f"experiment={experiment}")
    for package in config.env.packages:
        pytest.importorskip(package)
    # The device and precision are for the experiment's own machine.
    check_config(replace(config, device="cpu", precision="ieee"))


@pytest.mark.parametrize("group", [*GROUPS, *PRESETS])
def test_no_choice_and_an_unknown_one_are_rejected_the_latter_with_those_that_exist(rejected, group):
    assert rejected(f"{group}=null").startswith(f"{group} must be one of its choices (got null).")
    error = rejected(*(["-m"] if group == "hparams_search" else []), f"{group}=nonesuch")
    assert error.startswith(f"{group}=nonesuch does not exist. ")
    listed = error.partition("Choose one of: ")[2].rstrip(".").split(", ")
    assert {path.stem for path in (CONFIGS / group).glob("*.yaml")} <= set(listed)
    assert ("or package.module:Name for a custom one" in listed) == (group not in PRESETS)


def test_the_nearest_choice_is_suggested(rejected):
    assert "Did you mean cell=gru?" in rejected("cell=gruu")
    assert "Did you mean env=pendulum_no_velocity?" in rejected("env=pendulum")


def test_an_unknown_name_of_a_choice_is_rejected_with_those_that_exist(rejected):
    known = ", ".join(plugins.choice_names("algorithm"))
    error = f"algorithm=nonesuch does not exist. Choose one of: {known}, or package.module:Name for a custom one."
    assert rejected("algorithm.name=nonesuch") == error


def test_every_group_of_the_schema_is_a_folder_of_yamls_with_a_default():
    assert {group for group, _ in YAMLS} == set(GROUPS)
    assert all((group, plugins.default_name(group)) in YAMLS for group in GROUPS)


@pytest.mark.parametrize(("group", "name"), [(group, name) for group in GROUPS for name in plugins.choice_names(group)])
def test_every_choice_has_a_factory_with_options(group, name):
    if name in NOT_IN_DEV:
        pytest.importorskip(name)
    assert issubclass(plugins.options_class(group, name), plugins.base_options(group))
    if name != NO_CELL and group != "backend":  # the package's backends are modules
        assert callable(plugins.factory(group, name))


def test_the_names_of_groups_without_factories_are_those_of_the_recurrent_layer():
    assert set(plugins.choice_names("backend")) == {AUTO, *BACKENDS}
    assert set(PRECISIONS) == {precision.AUTO, *precision.MODES}
    assert set(keys_of()["recompute"][1].choices) == set(RECOMPUTE)


@pytest.mark.parametrize("group", GROUPS)
def test_every_module_with_a_factory_is_a_choice(group):
    package = importlib.import_module(GROUPS[group])
    for entry in pkgutil.iter_modules(package.__path__):
        if entry.name not in NOT_IN_DEV or find_spec(entry.name):
            module = importlib.import_module(f"{package.__name__}.{entry.name}")
            assert not hasattr(module, "make") or entry.name in plugins.choice_names(group)


def test_every_source_of_environments_has_a_yaml_that_names_it():
    named = {plugins.yaml_values("env", name)["source"] for group, name in YAMLS if group == "env"}
    assert named == set(plugins.choice_names("env"))


@pytest.mark.parametrize("name", [name for group, name in YAMLS if group == "env" and name != "gym"])
def test_a_named_environment_does_not_say_how_to_learn_it(name):
    own = yaml.safe_load((CONFIGS / "env" / f"{name}.yaml").read_text(encoding="utf-8"))
    assert not own.keys() & {"reward_scale", "normalize_reward", "num_envs"}
