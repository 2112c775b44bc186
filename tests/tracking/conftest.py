import os
from types import SimpleNamespace

import pytest
import wandb


@pytest.fixture
def config_for():
    """Builds the part of a run's configuration that tracking uses."""

    def config(logger="csv", mode=None, project=None, resume=None, run_id=None):
        return SimpleNamespace(
            logger=SimpleNamespace(name=logger, mode=mode, project=project, id=run_id), resume=resume
        )

    return config


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
