import os

import pytest
import wandb
from wandb_server import WandbServer

from recurrl.config import LoggerConfig, WandbConfig


@pytest.fixture
def logger_options():
    """Makes the options of a logger."""

    def options(name="csv", mode="auto"):
        if name != "wandb":
            return LoggerConfig(name=name)
        return WandbConfig(name=name, mode=mode, project="memory", id=None, group=None, tags=[])

    return options


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A home without wandb files, a server that does not answer, and wandb's state as in a new process."""
    wandb.teardown()
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("NETRC", raising=False)
    # Rejects connections at once; wandb's telemetry would wait for its own server.
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home)
    yield home
    wandb.teardown()


@pytest.fixture
def server(machine, monkeypatch):
    """A recording server, with a login that only a server could reject."""
    server = WandbServer()
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", server.url)
    yield server
    wandb.teardown()
    server.stop()


@pytest.fixture
def trained(machine, recurrl_train, tiny, tmp_path):
    """Trains with wandb in the directory ``run``."""
    return lambda *overrides: recurrl_train(*tiny, "logger=wandb", "hydra.run.dir=run", *overrides, cwd=tmp_path)
