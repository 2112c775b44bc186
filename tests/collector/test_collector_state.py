"""Collection that continues in another process as if nothing had happened."""

import os
import signal
from contextlib import contextmanager

import pytest
import torch
from collected import collecting
from slow_cases import slow, slow_but
from tasks import PREVIOUS, VECTOR

from recurrl.build import make_policy_for, set_process_state
from recurrl.collector.collector import FAILED
from recurrl.collector.workers import WorkerError
from recurrl.errors import UnsavableError
from recurrl.runtime.serialization import from_bytes, to_bytes

OPTIONS = ("frames_per_batch=64", "slice_len=8", "minibatch_slices=8", "cell.hidden_size=4")
UNSAVABLE = ("env=gym", "env.id=recurrl-test/Handle-v0", "env.packages=[unsavable_env]")
OF_TORCHRL = ("env=gym", "env.source=unsavable_env:OfTorchRL", "env.id=CartPole", "env.mask=[]")
NEXT_STEP = "env.id=gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv"
CASES = {
    "cartpole": (),
    "pendulum": ("env=pendulum_no_velocity", "cell=lstm"),
    "correlated noise": ("env=pendulum_no_velocity", "policy.noise_correlation=0.9"),
    "vector environment": (*VECTOR, "env.kwargs.max_episode_steps=9"),
    "vector environment that resets in the next step": ("env=gym", NEXT_STEP, "env.kwargs.max_episode_steps=9"),
    "repeat_first": ("env=repeat_first",),
    "without memory": ("cell=none",),
    "previous action": PREVIOUS,
    "in torch": ("env=repeat_previous_torch",),
    "groups": ("algorithm=grpo", "algorithm.group_size=2", "env.max_episode_steps=10"),
}
OF_WORKERS = {
    "workers": ("collector=multi_sync",),
    "asynchronous workers": ("collector=multi_async",),
    "workers that are restarted": ("collector=multi_sync", "collector.on_env_error=restart"),
}


class Parts:
    """A run in parts: collectors one after the other, each going on from what the one before it has left."""

    def __init__(self, config):
        self.config, self.frames, self.left = config, 0, b""

    @contextmanager
    def collector(self):
        """The next one, in the state of the process that it would find there."""
        set_process_state(self.config)
        with collecting(self.config, make_policy_for(self.config), self.frames) as collector:
            if self.frames:
                loaded = from_bytes(self.left)
                collector.load_state_dict(loaded["collector_state"])
                torch.set_rng_state(loaded["rng"])
            yield collector

    def save(self, collector):
        self.left = to_bytes({"collector_state": collector.state_dict(), "rng": torch.get_rng_state()})

    def batches(self, count, saves=True):
        """The next collector's batches; it saves its state after each."""
        found = []
        with self.collector() as collector:
            for _ in range(count):
                found.append(collector.collect().clone())
                self.frames += found[-1].numel()
                if saves:
                    self.save(collector)
        return found


def assert_identical(found, expected):
    assert set(found.keys(True, True)) == set(expected.keys(True, True))
    for key, value in expected.items(True, True):
        torch.testing.assert_close(found[key], value, rtol=0, atol=0, msg=str(key))


def check_continues(config):
    """Two collectors, the second restored from the first, collect what a single one collects."""
    expected = Parts(config).batches(4, saves=False)
    parts = Parts(config)
    for found, whole in zip(parts.batches(2) + parts.batches(2), expected, strict=True):
        assert_identical(found, whole)


@pytest.mark.parametrize("kind", slow_but(CASES, CASES | OF_WORKERS))
def test_a_restored_collector_continues_as_one_that_was_never_saved(kind, small):
    check_continues(small(*OPTIONS, *(CASES | OF_WORKERS)[kind]))


HANDLE = "TimeLimit.env.env.handle is a builtins.list_iterator, which is not a plain value"
WITHOUT_STATE = {
    "a handle": (UNSAVABLE, HANDLE),
    "groups": ((*UNSAVABLE, "algorithm=grpo", "algorithm.group_size=2"), "TimeLimit.env.env.handle is a"),
    "of TorchRL": (OF_TORCHRL, "TorchRLEnv does not expose its state"),
    "workers": ((*UNSAVABLE, "collector=multi_sync"), HANDLE),
}


@pytest.mark.parametrize("kind", slow_but(("a handle", "groups", "of TorchRL"), WITHOUT_STATE))
def test_episodes_that_cannot_be_saved_start_over_with_new_seeds_and_the_state_says_why(kind, small):
    overrides, why = WITHOUT_STATE[kind]
    parts = Parts(small(*OPTIONS, *overrides))
    begun = []
    for _ in range(3):
        (found,) = parts.batches(1)
        assert found["is_init"][:, 0].all()
        begun += found["observation"][:, 0].tolist()
        assert from_bytes(parts.left)["collector_state"]["unsavable_reason"].startswith(why)
    in_groups = "algorithm=grpo" in overrides
    assert len({tuple(observation) for observation in begun}) == len(begun) // (2 if in_groups else 1)


def test_a_resumed_run_has_groups_of_its_own_size(small):
    of_groups = (*OPTIONS, "env.num_envs=8", "algorithm=grpo", "minibatch_slices=4")
    parts = Parts(small(*of_groups, "algorithm.group_size=2"))
    parts.batches(1)
    parts.config = small(*of_groups, "algorithm.group_size=4")
    (found,) = parts.batches(1)
    assert [len(group.unique(dim=0)) for group in found["observation"][:, 0].split(4)] == [1, 1]


@pytest.mark.slow
def test_workers_keep_their_random_numbers_although_their_episodes_start_over(small):
    # The policy has no memory and sees the same at every step: actions tell of random numbers alone.
    config = small(*OPTIONS, *UNSAVABLE, "cell=none", "+env.kwargs.blind=true", "collector=multi_sync")
    _, expected = Parts(config).batches(2)
    parts = Parts(config)
    _, found = parts.batches(1) + parts.batches(1)
    assert torch.equal(found["action"], expected["action"])
    assert len(found["action"].unique(dim=0)) == 4


@pytest.mark.parametrize(("collector", "saved", "now"), [("single", 4, 8), slow("multi_sync", 2, 4)])
def test_the_state_of_another_number_of_environments_does_not_fit(collector, saved, now, small):
    parts = Parts(small(*OPTIONS, f"collector={collector}"))
    parts.batches(1)
    parts.config = small(*OPTIONS, f"collector={collector}", "env.num_envs=8")
    with pytest.raises(UnsavableError, match=f"{saved} environments were saved, but there are now {now}"):
        parts.batches(1)


@pytest.mark.slow
def test_a_worker_that_was_killed_is_named_when_its_state_is_requested(small):
    with Parts(small(*OPTIONS, "collector=multi_sync")).collector() as collector:
        collector.collect()
        os.kill(collector.host.processes[1].pid, signal.SIGKILL)
        with pytest.raises(WorkerError, match=r"Worker 1 of 2 \(environments 2 to 3\) was killed by SIGKILL"):
            collector.state_dict()


@pytest.mark.slow
def test_after_a_worker_was_killed_a_checkpoint_says_so_and_collection_continues_in_new_environments(small, caplog):
    parts = Parts(small(*OPTIONS, "collector=multi_sync", "collector.on_env_error=restart"))
    with parts.collector() as collector:
        parts.frames += collector.collect().numel()
        os.kill(collector.collector.host.processes[1].pid, signal.SIGKILL)
        parts.save(collector)
        assert collector.collect()["is_init"][:, 0, 0].tolist() == [False, False, True, True]
        assert collector.metrics() == {"collect/restarts": 1.0}
        assert "Worker 1 of 2 (environments 2 to 3) was killed by SIGKILL" in caplog.text
    assert from_bytes(parts.left)["collector_state"]["unsavable_reason"] == FAILED
    with parts.collector() as collector:
        assert collector.collect()["is_init"][:, 0].all()
