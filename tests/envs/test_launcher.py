"""What a simulator needs before torch is imported."""

import os

import pytest
from slow_cases import slow

import recurrl
from recurrl.errors import ConfigError

APP = """
import sys
from pathlib import Path

def launch():
    with Path("calls").open("a") as file:
        file.write(f"launched {'torch' in sys.modules}\\n")

def make(num_envs):
    from simulators import Simulation

    with Path("calls").open("a") as file:
        file.write("made\\n")
    return Simulation(num_envs)
"""


@pytest.fixture
def app(tmp_path, monkeypatch):
    (tmp_path / "app.py").write_text(APP)
    monkeypatch.setenv("PYTHONPATH", str(__file__).rpartition("/")[0], prepend=os.pathsep)
    return ["env=vec_env", "env.id=app:make", "env.launcher=app:launch"]


def called(console, tmp_path, *command):
    """What the app recorded of a command, in order."""
    console(*command, cwd=tmp_path).succeeded()
    calls = tmp_path / "calls"
    found = calls.read_text().splitlines()
    calls.unlink()
    return found


@pytest.mark.parametrize("count", [1, slow(5)], ids=["training", "every command"])
def test_it_is_called_before_torch_is_imported(console, tiny, app, tmp_path, count):
    commands = (
        ("recurrl-train", *tiny, *app, "hydra.run.dir=run"),
        ("recurrl-train", "resume=run", "total_frames=96"),
        ("recurrl-evaluate", "run", "--episodes", "2"),
        ("recurrl-export", "run", "--format", "onnx"),
        ("recurrl-check", *tiny, *app),
    )
    for command in commands[:count]:
        assert called(console, tmp_path, *command) == ["launched False", "made"], command


def test_it_is_an_error_once_torch_is_imported(tiny, app, tmp_path, in_tmp_path):
    with pytest.raises(ConfigError, match=r"env\.launcher=app:launch must be called before torch is imported"):
        recurrl.train([*tiny, *app], run_dir="run")
    assert not (tmp_path / "calls").exists()
