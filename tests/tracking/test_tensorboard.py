import os
import signal
import time
from functools import partial

from in_ranks import start
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from recurrl.tracking.tensorboard import make


def scalars(run_dir):
    events = EventAccumulator(str(run_dir / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def logged(make_tracker, rows, kill=False):
    """Logs rows in another process, which is killed or closes the tracker; says what it did at its end."""

    def log():
        tracker = make_tracker()
        for frames, metrics in rows:
            tracker.log(frames, metrics)
        if kill:
            os.kill(os.getpid(), signal.SIGKILL)
        tracker.close()
        return "closed"

    return start(1, log).end()


def test_a_killed_run_has_each_metric_and_once_resumed_no_frame_count_twice(logger_options, tmp_path):
    make_tracker = partial(make, logger_options(), tmp_path, {})
    rows = [(64, {"loss/critic": 0.5, "optim/lr": 0.25}), (128, {"loss/critic": 2.0}), (192, {"loss/critic": 3.0})]
    assert logged(make_tracker, rows, kill=True) == [None]
    assert scalars(tmp_path) == {"loss/critic": [(64, 0.5), (128, 2.0), (192, 3.0)], "optim/lr": [(64, 0.25)]}
    (events,) = (tmp_path / "tensorboard").iterdir()
    os.truncate(events, events.stat().st_size - 11)  # within an event
    time.sleep(1)  # TensorBoard reads the files in the order of their times of creation, in seconds
    assert logged(make_tracker, [(128, {"a": 20.0}), (192, {"a": 30.0})]) == ["closed"]
    assert scalars(tmp_path) == {"loss/critic": [(64, 0.5)], "optim/lr": [(64, 0.25)], "a": [(128, 20.0), (192, 30.0)]}
