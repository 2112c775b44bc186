"""The yamls of ``configs/``: each composes and is valid where it can run."""

from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import recurrl.configs
from recurrl.config.composed import typed
from recurrl.config.plugins import GROUPS, PRESETS, names
from recurrl.errors import ConfigError
from recurrl.validation import check_config

CONFIGS = Path(recurrl.configs.__path__[0])
OPTIONS = [(group, path.stem) for group in GROUPS for path in sorted((CONFIGS / group).glob("*.yaml"))]
EXPERIMENTS = sorted(path.stem for path in (CONFIGS / "experiment").glob("*.yaml"))
NOT_ON_A_CPU = {("backend", "triton")}


@pytest.fixture(scope="session")
def composed_options(compose):
    """Each choice of each group, composed. One composition takes a third of a second, so each is of several groups."""
    composed = {}
    for row in zip_longest(*([pair for pair in OPTIONS if pair[0] == group] for group in GROUPS)):
        pairs = [pair for pair in row if pair is not None]
        required = {
            ("env", "gym"): "env.id=Acrobot-v1",
            ("env", "vec_env"): "env.id=simulators:rsl_vec_env",
            ("env", "mjlab"): "env.id=Mjlab-Cartpole-Balance",
            ("env", "envpool"): "env.id=CartPole-v1",
            ("algorithm", "distill"): "algorithm.teacher=run",
        }
        needed = [value for pair, value in required.items() if pair in pairs]
        config = compose(*(f"{group}={option}" for group, option in pairs), *needed)
        composed |= {(group, option): getattr(config, group) for group, option in pairs}
    return composed


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_choice_of_every_group_composes_and_is_valid_where_it_can_run(
    defaults, composed_options, group, option, monkeypatch
):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.syspath_prepend(Path(__file__).parent / "envs")
    chosen = composed_options[group, option]
    assert chosen.name == option
    # GRPO needs whole episodes.
    sizes = {"frames_per_batch": 16_000, "slice_len": 25, "total_frames": 16_000} if option == "grpo" else {}
    config = replace(defaults, **{group: chosen}, **sizes)
    for package in (*config.env.packages, *([option] if option in ("tensorboard", "mjlab", "envpool") else [])):
        pytest.importorskip(package)
    if (group, option) in NOT_ON_A_CPU:
        with pytest.raises(ConfigError, match=f"{group}={option} "):
            check_config(config)
    else:
        check_config(config)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_composes_and_is_valid(compose, experiment):
    config = compose(f"experiment={experiment}")
    for package in config.env.packages:
        pytest.importorskip(package)
    # The device and precision are for the experiment's own machine.
    check_config(replace(config, device="cpu", precision="ieee"))


def test_a_users_own_experiment_composes(recurrl_train, yamls, tmp_path):
    yamls("experiment", "long", defaults=[{"override /cell": "lstm"}], total_frames=2048)
    outcome = recurrl_train("--config-dir", "mine", "--cfg", "job", "experiment=long", cwd=tmp_path).succeeded()
    composed = typed(OmegaConf.create(outcome.out))
    assert (composed.cell.name, composed.total_frames) == ("lstm", 2048)


@pytest.mark.parametrize("group", [*GROUPS, *PRESETS])
def test_an_unknown_choice_is_rejected_with_those_that_exist(rejected, group):
    error = rejected(*(["-m"] if group == "hparams_search" else []), f"{group}=nonesuch")
    assert error.startswith(f"{group}=nonesuch does not exist. ")
    listed = error.partition("Choose one of: ")[2].rstrip(".").split(", ")
    assert {path.stem for path in (CONFIGS / group).glob("*.yaml")} <= set(listed)
    own = "or package.module:Name for a custom one"
    assert (own in listed) == (group not in PRESETS)


def test_the_nearest_choice_is_suggested(rejected):
    assert "Did you mean cell=gru?" in rejected("cell=gruu")
    assert "Did you mean env=pendulum_no_velocity?" in rejected("env=pendulum")


def test_an_unknown_name_of_a_choice_is_rejected_with_those_that_exist(rejected):
    known = ", ".join(names("algorithm"))
    assert rejected("algorithm.name=nonesuch") == (
        f"algorithm=nonesuch does not exist. Choose one of: {known}, or package.module:Name for a custom one."
    )


@pytest.mark.parametrize("group", [*GROUPS, *PRESETS])
def test_a_group_without_a_choice_is_rejected(rejected, group):
    assert rejected(f"{group}=null").startswith(f"{group} must be one of its choices (got null).")
