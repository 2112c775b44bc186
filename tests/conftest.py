"""What tests share: composing and checking configurations, and running commands in this process.

Importing torch takes seconds, so commands run in this process wherever that shows the same.
"""

import os
from pathlib import Path

# Triton decides at its import whether it interprets its kernels or compiles them, and torch imports it.
if not Path("/dev/nvidia0").exists():
    os.environ["TRITON_INTERPRET"] = "1"
# A thread of onnxruntime looks up hosts to report to. A rank that is forked meanwhile can never look one up itself.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
if "PYTEST_XDIST_WORKER" in os.environ:  # one of several processes, which share the cores
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from copy import deepcopy
from functools import cache, partial
from pkgutil import resolve_name
from unittest.mock import Mock

import gymnasium
import hydra
import pytest
import torch
import yaml
from collected import fresh_policy
from commands import Outcome, run_in_process
from omegaconf import OmegaConf
from rejections import error_of

from recurrl.agent import Agent
from recurrl.config.composed import typed
from recurrl.policy.normalization import ObservationNormalizer
from recurrl.recurrent.backends.native import library
from recurrl.runs.overrides import prepared
from recurrl.validation import check_config

# Tests list what a command wrote into the folder of a user's module.
sys.dont_write_bytecode = True


def pytest_collection_modifyitems(items):
    """Skips the tests of backend native where it cannot be compiled, and says why."""
    of_native = [item for item in items if item.get_closest_marker("native") or "native" in _choices(item)]
    problem = library.unavailable_reason() if of_native else None
    if problem is not None:
        for item in of_native:
            item.add_marker(pytest.mark.skip(reason=problem))


def _choices(item):
    """The strings among a test's parameters."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return [value for value in parameters if isinstance(value, str)]


@pytest.fixture
def fresh_compiler():
    """The compiler without what earlier tests compiled: it counts recompilations over the whole process."""
    torch.compiler.reset()


@pytest.fixture(scope="session", autouse=True)
def _cache_of_the_session(tmp_path_factory):
    """Keeps compiled kernels and the notes of own runs out of the user's folders, also in subprocesses."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RECURRL_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _short_commands():
    """Leaves out what takes half of the time of a short run in this process, and no test of one is about."""
    with pytest.MonkeyPatch.context() as patch:
        # The drawing; the file is there.
        patch.setattr("recurrl.callbacks.builtin.plot_learning_curve", lambda _, png: png.touch())
        # Hydra composes the whole configuration once more, only to read hydra.mode, which nothing sets. It has no
        # public way to leave that out.
        patch.setattr("hydra._internal.hydra.Hydra.get_mode", lambda *_, **__: None)
        yield


@pytest.fixture
def no_compiler(monkeypatch):
    """A machine without a C compiler, also for subprocesses: ``backend=auto`` is ``scan``."""
    monkeypatch.setenv("CC", "no-such-compiler")
    library.kernel.cache_clear()
    yield
    library.kernel.cache_clear()


@pytest.fixture(scope="session")
def tiny():
    """Overrides of a run of two iterations that takes less than a second."""
    frames = ["total_frames=64", "frames_per_batch=32", "env.num_envs=4", "slice_len=4", "minibatch_slices=4"]
    return ["device=cpu", *frames, "epochs=2", "cell.hidden_size=8", "encoder.sizes=[8]", "evaluation.episodes=2"]


@pytest.fixture(scope="session")
def compose_untyped():
    """Composes the configuration of a run from overrides, as Hydra does."""

    # A composition takes a third of a second.
    @cache
    def composed(overrides):
        with hydra.initialize_config_module("recurrl.configs", version_base="1.3"):
            return hydra.compose("train", prepared(overrides))

    return lambda *overrides: deepcopy(composed(overrides))


@pytest.fixture(scope="session")
def compose(compose_untyped):
    """Composes the configuration of a run from overrides, as dataclasses, not checked; ``kwargs`` are the task's."""

    def compose(*overrides, **kwargs):
        config = typed(compose_untyped(*overrides))
        config.env.kwargs |= kwargs
        return config

    return compose


@pytest.fixture(scope="session")
def small(compose, tiny):
    """The configuration of the ``tiny`` run, with further overrides: four environments, rows of 8 steps, width 8."""
    return lambda *overrides, **kwargs: compose(*tiny, *overrides, **kwargs)


@pytest.fixture(scope="session")
def agent_of(small):
    """A policy whose heads are far from zero and whose statistics have seen something, as an agent."""

    def agent_of(env_id, *overrides, **kwargs):
        config = small("env=gym", "env.packages=[tasks]", f"env.id={env_id}", *overrides, **kwargs)
        policy = fresh_policy(config, std=0.5)
        for module in policy.modules():
            if isinstance(module, ObservationNormalizer):
                module.mean.normal_()
                module.scale.uniform_(0.5, 2)
        return Agent(policy, config.env), config

    return agent_of


def _command(program, main):
    """A fixture that runs a command, a function of ``recurrl.cli``, in this process, in the folder ``cwd``."""

    @pytest.fixture(scope="session", name=program.replace("-", "_"))
    def command():
        return lambda *arguments, cwd: run_in_process(resolve_name(f"recurrl.cli.{main}"), program, arguments, cwd)

    return command


recurrl_train = _command("recurrl-train", "train:main")
recurrl_evaluate = _command("recurrl-evaluate", "evaluate:evaluate_main")
recurrl_check = _command("recurrl-check", "check:check_main")
recurrl_export = _command("recurrl-export", "export:export_main")
recurrl_upload = _command("recurrl-upload", "upload:upload_main")
recurrl_compare = _command("recurrl-compare", "compare:compare_main")
recurrl_report = _command("recurrl-report", "compare:report_main")


def _in_tmp_path(name):
    """A fixture that runs a command in the test's own folder."""

    @pytest.fixture(name=name)
    def command(request, tmp_path):
        return partial(request.getfixturevalue(f"recurrl_{name}"), cwd=tmp_path)

    return command


train, evaluate, check, upload = map(_in_tmp_path, ("train", "evaluate", "check", "upload"))


@pytest.fixture(scope="session")
def console():
    """Runs a console command of the package in a process of its own, in the folder ``cwd``."""

    def console(program, *arguments, cwd):
        command = [str(Path(sys.executable).parent / program), *arguments]
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, encoding="utf-8", timeout=300)
        return Outcome(done.returncode, done.stdout, done.stderr)

    return console


@pytest.fixture(scope="session")
def untyped_defaults(compose_untyped):
    """The defaults, with sizes that do not change with those in ``configs/``."""
    sizes = ["frames_per_batch=1024", "env.num_envs=32", "slice_len=32", "minibatch_slices=8", "total_frames=50_000"]
    return compose_untyped("device=cpu", *sizes)


HOLDER = """
import os, sys, time
from pathlib import Path
from recurrl.runtime.run_directory import locked
with locked(Path(sys.argv[1])):
    print("locked", flush=True)
    if "fork" not in sys.argv or os.fork() == 0:
        time.sleep(600)
    time.sleep(600)
"""


@pytest.fixture
def holder():
    """Starts another process, which holds the lock of a run directory."""
    started = []

    def holder(run_dir, *arguments):
        command = [sys.executable, "-c", HOLDER, str(run_dir), *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        started.append(process)
        assert process.stdout.readline() == "locked\n"
        return process

    yield holder
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def in_tmp_path(tmp_path, monkeypatch):
    """Runs the test in a folder of its own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def yamls(tmp_path):
    """Writes a yaml of the user's into the folder ``mine``."""

    def write(group, name, /, **content):
        (tmp_path / "mine" / group).mkdir(parents=True, exist_ok=True)
        text = "# @package _global_\n" * (group == "experiment") + yaml.dump(content)
        (tmp_path / "mine" / group / f"{name}.yaml").write_text(text)

    return write


@pytest.fixture
def no_environments(monkeypatch):
    """Makes it an error to make an environment."""
    monkeypatch.setattr(gymnasium, "make", Mock(side_effect=AssertionError("an environment was made")))


@pytest.fixture
def register():
    """Registers an environment with Gymnasium under a name, until the test ends."""
    names = []

    def register(make, entry_point="entry_point"):
        names.append(f"Registered-v{len(names)}")
        gymnasium.register(names[-1], **{entry_point: make})
        return names[-1]

    yield register
    for name in names:
        del gymnasium.registry[name]


@pytest.fixture
def not_installed(monkeypatch):
    """Marks a package as Python marks what cannot be imported."""
    return lambda package: monkeypatch.setitem(sys.modules, package, None)


@pytest.fixture
def rejected(recurrl_train, tmp_path, no_environments):
    """The error with which ``recurrl-train`` rejects overrides, before it makes an environment or writes anything."""

    def rejected(*overrides):
        before = sorted(tmp_path.rglob("*"))
        outcome = recurrl_train(*overrides, cwd=tmp_path)
        assert sorted(tmp_path.rglob("*")) == before
        assert outcome.error, outcome.err
        assert outcome.code == 1
        assert "Traceback" not in outcome.err
        return outcome.error

    return rejected


@pytest.fixture
def checked(untyped_defaults, no_environments):
    """Checks the defaults with some values changed, as a run does before it makes an environment."""

    def checked(changes):
        composed = deepcopy(untyped_defaults)
        for key, value in changes.items():
            OmegaConf.update(composed, key, value, merge=False, force_add=True)
        config = typed(composed)
        check_config(config, changes)
        return config

    return checked


@pytest.fixture
def rejection(checked):
    """The error with which changes of the defaults are rejected, before an environment is made."""

    return partial(error_of, checked)


@pytest.fixture(scope="session")
def finished_run(recurrl_train, tiny, tmp_path_factory):
    """The directory of a finished run of an LSTM with checkpoints at 32 and 64 frames; read-only."""
    folder = tmp_path_factory.mktemp("finished")
    ours = ["cell=lstm", "lr=3e-3", "lr_final_fraction=0.1", "checkpoint.every_frames=32", "hydra.run.dir=run"]
    recurrl_train(*tiny, *ours, cwd=folder).succeeded()
    return folder / "run"


@pytest.fixture
def run(finished_run, tmp_path):
    """A copy of the finished run in the test's own folder, to be changed."""
    return shutil.copytree(finished_run, tmp_path / "run")
