"""What this user's own runs named is trusted, and attacks on that: runs that were edited, copied, moved or forged."""

import os
import shlex
import shutil
import sys
from pathlib import Path

import gymnasium
import pytest
import yaml
from omegaconf import OmegaConf
from rejections import error_of
from run_files import metrics, settings

import recurrl
from recurrl.cli.hub_run import write_hub_folder
from recurrl.runs.open_run import open_run
from recurrl.runs.own_runs import is_own, remember

PARTS = """
from pathlib import Path
import gymnasium
from recurrl.config import CellConfig
from recurrl.recurrent.cells.gru import make

Path(__file__).with_name("imported").touch()
gymnasium.register("Mine-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=20)

class Outer(gymnasium.Wrapper):
    def __init__(self, env, text, flag): super().__init__(env)

def my_cell(options: CellConfig): return make(options)
"""
WRAPPERS = "env.wrappers=[{wrapper:my_parts:Outer,text:'a b\\'c',flag:false}]"
OWN = {
    "packages, a cell": ("env=gym", "env.id=Mine-v0", "env.packages=[my_parts]", "cell=my_parts:my_cell"),
    "an id, a yaml, more": ("--config-dir", "my yamls", "cell=mine", "env=gym", "env.id=my_parts:Mine-v0", WRAPPERS),
}


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """A path that exists once the user's module in the current folder has been imported."""
    (tmp_path / "my_parts.py").write_text(PARTS, encoding="utf-8")
    (tmp_path / "my yamls" / "cell").mkdir(parents=True)
    (tmp_path / "my yamls" / "cell" / "mine.yaml").write_text("defaults: [gru, _self_]\nname: my_parts:my_cell\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "my_parts", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield tmp_path / "imported"
    gymnasium.registry.pop("Mine-v0", None)


@pytest.fixture
def own_run(train, tiny, imported, tmp_path):
    """A finished run with code of the user's own, which has not been imported since."""
    train(*tiny, "cell=my_parts:my_cell", "hydra.run.dir=run").succeeded()
    imported.unlink()
    sys.modules.pop("my_parts", None)
    return tmp_path / "run"


@pytest.mark.parametrize(("kind", "known"), [*((kind, False) for kind in OWN), ("an id, a yaml, more", True)])
def test_the_printed_command_resumes_the_run(train, tiny, imported, tmp_path, signalled, capfd, kind, known):
    if not known:
        (tmp_path / "state").touch()
    options = OWN[kind][:2] if OWN[kind][0].startswith("-") else ()
    signalled(15)
    outcome = train(*options, *tiny, *OWN[kind][len(options) :], "hydra.run.dir='my runs/the \\'first\\''")
    assert outcome.code == 143, outcome.err
    printed = outcome.out.partition("to resume: ")[2].strip()
    assert f"To resume: {printed}\n" in capfd.readouterr().err
    folder, _, command = printed.partition(" && ")
    assert folder == f"cd {tmp_path}"
    assert (len(shlex.split(command)) == 2) == known
    train(*shlex.split(command)[1:]).succeeded()
    assert [row["frames"] for row in metrics(tmp_path / "my runs" / "the 'first'")] == ["32", "64"]


FROM_PYTHON = {"env": lambda: gymnasium.make("CartPole-v1"), "callbacks": [recurrl.Callback()]}


@pytest.mark.parametrize("named", ["callbacks", "env and callbacks"])
def test_of_a_run_that_no_command_line_can_name_the_call_is_printed(tiny, tmp_path, signalled, capfd, named):
    arguments = {name: FROM_PYTHON[name] for name in named.split(" and ")}
    signalled(2)
    with pytest.raises(KeyboardInterrupt):
        recurrl.train(tiny, run_dir=tmp_path / "run", **arguments)
    call, _, reason = capfd.readouterr().err.partition("To resume: ")[2].partition(", because ")
    assert reason.startswith(f"{named} can only be passed from Python\n")
    for name in arguments:
        call = call.replace(f"{name}=...", f"{name}=arguments['{name}']")
    resumed = eval(call, {"recurrl": recurrl, "arguments": arguments})
    assert (resumed.directory, resumed.summary["frames"]) == (tmp_path / "run", 64)


def test_commands_take_a_run_of_this_user_without_permission(train, evaluate, own_run, tmp_path, monkeypatch):
    for path in (own_run, own_run / "checkpoints" / "frames_000000000064"):
        assert evaluate(path).code == 0
    (tmp_path / "link").symlink_to(own_run)  # the same folder
    assert recurrl.load(tmp_path / "link").initial_state() is not None
    assert evaluate(own_run, "env.kwargs.render_mode=rgb_array").code == 0
    assert train("resume=auto", "total_frames=96", f"hydra.run.dir={own_run}").code == 0
    assert train(f"resume={own_run}", "total_frames=128", "hydra.run.dir=copy").code == 0
    assert evaluate("copy").code == 0
    for slow in ("export", "files_of"):  # exports and a video
        monkeypatch.setattr(f"recurrl.cli.hub_run.{slow}", lambda *_, **__: ())
    write_hub_folder(tmp_path / "copy", tmp_path / "hub")
    assert "names code" in error_of(recurrl.load, tmp_path / "hub")  # for others
    folder = tmp_path / "state" / "recurrl" / "own_runs"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {note.stat().st_size for note in folder.iterdir()} == {0}


# Attacks


def edited(run, old, new):
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace(old, new) if old else text + new)
    return run


def moved_and_linked(run):
    run.symlink_to(run.rename(run.with_name("moved")))
    return run


def with_a_linked_configuration(run):
    forged = run.with_name("forged")
    shutil.copytree(run / "checkpoints", forged / "checkpoints")
    (forged / "config.yaml").symlink_to(run / "config.yaml")
    return forged


def without_a_configuration(run):
    (run / "config.yaml").unlink()
    return run / LAST


def a_checkpoint_that_is_a_run(run):
    """In a run of this user: a checkpoint, with a configuration of its own."""
    return shutil.copytree(run, run / "checkpoints" / "within", ignore=shutil.ignore_patterns("within"))


def without_notes(run):
    for note in list((Path(os.environ["XDG_STATE_HOME"]) / "recurrl" / "own_runs").iterdir()):
        note.unlink()
    return run


LAST = "checkpoints/frames_000000000064"
ATTACKS = {
    "without a configuration": without_a_configuration,
    "a checkpoint alone": lambda run: shutil.copytree(run / LAST, run.with_name("alone")),
    "with another key": lambda run: edited(run, "", "init_from_another: 1\n"),
    "edited": lambda run: edited(run, "my_parts:my_cell", "my_parts:other_cell"),
    "edited elsewhere": lambda run: edited(run, "  kwargs: {}", "  kwargs: {command: rm}"),
    "copied": lambda run: shutil.copytree(run, run.with_name("copy")),
    "moved": lambda run: run.rename(run.with_name("moved")),
    "moved and linked": moved_and_linked,
    "with a linked configuration": with_a_linked_configuration,
    "a checkpoint that is a run": a_checkpoint_that_is_a_run,
    "without notes": without_notes,
}


def test_no_attack_makes_a_run_trusted(own_run, train, imported, tmp_path, monkeypatch):
    for attack, attacked_by in ATTACKS.items():
        folder, state = tmp_path / attack, tmp_path / f"state of {attack}"
        folder.mkdir()
        shutil.copytree(tmp_path / "state", state)
        monkeypatch.setenv("XDG_STATE_HOME", str(state))
        run = shutil.copytree(own_run, folder / "run")
        config = OmegaConf.create(settings(run))
        assert remember(config, run)
        assert is_own(config, run / "config.yaml")
        attacked = attacked_by(run)
        error = error_of(open_run, attacked)
        assert "names code that would be imported and executed: my_parts" in error
        assert "None of your runs wrote it, or it was changed or moved since." in error, attack
        outcome = train(f"resume='{attacked}'", "total_frames=96", "hydra.run.dir=out")
        assert "names code that would be imported" in outcome.error, (attack, outcome)
        assert not imported.exists(), attack


def test_notes_that_another_user_wrote_do_not_count(own_run, monkeypatch):
    config = OmegaConf.load(own_run / "config.yaml")
    assert is_own(config, own_run / "config.yaml")
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert not is_own(config, own_run / "config.yaml")


def test_where_nothing_can_be_noted_a_run_is_not_trusted(train, evaluate, tiny, imported, tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert train(*tiny, "cell=my_parts:my_cell", "hydra.run.dir=run").code == 0
    assert not (tmp_path / "~").exists()
    code = "executed: my_parts:my_cell. None of your runs wrote it, or it was changed or moved since. If "
    assert evaluate("run").error.endswith(f"{code}you trust it, add --trust-packages (trust_packages=True in Python).")


def test_a_run_without_code_needs_no_note(train, tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    train(*tiny, "logger=wandb", "logger.mode=disabled", "logger.group=no:code", "hydra.run.dir=run").succeeded()
    assert not (tmp_path / "state").exists()


VALUES = [1e-05, -0.0, 1e300, "1e5", "no", "", "a: b", "é\n ☃", "x" * 200, [1, [2.5, None]], {"a": {"b": True}}]


@pytest.mark.parametrize("value", VALUES)
def test_a_configuration_is_known_whatever_its_values(tmp_path, monkeypatch, value):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    config = OmegaConf.create({"env": {"id": "a:B", "kwargs": {"value": value}}})
    file = tmp_path / "config.yaml"
    file.write_text(OmegaConf.to_yaml(config), encoding="utf-8")
    assert remember(config, tmp_path)
    read = OmegaConf.create(yaml.safe_load(file.read_text(encoding="utf-8")))
    assert is_own(read, file) or value in (1e-05, 1e300)
    assert is_own(OmegaConf.load(file), file)
