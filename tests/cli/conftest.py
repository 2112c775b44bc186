"""What the tests of the command line share: commands called in folders of their own, and a run by the console."""

import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from recurrl.algorithms import Algorithm


@pytest.fixture
def train(recurrl_train, tmp_path):
    """Runs ``recurrl-train`` in this process, in a folder of its own."""
    return lambda *overrides: recurrl_train(*overrides, cwd=tmp_path)


@pytest.fixture
def evaluate(recurrl_evaluate, tmp_path):
    """Runs ``recurrl-evaluate`` in this process, in a folder of its own."""
    return lambda *arguments: recurrl_evaluate(*arguments, cwd=tmp_path)


@pytest.fixture
def signalled(monkeypatch):
    """Sends signals to this process in the middle of the first iteration's learning."""

    def signalled(*numbers):
        learn = Algorithm.update
        rest = list(numbers)

        def interrupted(*arguments, **options):
            metrics = learn(*arguments, **options)
            while rest:
                os.kill(os.getpid(), rest.pop(0))
            return metrics

        monkeypatch.setattr(Algorithm, "update", interrupted)

    return signalled


class Called(NamedTuple):
    """A command that was called: in which folder, and what it came to."""

    folder: Path
    outcome: Any


@pytest.fixture(scope="session")
def in_a_folder(tmp_path_factory):
    """Calls a command in a new folder, one that many tests can look at."""

    def in_a_folder(command, *arguments):
        folder = tmp_path_factory.mktemp("anywhere")
        return Called(folder, command(*arguments, cwd=folder))

    return in_a_folder


@pytest.fixture(scope="session")
def console_call(in_a_folder, console, tiny):
    """A run by the console command in a process of its own, in a folder that is not the repository."""
    return in_a_folder(console, "recurrl-train", *tiny, "cell=lstm", "seed=1")


@pytest.fixture(scope="session")
def console_run(console_call):
    """Its run directory."""
    assert console_call.outcome.code == 0, console_call.outcome.err
    (run,) = console_call.folder.glob("outputs/*/*")
    return run
