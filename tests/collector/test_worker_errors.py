"""Environments and workers that fail while they collect: messages, and runs that continue."""

import signal
from itertools import product
from types import SimpleNamespace

import pytest
from slow_cases import slow
from test_processes import failing

from recurrl.build import make_collector
from recurrl.errors import EnvError, RunError
from recurrl.runtime.time_limit import time_limit

WAYS = ("raising", "hanging", "hanging in native code", "being killed")
OF_WORKERS = [*product(["multi_sync", "multi_async"], WAYS), *product(["ray"], WAYS[:2])]
FAILURES = [*product(["single"], WAYS[:2]), *(slow(*each) for each in OF_WORKERS)]


@pytest.mark.parametrize("at", [0, 12], ids=["in the first reset", "in a step"])
def test_an_environment_that_hangs_is_named(at, small):
    config, policy = failing(small, at=at, by="hanging")
    where = "at step 0, did not return from reset" if at == 0 else r"at step \d+, did not return from step"
    error = f"Environment 0 of 4 .*{where}: no response within collector.timeout_s=0.2 s"
    with time_limit(0.2), pytest.raises(EnvError, match=error):
        make_collector(config, policy).collect()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_time_in_which_the_process_was_stopped_does_not_count(small, monkeypatch):
    config, policy = failing(small, at=0, by="hanging")
    # As after Ctrl-Z: the first alarm comes long after it was due, the second one on time.
    times = [0.0, 1000.0, 1000.15]
    monkeypatch.setattr("recurrl.runtime.time_limit.time", SimpleNamespace(monotonic=lambda: times.pop(0)))
    with time_limit(0.1), pytest.raises(EnvError, match="did not return from reset"):
        make_collector(config, policy)
    assert not times


@pytest.mark.parametrize(("collector", "by"), FAILURES)
def test_collection_continues_after_an_error_in_new_environments(collector, by, small, tmp_path):
    if collector == "ray":
        pytest.importorskip("ray")
    seconds = 1.0 if collector == "single" else 3.0
    choices = (f"collector={collector}", "collector.on_env_error=restart", f"collector.timeout_s={seconds}")
    config, policy = failing(small, *choices, at=30, by=by, marker=str(tmp_path / "failed"))
    with time_limit(seconds):
        found = make_collector(config, policy)
        restarts, starts = [], []
        for _ in range(4):
            batch = found.collect()
            assert batch.batch_size == (4, 20)
            restarts.append(found.metrics()["collect/restarts"])
            begins = batch["is_init"][:, 0, 0]
            assert not any(batch[key][begins, 0].any() for key in policy.state_keys)
            starts.append(int(begins.sum()))
            assert not batch["is_init"][:, 1:].any()
        found.shutdown()
    assert restarts[-1] == 1
    replaced = 4 if collector == "single" else 2
    assert sorted(starts) == [0, 0, replaced, 4]
    assert starts[0] == 4
    assert (tmp_path / "failed").exists()


def test_environments_that_always_fail_end_the_run(small, caplog):
    config, policy = failing(small, "collector.on_env_error=restart", at=10, by="raising")
    with pytest.raises(RunError, match=r"After 3 restarts in a row without a rollout: Environment 0 of 4 .*ArmError"):
        make_collector(config, policy).collect()
    assert caplog.text.count(", with new episodes: ") == 3
