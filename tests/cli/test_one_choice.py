"""One choice of each group, whose values are for one environment; several loggers."""

import shutil

import pytest
from rejections import error_of
from run_files import settings, summary

import recurrl
from recurrl.config.composed import as_schema
from recurrl.config.plugins import GROUPS, PRESETS, yaml_names, yaml_values
from recurrl.errors import ConfigError
from recurrl.runs.overrides import compose

FOREIGN = (
    "env.id must be CartPole-v1 with env=cartpole_no_velocity (got Acrobot-v1), because the other settings of "
    "env=cartpole_no_velocity are for that environment. "
)
ADVICE = "Use env=gym env.id=Acrobot-v1."


@pytest.mark.parametrize("env", yaml_names("env"))
def test_what_a_yaml_says_of_its_environment_applies_to_no_other(env):
    declared = yaml_values("env", env)
    its_own = [each.replace("*", "Any") for each in (declared["id"].replace("???", "Acrobot-v1"), *declared["ids"])]
    for env_id in [*its_own, f"package:{its_own[-1]}"] if declared["ids"] else its_own:
        assert compose([f"env={env}", f"env.id={env_id}"]).env.id == env_id
    if declared["id"] != "???" or declared["ids"]:
        with pytest.raises(ConfigError, match=f"^env.id must be .* with env={env} .* Use env=gym .*env.id=Other-v1"):
            compose([f"env={env}", "env.id=Other-v1"])


def test_a_foreign_id_is_an_error_wherever_it_comes_from(rejected, yamls, in_tmp_path):
    yamls("experiment", "acrobot", env={"id": "Acrobot-v1"})
    yamls("env", "masked", defaults=["gym", "_self_"], id="CartPole-v1", mask=[1, 3])
    for overrides in (["env.id=Acrobot-v1"], ["--config-dir", "mine", "experiment=acrobot"]):
        assert rejected(*overrides) == FOREIGN + ADVICE
    assert rejected("--config-dir", "mine", "env=masked", "env.id=Acrobot-v1").endswith(ADVICE)
    assert rejected("env.id=MiniGrid-Empty-5x5-v0").endswith(" Use env=minigrid env.id=MiniGrid-Empty-5x5-v0.")
    for config in (["env.id=Acrobot-v1"], {"env": {"id": "Acrobot-v1"}}):
        assert FOREIGN in error_of(recurrl.train, config, run_dir="run")


def test_a_searched_folder_that_does_not_exist_is_an_error(rejected, yamls, in_tmp_path):
    yamls("env", "masked", defaults=["gym", "_self_"], id="CartPole-v1")
    assert rejected("hydra.searchpath=[file://mine]", "env=masked", "env.id=Acrobot-v1").endswith(ADVICE)
    for name in ("josé", "a (copy)", "a=1, b", "it's", '#1 & "2"'):
        assert compose(["env=masked"], shutil.copytree("mine", name)).env.id == "CartPole-v1"
    error = "hydra.searchpath must hold folders that exist (got file:///nope). Correct it, or leave it out."
    assert rejected("hydra.searchpath=[file:///nope]") == error


def test_a_resumed_run_keeps_its_environments_values(train, finished_run):
    outcome = train(f"resume={finished_run}", "env.id=CartPole-v0", "total_frames=96", "hydra.run.dir=run").succeeded()
    assert "resuming with env.id=CartPole-v0, which was CartPole-v1" in outcome.out


@pytest.mark.parametrize("group", [group for group in (*GROUPS, *PRESETS) if group != "logger"])
def test_a_list_for_a_group_is_an_error(rejected, yamls, group):
    several = ",".join([*yaml_names(group), "any"][:2])
    wrong = f"{group} must be one of its choices (got a list). Choose one; -m {group}={several}"
    for options in ([], ["--cfg", "job"], ["--cfg", "all"], ["-m"]):
        assert rejected(*options, f"{group}=[{several}]") == f"{wrong} starts a run for each."
    assert rejected("-m", f"{group}=[{several}],{several}").startswith(wrong)
    if group in GROUPS:
        yamls("experiment", "both", defaults=[{f"override /{group}": list(yaml_names(group)) * 2}])
        error = rejected("--config-dir", "mine", "experiment=both")
        assert error.startswith(f"{group} must be one of its choices (got a list in a yaml). Choose one;")


def test_several_loggers_take_the_same_metrics(train, tiny, tmp_path):
    train(*tiny, "logger=[wandb,tensorboard]", "logger.mode=offline", "hydra.run.dir=run").succeeded()
    run = tmp_path / "run"
    assert {"wandb", "tensorboard", "metrics.csv"} <= {path.name for path in run.iterdir()}
    assert summary(run)["status"] == "completed"
    assert settings(run)["logger"]["name"] == ["wandb", "tensorboard"]
    again = recurrl.train(settings(run), run_dir=tmp_path / "again")
    assert settings(again.directory)["logger"] == settings(run)["logger"]


def test_several_loggers_may_have_yamls_of_the_users(yamls, in_tmp_path):
    yamls("logger", "board", defaults=["tensorboard", "_self_"])
    assert compose(["logger=[wandb,board]"], "mine").logger.name == ["wandb", "tensorboard"]
    yamls("logger", "mine", name="recurrl.tracking.wandb:make")
    assert as_schema(compose(["logger=[tensorboard,mine]"], "mine")).logger.project == "recurrl"


def test_of_several_loggers_each_is_checked(rejected):
    assert rejected("logger=[tensorboard,nonesuch]").startswith("logger=nonesuch does not exist.")
    assert rejected("logger=[csv,tensorboard]", "logger.mode=offline").startswith("logger.mode is an option of")
