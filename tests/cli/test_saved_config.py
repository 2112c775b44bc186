"""Saved configurations that are malformed or name code: the errors of each command that reads them."""

import pytest
import yaml
from hostile_runs import PACKAGE
from omegaconf import OmegaConf
from rejections import error_of
from run_files import settings

from recurrl.config.plugins import GROUPS
from recurrl.runs.open_run import open_run


@pytest.fixture
def errors_of(recurrl_train, recurrl_evaluate, tmp_path):
    """What each command that reads a saved configuration says of a run."""

    def errors_of(run):
        outcomes = {
            "resume": recurrl_train(f"resume={run}", "total_frames=96", "hydra.run.dir=out", cwd=tmp_path),
            "auto": recurrl_train("resume=auto", "total_frames=96", f"hydra.run.dir={run}", cwd=tmp_path),
            "evaluate": recurrl_evaluate(run, cwd=tmp_path),
        }
        for name, outcome in outcomes.items():
            assert "Traceback" not in outcome.failed().err, (name, outcome.err)
        return {name: outcome.error for name, outcome in outcomes.items()}

    return errors_of


MALFORMED = {
    "empty": b"",
    "cut off": b"env: {name: gym, id: Cart",
    "not UTF-8": b"env: \xff\xfe",
    "binary": b"\0\1\2",
    "a list": b"- env\n",
    "a group without keys": b"env: gym\n",
    "an alias": b"env: &a {x: 1}\ncell: *a\n",
    "a resolver": b"seed: ${oc.env:HOME}\n",
    "an object": b"seed: !!python/object/apply:os.getcwd []\n",
    "nested too deeply": b"[" * 2**20,  # hours for the parser alone
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_configuration_is_named(run, kind):
    (run / "config.yaml").write_bytes(MALFORMED[kind])
    error = error_of(open_run, run)
    assert str(run / "config.yaml") in error
    assert "Correct it; or delete it and use one of the run's checkpoints" in error
    assert len(error.splitlines()) == 1


DO_NOT_FIT = [
    ("epochs", "many", "epochs must be an integer"),
    ("nonesuch", 1, "Unknown configuration key 'nonesuch'."),
    ("env", {"name": "gym"}, "is required and has no value."),
]


@pytest.mark.parametrize(("key", "value", "reason"), DO_NOT_FIT)
def test_keys_and_types_that_do_not_fit_are_named_with_the_file(run, errors_of, key, value, reason):
    (run / "config.yaml").write_text(yaml.dump(settings(run) | {key: value}), encoding="utf-8")
    for name, error in errors_of(run).items():
        assert reason in error, name
        assert str(run) in error, name


def test_errors_of_the_command_line_do_not_name_the_file(train, run):
    assert str(run) not in train(f"resume={run}", "total_frames=-1").error
    assert train(f"resume={run}", "total_frames=many").error.startswith("total_frames must be an integer")


def test_a_configuration_is_saved_with_what_its_values_refer_to_resolved(train, tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("EPOCHS", "1")
    assert train(*tiny, "epochs=${oc.env:EPOCHS}", "hydra.run.dir=run").code == 0
    assert "${" not in (tmp_path / "run" / "config.yaml").read_text(encoding="utf-8")
    monkeypatch.setenv("EPOCHS", "many")
    assert train("resume=run", "total_frames=96").code == 0


# Packages


def name_packages(run, *packages):
    values = settings(run)
    values["env"]["packages"] = list(packages)
    (run / "config.yaml").write_text(yaml.dump(values), encoding="utf-8")


def test_packages_that_only_a_run_names_are_listed_and_not_imported(run, errors_of, stranger):
    name_packages(run, PACKAGE, "os")
    errors = errors_of(run)
    assert not stranger.exists()
    for name, error in errors.items():
        assert f"names code that would be imported and executed: os, {PACKAGE}." in error, name
        assert str(run / "config.yaml") in error, name
    assert "add --trust-packages" in errors["evaluate"]
    assert f"name it on this command line too: 'env.packages=[{PACKAGE},os]'." in errors["resume"]


def test_packages_that_are_named_again_are_imported(train, evaluate, run, stranger):
    name_packages(run, PACKAGE)
    assert evaluate(run, "--trust-packages").code == 0
    assert stranger.exists()
    assert train(f"resume={run}", "total_frames=96", "env.packages=[os]").code == 0
    assert train(f"resume={run}", "total_frames=128", f"env.packages=[{PACKAGE}]").code == 0


NAMED = "names code that would be imported and executed: "

WRAPPER, SIZED = f"{PACKAGE}:Outer", {"wrapper": f"{PACKAGE}:Inner", "size": 3}
VIDEO = {"wrapper": "gymnasium.wrappers:RecordVideo", "video_folder": "/home"}
NAMING_CODE = [
    ({"env.id": f"{PACKAGE}:Some-v0"}, f"{NAMED}{PACKAGE}:Some-v0."),
    ({"env.wrappers": [WRAPPER, SIZED]}, f"{NAMED}{PACKAGE}:Inner with {{'size': 3}}, {PACKAGE}:Outer."),
    ({"env.wrappers": [VIDEO]}, f"{NAMED}gymnasium.wrappers:RecordVideo with {{'video_folder'"),
    ({"env.wrappers": [{"wrapper": [WRAPPER]}]}, "config.yaml: env.wrappers must hold package.module:"),
    ({"env.wrappers": WRAPPER}, "env.wrappers must be a list"),
    ({"env.id": "GymV26Environment-v0", "env.kwargs": {"env_id": f"{PACKAGE}:Some-v0"}}, NAMED),
    ({"env.kwargs": {"wrapper": [{"entry": f"{PACKAGE}:Some"}]}}, f"{NAMED}{PACKAGE}:Some."),
    ({"env.source": PACKAGE}, f"env.source={PACKAGE} does not exist"),
    ({"logger.name": f"{PACKAGE}.sub:Notes.close:x"}, NAMED),
    *(({f"{group}.name": f"{PACKAGE}:Some"}, f"{NAMED}{PACKAGE}:Some.") for group in GROUPS if group != "env"),
    *(({key: f"{PACKAGE}:Some"}, f"{NAMED}{PACKAGE}:Some.") for key in ("env.source", "logger.extra", "nonesuch")),
    ({"env.mask": [f"{PACKAGE}:Some"]}, f"{NAMED}{PACKAGE}:Some."),
]


@pytest.mark.parametrize(("change", "reason"), NAMING_CODE, ids=str)
def test_code_is_found_wherever_a_saved_configuration_names_it(run, stranger, change, reason):
    config = OmegaConf.load(run / "config.yaml")
    for key, value in change.items():
        OmegaConf.update(config, key, value, merge=False)
    OmegaConf.save(config, run / "config.yaml")
    assert reason in error_of(open_run, run)
    assert not stranger.exists()


def test_wrappers_of_gymnasium_and_of_our_extras_need_no_permission(train, evaluate, run):
    clips = "env.wrappers=[{wrapper:gymnasium.wrappers:ClipReward,max_reward:1}]"
    assert train(f"resume={run}", "total_frames=96", clips, "hydra.run.dir=clipped").code == 0
    assert evaluate("clipped").code == 0
    assert train("resume=clipped", "total_frames=128").code == 0
