"""What the tests of the command line share: commands called in folders of their own, and a run by the console."""

import os
import sys

import pytest
from hostile_runs import PACKAGE

from recurrl.algorithms import Algorithm


@pytest.fixture
def signalled(monkeypatch):
    """Sends signals to this process, or to a rank, in the middle of the first iteration's learning."""

    def signalled(*numbers, rank=None):
        learn = Algorithm.update
        rest = list(numbers)

        def interrupted(algorithm, rollout_NT, progress):
            metrics = learn(algorithm, rollout_NT, progress)
            while rest and rank in (None, os.environ.get("RANK")):
                os.kill(os.getpid(), rest.pop(0))
            return metrics

        monkeypatch.setattr(Algorithm, "update", interrupted)

    return signalled


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """A path that exists once a package has been imported that only settings of strangers name."""
    marker = tmp_path / "code has run"
    for file in ("__init__.py", "sub.py"):
        path = tmp_path / "packages" / PACKAGE / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"import os\nos.makedirs({str(marker)!r}, exist_ok=True)\n")
    monkeypatch.syspath_prepend(tmp_path / "packages")
    monkeypatch.delitem(sys.modules, PACKAGE, raising=False)
    return marker


@pytest.fixture(scope="session")
def console_call(console, tiny, tmp_path_factory):
    """A run by the console command in another process, in a folder that is not the repository; what it printed."""
    folder = tmp_path_factory.mktemp("anywhere")
    return folder, console("recurrl-train", *tiny, "cell=lstm", "seed=1", cwd=folder).succeeded().out


@pytest.fixture(scope="session")
def console_run(console_call):
    """Its run directory."""
    (run,) = console_call[0].glob("outputs/*/*")
    return run
