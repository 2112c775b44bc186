import os

import pytest
import wandb

from recurrl.config import LoggerConfig, WandbConfig


@pytest.fixture
def logger_options():
    """Makes the options of a logger."""

    def options(name="csv", mode="auto", project="memory", run_id=None, artifacts=False):
        if name != "wandb":
            return LoggerConfig(name=name)
        values = {"group": None, "job_type": None, "tags": [], "artifacts": artifacts}
        return WandbConfig(name=name, mode=mode, project=project, id=run_id, **values)

    return options


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A home without wandb files, and wandb's state as in a new process."""
    wandb.teardown()
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("NETRC", raising=False)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home)
    yield home
    wandb.teardown()
