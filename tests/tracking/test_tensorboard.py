import os
import signal
import time
from multiprocessing import get_context

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from recurrl.tracking.tensorboard import make


def scalars(run_dir):
    events = EventAccumulator(str(run_dir / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def log(options, run_dir, rows, close=True):
    tracker = make(options, run_dir, {})
    for frames, metrics in rows:
        tracker.log(frames, metrics)
    if close:
        tracker.close()


def test_each_metric_is_a_scalar_on_the_axis_of_frames(logger_options, tmp_path):
    tracker = make(logger_options(), tmp_path, {})
    tracker.log(64, {"loss/critic": 0.5, "optim/lr": 0.25})
    tracker.log(128, {"loss/critic": 0.125})
    # On disk before it is closed.
    assert scalars(tmp_path) == {"loss/critic": [(64, 0.5), (128, 0.125)], "optim/lr": [(64, 0.25)]}
    tracker.close()


def in_a_process(function, *arguments):
    """Calls a function in a fork of this process, and returns its exit code."""
    process = get_context("fork").Process(target=function, args=arguments)
    process.start()
    process.join()
    return process.exitcode


def log_until_killed(*arguments):
    log(*arguments, close=False)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_run_that_was_killed_and_resumes_shows_no_frame_count_twice(logger_options, tmp_path):
    rows = [(64, {"a": 1.0}), (128, {"a": 2.0}), (192, {"a": 3.0})]
    assert in_a_process(log_until_killed, logger_options(), tmp_path, rows) == -signal.SIGKILL
    (events,) = (tmp_path / "tensorboard").iterdir()
    os.truncate(events, events.stat().st_size - 11)  # within an event
    time.sleep(1)  # TensorBoard reads the files in the order of their times of creation, in seconds
    assert in_a_process(log, logger_options(), tmp_path, [(128, {"a": 20.0}), (192, {"a": 30.0})]) == 0
    assert scalars(tmp_path) == {"a": [(64, 1.0), (128, 20.0), (192, 30.0)]}
