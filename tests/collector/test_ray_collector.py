"""Actors of a Ray cluster: their batches, their errors, machines that are lost, and what is left behind."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from collected import collecting, fresh_policy, rollouts
from run_files import column, ended, summary, whole_and_resumed
from test_collector_state import assert_identical, check_continues
from test_processes import make_policy, several, value_everything

from recurrl.errors import ConfigError, RunError
from recurrl.policy import VALUE

ray = pytest.importorskip("ray")

pytestmark = pytest.mark.slow
OPTIONS = ("frames_per_batch=64", "slice_len=8", "minibatch_slices=8", "cell.hidden_size=4", "collector.timeout_s=20")
RAY = (*OPTIONS, "collector=ray")


def batches(config, count):
    """The first batches of a collector with the same weights throughout."""
    return [batch.clone() for batch in rollouts(config, fresh_policy(config), count)]


def of_ray(named="ray"):
    """The processes of Ray, or those with a name."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_text()
        except OSError:
            continue
        if named in command and "/ray/" in os.readlink(path / "exe") + command + "/ray/" * ("ray::" in command):
            found.add(int(path.name))
    return found


def all_gone(named, before):
    """True once only the processes of before are left. A cluster ends those of actors in its own time."""
    deadline = time.monotonic() + 30
    while of_ray(named) - before and time.monotonic() < deadline:
        time.sleep(0.2)
    return of_ray(named) <= before


def test_batches_are_those_of_workers_on_this_machine_and_nothing_is_left(small):
    before, handler, folders = of_ray(), signal.getsignal(signal.SIGTERM), set(Path("/tmp").glob("ray*"))
    found = batches(small(*RAY), 2)
    assert signal.getsignal(signal.SIGTERM) is handler
    assert not ray.is_initialized()
    assert all_gone("ray", before)
    assert set(Path("/tmp").glob("ray*")) <= folders
    for mine, of_workers in zip(found, batches(small(*OPTIONS, "collector=multi_sync"), 2), strict=True):
        assert_identical(mine, of_workers)


def test_a_cluster_that_does_not_exist_is_an_error_message(small):
    with pytest.raises(ConfigError, match=r"cannot connect to collector.address=auto: .* ray start --head"):
        batches(small(*RAY, "collector.address=auto"), 1)


@pytest.fixture
def cluster():
    """Two machines: one with cores for two workers, on which tests run, and another with cores for one."""
    from ray.cluster_utils import Cluster

    sizes = {"object_store_memory": 100 * 2**20, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, **sizes})
    made.other = made.add_node(num_cpus=1, object_store_memory=100 * 2**20)
    made.wait_for_nodes()
    yield made
    made.shutdown()


def test_the_loss_of_a_machine_costs_the_rows_of_its_workers_only(small, cluster):
    there = (*RAY, f"collector.address={cluster.address}", "collector.on_env_error=restart")
    expected = batches(small(*there), 4)
    config = small(*there)
    with collecting(config, fresh_policy(config)) as collector:
        found = [collector.collect().clone() for _ in range(2)]
        cluster.remove_node(cluster.other, allow_graceful=False)
        found += [collector.collect().clone() for _ in range(2)]
        assert collector.metrics() == {"collect/restarts": 1.0}
    replaced = found[2]["is_init"][:, 0].view(2, 2).all(1)
    assert replaced.sum() == 1
    (lost,) = replaced.nonzero().flatten().tolist()
    kept = slice(2, 4) if lost == 0 else slice(0, 2)
    for i, (mine, whole) in enumerate(zip(found, expected, strict=True)):
        rows = kept if i >= 2 else slice(None)
        assert_identical(mine[rows], whole[rows])
    assert not torch.equal(found[2]["observation"], expected[0]["observation"])


def test_a_run_resumed_with_another_collector_says_that_rows_ahead_are_dropped(train, tiny):
    train(*tiny, "collector=multi_async", "hydra.run.dir=run").succeeded()
    resumed = train("resume=run", "collector=single", "total_frames=96").succeeded()
    assert "The rows that workers had collected ahead are dropped." in resumed.out


REPLAY = ("buffer=replay", "buffer.rollouts=3", "buffer.replay_ratio=2", "buffer.min_replay_ratio=2")
AHEAD = [("collector=ray", "collector.ahead=2", *REPLAY), ("collector=multi_async", *REPLAY)]


@pytest.mark.parametrize("overrides", AHEAD, ids=lambda overrides: overrides[0])
def test_a_resumed_run_checks_its_first_rollout_of_known_weights_and_goes_on(overrides, train, tiny, tmp_path):
    options = [*tiny, *overrides, "total_frames=192", "checkpoint.every_frames=64", "checkpoint.keep_last=null"]
    _, resumed = whole_and_resumed(train, tmp_path, 64, *options)
    assert resumed.out.count("consistency check passed: the update reproduces the rollout in 32 frames") == 1


@pytest.fixture
def start(tiny, tmp_path):
    """Starts a run, in a process group of its own as a terminal does, and waits until it learns."""

    def start(*overrides):
        options = (*tiny, "collector=ray", "hydra.run.dir=run", *overrides)
        command = [str(Path(sys.executable).parent / "recurrl-train"), *options]
        run = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
        logged = tmp_path / "run/metrics.csv"
        while run.poll() is None and not (logged.exists() and logged.read_text().count("\n") > 3):
            time.sleep(0.05)
        return run

    before = of_ray()
    yield start
    for pid in of_ray("ray::") - before:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_run_continues_after_the_loss_of_a_machine(ahead, cluster, start, tmp_path):
    there = (f"collector.address={cluster.address}", f"collector.ahead={ahead}")
    run = start(*there, "collector.on_env_error=restart", "total_frames=8_000")
    cluster.remove_node(cluster.other, allow_graceful=False)
    _, printed = run.communicate(timeout=200)
    assert run.returncode == 0, printed
    assert ended(tmp_path / "run", "frames", "restarts") == ("completed", 8_000, 1)
    assert column(tmp_path / "run", "frames") == [*range(32, 8_001, 32)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_a_run_that_is_ended(number, start, tmp_path):
    before = of_ray()
    run = start("total_frames=1_000_000")
    assert of_ray() - before
    # Ctrl-C in a terminal reaches the whole group.
    (os.killpg if number == signal.SIGINT else os.kill)(run.pid, number)
    _, printed = run.communicate(timeout=60)
    assert run.returncode == (130 if number == signal.SIGINT else -number), printed
    if number == signal.SIGINT:
        found = summary(tmp_path / "run")
        assert (found["status"], found["error"]) == ("interrupted", None)
        assert (tmp_path / "run" / found["checkpoint"]).exists()
    # Ray's helpers outlive a killed run.
    assert all_gone("ray" if number == signal.SIGINT else "ray::ActorWorker", before)


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_workers_have_the_newest_weights_or_stale_ones_as_configured_and_a_killed_one_is_named(ahead, small, cluster):
    before = of_ray("ray::ActorWorker")
    config = small(*RAY, f"collector.address={cluster.address}", f"collector.ahead={ahead}")
    policy = make_policy(config)
    with collecting(config, policy) as collector:
        for iteration in range(6):
            assert (collector.collect()[VALUE] == max(0, iteration - ahead)).all()
            assert collector.metrics().get("collect/staleness", 0) == min(iteration, ahead)
            value_everything(policy, iteration + 1.0)
        os.kill(min(of_ray("ray::ActorWorker") - before), signal.SIGKILL)
        says = r"Worker \d of 2 \(environments . to .\) was lost after collecting \d+ frames"
        with pytest.raises(RunError, match=says):
            several(collector, ahead + 1)
    assert all_gone("ray::ActorWorker", before)


def test_the_staleness_of_a_batch_is_that_of_all_its_rows_also_of_those_kept_through_a_failure(small, cluster):
    before = of_ray("ray::ActorWorker")
    there = (f"collector.address={cluster.address}", "collector.ahead=2", "collector.on_env_error=restart")
    config = small(*RAY, *there)
    policy = make_policy(config)
    staleness = []
    with collecting(config, policy) as collector:
        for iteration in range(8):
            batch = collector.collect()
            staleness.append(collector.metrics()["collect/staleness"])
            assert staleness[-1] == iteration - batch[VALUE].mean()
            if iteration == 3:
                os.kill(min(of_ray("ray::ActorWorker") - before), signal.SIGKILL)
            value_everything(policy, iteration + 1.0)
    assert 1.0 in staleness[4:], staleness  # half of the rows kept, two updates old, and half of them collected again


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_restored_collector_continues_as_one_that_was_never_saved(ahead, small, cluster):
    check_continues(small(*RAY, f"collector.address={cluster.address}", f"collector.ahead={ahead}"))


def test_workers_without_free_machines_are_an_error_message(small, cluster, monkeypatch):
    monkeypatch.setattr("recurrl.collector.ray.START_TIMEOUT_S", 5)
    with pytest.raises(RunError, match=r"did not start within 5 s. .* the cluster has 3 CPU"):
        batches(small(*RAY, f"collector.address={cluster.address}", "collector.cpus_per_worker=3"), 1)
