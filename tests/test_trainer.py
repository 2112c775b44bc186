"""The training loop and its callbacks."""

import shutil
import signal
from operator import setitem
from pathlib import Path

import numpy as np
import pytest
import torch
from run_files import column, ended

import recurrl
from recurrl.callbacks import Callbacks
from recurrl.errors import ConfigError, RunError
from recurrl.evaluation import StoppedError
from recurrl.runtime.ranks import World

pytestmark = pytest.mark.usefixtures("in_tmp_path")


def callback(name="Mine", base=recurrl.Callback, **methods):
    """A callback with these methods. With another base it sees metrics and an agent."""
    return type(name, (base,), methods)()


class Counter:
    """Counts iterations, through a resume too."""

    def __init__(self):
        self.seen = []

    def on_iteration(self, metrics, agent):
        self.seen.append(metrics["frames"])

    def state_dict(self):
        return {"seen": list(self.seen)}

    def load_state_dict(self, state):
        self.seen = state["seen"]


class RecordingCallback(recurrl.Callback):
    """Notes the calls of a callback that sees the trainer, and stops the run after an iteration."""

    def __init__(self, stop_after=0):
        self.calls = []
        self.stop_after = stop_after

    def on_start(self, trainer):
        self.calls.append(f"start at {trainer.frames}")

    def on_rollout(self, trainer, rollout):
        self.calls.append(f"rollout of {rollout.numel()}")
        return {"mine/calls": len(self.calls)}

    def on_iteration(self, trainer, metrics):
        self.calls.append(f"iteration to {trainer.frames}")
        metrics["mine/frames"] = np.int64(trainer.frames)
        return trainer.frames == self.stop_after

    def on_end(self, trainer):
        self.calls.append("end")

    def close(self, failed):
        self.calls.append(f"close, failed: {failed}")


def test_callbacks_run_in_order_add_metrics_stop_the_run_and_keep_their_states(tiny):
    config = [*tiny, "total_frames=96"]
    first, whole = [Counter(), Counter()], RecordingCallback(stop_after=64)
    run = recurrl.train(config, run_dir="run", callbacks=[*first, whole])
    assert (run.summary["status"], run.summary["frames"]) == ("stopped", 64)
    assert None not in (run.summary["eval_return_mean"], run.summary["eval_return_mean_zeroed_state"])
    run.load("best")
    assert whole.calls == [
        *("start at 0", "rollout of 32", "iteration to 32", "rollout of 32", "iteration to 64"),
        *("end", "close, failed: False"),
    ]
    assert "mine/calls" in Path("run/metrics.csv").read_text()
    resumed, other = [Counter(), Counter()], RecordingCallback()
    again = recurrl.train(["resume=auto"], run_dir="run", callbacks=[*resumed, other])
    assert (again.summary["status"], again.summary["frames"]) == ("completed", 96)
    assert [counter.seen for counter in resumed] == [[32, 64, 96]] * 2
    assert other.calls[0] == "start at 64"


def test_a_callback_may_evaluate_in_its_own_way(tiny, caplog):
    own = recurrl.Callback()
    own.on_iteration = lambda trainer, metrics: metrics.update({"eval/return_mean": float(trainer.frames)})
    run = recurrl.train([*tiny, "evaluation.every_frames=64", "total_frames=128"], run_dir="run", callbacks=[own])
    assert (run.summary["best_eval_return_mean"], run.summary["status"]) == (128, "completed")
    assert run.load("best").evaluate(1)


def test_a_run_extended_from_a_checkpoint_of_its_end_has_the_states_after_it(tiny):
    # That checkpoint is first written before the evaluation, which callbacks run after.
    recurrl.train([*tiny, "total_frames=64", "checkpoint.every_frames=32"], run_dir="run", callbacks=[Counter()])
    extended = Counter()
    recurrl.train(["resume=run", "total_frames=96"], run_dir="extended", callbacks=[extended])
    assert extended.seen == [32, 64, 96]
    assert [column(Path(name), "frames") for name in ("run", "extended")] == [[32, 64], [32, 64, 96]]
    first = Counter()
    recurrl.train(["resume=run/checkpoints/frames_000000000032"], run_dir="first", callbacks=[first])
    assert first.seen == [32, 64]


def test_of_a_state_that_is_not_restored_the_callback_is_named(tiny, caplog):
    config = [*tiny, "total_frames=64", "checkpoint.every_frames=32"]
    recurrl.train(config, run_dir="run", callbacks=[Counter()])
    resume = "resume=run/checkpoints/frames_000000000032"
    misreads = callback("Counter", Counter, load_state_dict=lambda _, state: state["count"])
    with pytest.raises(ConfigError, match="load_state_dict of the callback Counter fails with KeyError: 'count'"):
        recurrl.train([resume], run_dir="misread", callbacks=[misreads])
    recurrl.train([resume], run_dir="without")
    assert "has states of callbacks that this run lacks: Counter." in caplog.text
    recurrl.train(["resume=without", "total_frames=96"], run_dir="again", callbacks=[Counter()])
    assert "has no states of these callbacks, which start fresh: Counter." in caplog.text


UNSAVABLE = [
    callback("MetricsAndPolicy", Counter, state_dict=lambda _: {"best": np.random.default_rng(0)}),
    callback("TheWholeRun", state_dict=lambda _: {"best": np.zeros(3)}, load_state_dict=Counter.load_state_dict),
]


@pytest.mark.parametrize("unsavable", UNSAVABLE, ids=lambda each: type(each).__name__)
def test_a_state_that_could_not_be_restored_is_an_error_when_it_is_saved(unsavable, tiny):
    name = type(unsavable).__name__
    with pytest.raises(RunError, match=rf"state_dict\(\) of {name} must return tensors and plain values"):
        recurrl.train(tiny, run_dir="run", callbacks=[unsavable])


@pytest.mark.parametrize("state", [0, torch.zeros(2)])
def test_a_state_may_be_a_number_or_a_tensor(state):
    assert Callbacks([callback(state_dict=lambda _: state)]).state_dict().keys() == {"Mine"}


def test_a_run_that_is_stopped_during_a_rollout_is_evaluated_once(tiny, monkeypatch):
    evaluations = []
    monkeypatch.setattr(recurrl.evaluation, "evaluate", lambda *_: evaluations.append("kept") or [1.0, 2.0])
    stops = callback(on_rollout=lambda _, trainer, __: trainer.stop())
    recurrl.train([*tiny, "evaluation.memory=false", "evaluation.random=false"], run_dir="run", callbacks=[stops])
    assert evaluations == ["kept"]


def test_a_run_that_is_stopped_before_its_first_iteration_ends_without_an_evaluation(tiny):
    stops_at_once = callback(on_start=lambda _, trainer: trainer.stop())
    run = recurrl.train([*tiny, "total_frames=96"], run_dir="run", callbacks=[stops_at_once])
    assert [run.summary[key] for key in ("status", "frames", "eval_return_mean")] == ["stopped", 0, None]


@pytest.mark.parametrize(("base", "place"), [(object, 0), (recurrl.Callback, 1)])
def test_metrics_that_a_callback_adds_are_logged(tiny, base, place):
    adds = callback(base=base, on_iteration=lambda _, *arguments: setitem(arguments[place], "mine", 1.0))
    run = recurrl.train(tiny, run_dir="run", callbacks=[adds])
    assert column(run.directory, "mine") == [1.0, 1.0]


def test_no_callback_is_called_for_an_iteration_whose_evaluation_a_signal_stopped(tiny, monkeypatch):
    def stopped(*_):
        signal.raise_signal(signal.SIGTERM)
        raise StoppedError

    whole, counter = RecordingCallback(), Counter()
    config = [*tiny, "total_frames=96", "evaluation.every_frames=64"]
    with monkeypatch.context() as patch:
        patch.setattr(recurrl.evaluation, "evaluate", stopped)
        with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
            recurrl.train(config, run_dir="run", callbacks=[whole, counter])
    assert [call for call in whole.calls if "iteration" in call] == ["iteration to 32"]
    assert counter.seen == [32]
    shutil.copytree("run", "stopped")
    stopped_at_once = recurrl.train(["resume=auto"], run_dir="stopped", callbacks=[RecordingCallback(64), Counter()])
    assert [stopped_at_once.summary[key] for key in ("status", "frames", "eval_episodes")] == ["stopped", 64, 2]
    resumed, other = RecordingCallback(), Counter()
    recurrl.train(["resume=auto"], run_dir="run", callbacks=[resumed, other])
    assert [call for call in resumed.calls if "iteration" in call] == ["iteration to 64", "iteration to 96"]
    assert other.seen == [32, 64, 96]


simple, derived, of_none = Counter.on_iteration, RecordingCallback.on_iteration, Counter.state_dict


def of_three(self, metrics, agent, frames):
    pass


async def coroutine(self, trainer, metrics):
    pass


BOTH = {"on_iteration": simple, "state_dict": of_none}
NOT_CALLED = [
    (recurrl.Callback, {"on_iterations": derived}, r"Mine must be among close, .* \(got on_iterations\)"),
    (Counter, {"on_start": of_none}, r"Mine must be among .* \(got on_start\)\. Derive it from recurrl"),
    (object, {"on_iteration": of_three}, r"on_iteration\(metrics, agent\): missing a required argument: 'frames'"),
    (object, {}, r"Mine must have on_iteration\(metrics, agent\)"),
    (object, {"on_iteration": derived}, r"on_iteration\(metrics, agent\), because it does not derive from recurrl"),
    (recurrl.Callback, {"on_iteration": simple}, r"on_iteration\(trainer, metrics\), because it derives from recurrl"),
    (recurrl.Callback, {"close": of_none}, r"Mine must have close\(failed\): too many positional arguments"),
    (recurrl.Callback, {"on_iteration": coroutine}, r"\(trainer, metrics\), and not as a coroutine. Remove async"),
    (object, BOTH, "Mine must have both state_dict and load_state_dict, or neither"),
    (recurrl.Callback, {"state_dict": of_none}, "Mine must have both state_dict and load_state_dict, or neither"),
    (recurrl.Callback, {"load_state_dict": simple}, "Mine must have both state_dict and load_state_dict, or neither"),
]


@pytest.mark.parametrize(("base", "methods", "message"), NOT_CALLED)
def test_a_callback_that_would_not_be_called_is_an_error_before_the_run(base, methods, message, tiny):
    with pytest.raises(ConfigError, match=message):
        recurrl.train(tiny, run_dir="run", callbacks=[callback(base=base, **methods)])
    assert not Path("run").exists()


def test_what_is_not_a_list_of_objects_is_an_error_before_the_run(tiny):
    with pytest.raises(ConfigError, match=r"callbacks must be objects \(got the class Counter\). Pass Counter\(\)."):
        recurrl.train(tiny, run_dir="run", callbacks=[Counter])
    with pytest.raises(ConfigError, match=r"callbacks must be a list \(got a Counter\)."):
        recurrl.train(tiny, run_dir="run", callbacks=Counter())
    assert not Path("run").exists()


def test_a_run_whose_torchrun_has_ended_ends_with_a_checkpoint(tiny, monkeypatch):
    after_one_iteration = iter([False, True])
    with monkeypatch.context() as patch:
        patch.setattr(World, "is_orphaned", property(lambda _: next(after_one_iteration)))
        with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
            recurrl.train([*tiny, "total_frames=96"], run_dir="run")
    assert ended(Path("run"), "frames") == ("interrupted", 32)
    assert recurrl.train(["resume=auto"], run_dir="run").summary["frames"] == 96


WRONG_RESULTS = [
    (callback(on_rollout=lambda *_: {"mine/name": "text"}), "The metric mine/name must be a number"),
    (callback(on_rollout=lambda *_: {"mine/name": 10**400}), "The metric mine/name must be a number"),
    (callback(on_iteration=lambda *of: setitem(of[-1], "mine/name", "text")), "The metric mine/name must be a number"),
    (callback(on_iteration=lambda *_: 0.5), r"callback Mine must return True, False or None \(got 0.5\)"),
    (callback(on_rollout=lambda *_: False), r"callback Mine must return metrics by name, or None \(got False\)"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG_RESULTS)
def test_what_a_callback_returns_or_adds_wrongly_is_an_error(wrong, message, tiny):
    with pytest.raises(ConfigError, match=message):
        recurrl.train(tiny, callbacks=[wrong])
