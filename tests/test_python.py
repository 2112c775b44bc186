"""The package as a library: ``recurrl.train`` and ``recurrl.load``."""

import json
import logging
import os
import random
import shutil
import signal
import sys
from dataclasses import asdict, replace
from itertools import cycle, product
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoint_files import resealed
from commands import output_of
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from rejections import error_of
from run_files import lasting, metrics, settings, summary, without_times
from slow_cases import slow

import recurrl
from recurrl import checkpoint
from recurrl.api import overrides_of
from recurrl.config.composed import as_schema, resolved
from recurrl.config.run import PRECISIONS
from recurrl.errors import ConfigError, RunError
from recurrl.recurrent.backends.native import library
from recurrl.recurrent.choice import AUTO, BACKENDS
from recurrl.runs.open_run import open_run
from recurrl.validation import check_config

pytestmark = pytest.mark.usefixtures("in_tmp_path")


def test_importing_the_package_does_not_import_torch():
    code = "import recurrl, sys; print('torch' in sys.modules, recurrl.__version__)"
    assert output_of([sys.executable, "-c", code], timeout=120).split() == ["False", recurrl.__version__]
    assert "no attribute 'lode'" in error_of(lambda: recurrl.lode, kind=AttributeError)


def test_it_is_the_run_of_the_command(recurrl_train, tiny, tmp_path, request):
    recurrl_train(*tiny, "hydra.run.dir=command", cwd=tmp_path).succeeded()
    request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    torch.set_default_dtype(torch.float64)  # the process's, not the run's
    run = recurrl.train(tiny, run_dir="python")
    assert torch.get_default_dtype() == torch.float64
    torch.set_default_dtype(torch.float32)
    assert run.summary["status"] == "completed"
    assert run.summary == summary(tmp_path / "python")

    def written(folder):
        paths = sorted(path.relative_to(folder) for path in folder.rglob("*"))
        return paths, without_times(metrics(folder)), (folder / "config.yaml").read_text()

    assert written(tmp_path / "python") == written(tmp_path / "command")


def test_nothing_of_the_process_changes(tiny):
    def state_of_process():
        loggers = [logging.getLogger(name) for name in ("", "recurrl", "torchrl")]
        return [
            *(random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()),
            torch.get_num_threads(),
            [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM)],
            [(each.level, each.handlers[:]) for each in loggers],
            *(GlobalHydra.instance().is_initialized(), HydraConfig.initialized(), dict(os.environ), os.getcwd()),
        ]

    before = state_of_process()
    recurrl.train([*tiny, "num_threads=1"], run_dir="run").load(device=torch.device("cpu"))
    assert state_of_process() == before
    assert "slice_len" in error_of(recurrl.train, [*tiny, "slice_len=5"])
    assert state_of_process() == before
    assert not Path("outputs").exists()  # of a run that was rejected nothing is left


def test_an_early_signal_has_an_exit_code_too(monkeypatch):
    monkeypatch.setattr(recurrl.api, "compose", lambda *_: signal.raise_signal(signal.SIGINT))
    # The message of recurrl's KeyboardInterrupt, which has one.
    assert error_of(recurrl.train, kind=KeyboardInterrupt) == "interrupted by SIGINT"


def test_a_mapping_is_a_configuration_too(tiny):
    sizes = {"device": "cpu", "total_frames": 64, "frames_per_batch": 32, "env.num_envs": 4, "slice_len": 4}
    nested = {"encoder": {"sizes": [8]}, "cell": "lstm", "evaluation": {"episodes": 2}, "cell.hidden_size": 8}
    run = recurrl.train({**sizes, **nested, "minibatch_slices": 4}, run_dir="run")
    assert run.summary["cell"] == "lstm"
    recurrl.train("resume=run total_frames=96")
    whole = settings(run.directory)
    again = recurrl.train(whole, run_dir="again")  # a new run
    assert settings(again.directory) == whole


@pytest.mark.parametrize("options", ["-m", "--multirun", "-m --config-dir=mine"])
def test_a_call_is_one_run(tmp_path, options):
    several = "seed=0,1 has several values. Add -m before it to run each; in Python, call train for each."
    assert error_of(recurrl.train, "seed=0,1").startswith(several)
    what = f"Options are for recurrl-train only (got {options}). From Python, call train with overrides; instead"
    assert error_of(recurrl.train, f"{options} seed=0,1") == f"{what} of a sweep, once for each value."
    needed = "resume=auto needs a directory that lasts (run_dir=... in Python)"
    assert error_of(recurrl.train, "resume=auto").startswith(needed)
    assert list(tmp_path.iterdir()) == []
    assert error_of(recurrl.train, "env.id='x").startswith("env.id='x is not a command line: No closing quotation.")
    (tmp_path / "file").touch()
    assert "file" in error_of(recurrl.train, "", run_dir=tmp_path / "file", kind=RunError)


def test_text_in_a_mapping_stays_text():
    config = {"env.kwargs": {"text": "a='b', [c]", "null": "null", "number": 1e-5, "none": None, "yes": True}}
    config["env.kwargs"] |= {"numpy": np.float64(1e-5), "count": np.int64(3)}
    parsed = OverridesParser.create().parse_overrides(overrides_of(config))
    assert {each.key_or_group.removeprefix("env.kwargs."): each.value() for each in parsed} == config["env.kwargs"]
    assert overrides_of({"env": {"name": "mine", "source": "torchrl"}})[0] == "env=gym"
    whole = overrides_of({"env": {"source": "gymnasium", "kwargs": {"a": 1}}})
    assert whole == ["~env.kwargs", "+env.kwargs={a:1}", "env.source=gymnasium"]  # without those of a preset
    assert "cannot be a value" in error_of(overrides_of, {"seed": object()})


def test_a_callback_sees_each_iteration_and_does_not_change_the_run(tiny):
    config = [*tiny, "total_frames=96", "evaluation.every_frames=64"]
    seen = []

    class Acting:
        def on_iteration(self, metrics, agent):
            seen.append(dict(metrics))
            env, state = agent.make_env(), agent.initial_state()
            action, _ = agent.act(env.reset(seed=0)[0], state, deterministic=False)  # draws random numbers
            assert env.action_space.contains(action)

    watched = recurrl.train(config, run_dir="watched", callbacks=[Acting()])
    alone = recurrl.train(config, run_dir="alone")
    assert [row["frames"] for row in seen] == [32, 64, 96]
    assert ["eval/return_mean" in row for row in seen] == [False, True, True]
    assert lasting(watched.directory) == lasting(alone.directory)


@pytest.mark.parametrize("which", ["best", "last"])
def test_a_loaded_policy_plays_as_its_evaluation_does(finished_run, which):
    expected = open_run(finished_run, which).evaluate(episodes=1, seed=4)["kept"]
    assert recurrl.load(finished_run, which).evaluate(episodes=1, seed=4) == expected


def on_machine(monkeypatch, gpus):
    """A machine with ``gpus`` GPUs, and with compilers only if it has any."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setenv("CXX", "g++" if gpus else "no-such-compiler")
    monkeypatch.setattr(library, "unavailable_reason", lambda: None if gpus else "There is no compiler.")


COMPUTED = [
    *((name, {"precision": precision}) for name, precision in product((AUTO, *BACKENDS), PRECISIONS)),
    *((AUTO, each) for each in ({"compile": "loss"}, {"compile": "cudagraphs"}, {"recompute": "full"})),
]
"""The ways to compute sequences: a backend, and another option. What a machine has decides on each alone, and on a
backend's precision."""


@pytest.mark.parametrize("device", ["auto", "cuda", slow("cuda:1"), "cpu"])
@pytest.mark.parametrize(("trained", "used"), [(2, 0), (0, 2), slow(2, 2)], ids=["to a CPU", "to a GPU", "on GPUs"])
def test_a_run_of_another_machine_can_be_opened_whatever_it_computed_with(run, monkeypatch, device, trained, used):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    saved = as_schema(OmegaConf.load(run / "config.yaml"))
    devices = ("cpu", *(["cuda"] if used else []), *([None] if used or device in ("auto", "cpu") else []))
    opened, in_turn = 0, cycle(devices)
    for name, options in COMPUTED:
        on_machine(monkeypatch, trained)
        config = replace(saved, device=device, backend=replace(saved.backend, name=name), **options)
        (run / "config.yaml").write_text(json.dumps(asdict(config)))
        try:
            check_config(resolved(config))
        except ConfigError:
            continue
        on_machine(monkeypatch, used)
        # One of these two takes each precision; the others need not be opened on every device.
        for on in devices if name in (AUTO, "triton") else [next(in_turn)]:
            assert open_run(run, device=on).config.device == on or on is None, config
            opened += 1
    assert opened > 15 if trained or not device.startswith("cuda") else opened == 0  # no such run


def test_what_cannot_be_loaded_is_rejected(finished_run, run):
    assert "does not exist" in error_of(recurrl.load, "nowhere")
    assert "which must be best or last (got newest)." in error_of(recurrl.load, finished_run, "newest")
    for path in run.glob("checkpoints/*"):
        resealed(path, lambda manifest: manifest.update(metrics={}))
    assert "holds no evaluated checkpoint: its run has not reached an evaluation" in error_of(recurrl.load, run)
    recurrl.load(run, "last")
    shutil.rmtree(run / "checkpoints")
    assert "holds no checkpoint: its run ended before it wrote one" in error_of(recurrl.load, run, "last")


class Kept(recurrl.Callback):
    """A callback with a state."""

    def state_dict(self):
        return {"a": 1}

    def load_state_dict(self, state):
        assert state == {"a": 1}


def test_a_run_goes_on_in_its_directory_and_prints_warnings_where_no_logging_is_set_up(tiny, monkeypatch, capsys):
    recurrl.train(tiny, run_dir="run", callbacks=[Kept()])
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    resumed = recurrl.train({"resume": "run", "total_frames": 96})
    printed = capsys.readouterr().err
    assert printed.count("[WARNING] - The checkpoint has states of callbacks that this run lacks: Kept.") == 1
    assert "[INFO]" not in printed
    assert (resumed.directory, len(metrics(Path("run")))) == (Path("run").absolute(), 3)


def test_a_checkpoint_of_another_version_says_so(tiny, monkeypatch, caplog):
    with monkeypatch.context() as other:
        other.setattr(checkpoint, "__version__", "0.0.7")
        run = recurrl.train(tiny, run_dir="run")
    run.load()
    assert f"was written by recurrl 0.0.7, and this is recurrl {recurrl.__version__}." in caplog.text
