"""The base of multi-process collectors: their workers, and the weights that the workers act with.

Shape legend: N environments, T steps, W workers.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from queue import Empty
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import multiprocessing, nn
from torchrl.collectors import MultiCollector

from recurrl.collector import collector_state
from recurrl.collector.faults import Supervisor
from recurrl.collector.lean import LeanCollector
from recurrl.collector.rollouts import Rollouts
from recurrl.config import WorkersConfig
from recurrl.envs import make_env
from recurrl.errors import ConfigError, RunError
from recurrl.policy import Policy, PolicyModule
from recurrl.runtime.seeds import seed_process, seeds
from recurrl.runtime.signals import ignore_signals

_POLL_S = 0.2


class SharedWeights:
    """A policy's parameters and statistics in shared memory, with a version that counts the updates.

    A worker loads them all at once, between two rollouts: no rollout sees a partial update.

    Args:
        policy: its weights are the first version, 0.
        workers: W.
    """

    def __init__(self, policy: nn.Module, workers: int) -> None:
        self._lock = multiprocessing.get_context("spawn").Lock()
        self._values = {name: value.detach().cpu().clone().share_memory_() for name, value in _named(policy)}
        self._version = torch.zeros((), dtype=torch.int64).share_memory_()
        self._used = torch.zeros(workers, dtype=torch.int64).share_memory_()

    @property
    def version(self) -> int:
        """Updates so far."""
        return int(self._version)

    def used_by(self, worker: int) -> int:
        """The version of a worker's last rollout."""
        return int(self._used[worker])

    def publish(self, policy: nn.Module) -> None:
        """Makes a policy's weights the next version."""
        with self._lock:
            for name, value in _named(policy):
                self._values[name].copy_(value.detach())
            self._version += 1

    def load_into(self, policy: nn.Module, worker: int) -> None:
        """Loads the newest version into a worker's policy."""
        with self._lock:
            self._used[worker] = self._version
            for name, value in _named(policy):
                value.detach().copy_(self._values[name])


def _named(policy: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from policy.state_dict(keep_vars=True).items()


class WorkerCollector(LeanCollector):
    """The collector within a worker: loads the newest weights before a rollout, and reports exceptions.

    Args:
        arguments: of :class:`LeanCollector`.
        network: the policy, in memory that the workers share.
        seed: for the workers' policies and global generators.
        weights: the weights that the policy acts with.
        supervisor: receives alarms, and the exception that ends the worker.
        options: of :class:`LeanCollector`; ``worker_idx`` is the worker's number.
    """

    def __init__(
        self,
        *arguments: Any,
        network: Policy,
        seed: int,
        weights: SharedWeights,
        supervisor: Supervisor,
        **options: Any,
    ) -> None:
        worker = options["worker_idx"]
        self._weights, self._guard = weights, supervisor.guard(worker)
        own = deepcopy(network)
        options["create_env_kwargs"] = {"policy": own}
        options["policy_factory"] = partial(options["policy_factory"], policy_factory=partial(PolicyModule, own))
        # The workers share one counter, so numbers would depend on the order in which episodes end.
        options["track_traj_ids"] = False
        seed_process(seed + worker)
        with self._guard():
            super().__init__(*arguments, **options)

    def rollout(self) -> TensorDictBase:
        """A rollout with the newest weights."""
        with self._guard():
            self._weights.load_into(self.policy, self.worker_idx)
            return super().rollout()

    def saved(self) -> bytes:
        """This worker's state, including its random numbers, as ``torch.save`` writes it."""
        with self._guard():
            return collector_state.saved(self)

    def restore(self, saved: bytes) -> None:
        """Restores it."""
        with self._guard():
            collector_state.restore(self, saved)


class Workers(MultiCollector):
    """A base of TorchRL's multi-process collectors: their construction and their failures.

    The environments are split evenly among the workers, which act on the CPU, each with a copy of the policy. Seeds per
    environment are the same as with a single collector. All workers start in parallel. The main process handles
    the signals that end a run: the workers ignore them, so that the iteration can finish.

    Args:
        options: as configured.
        rollouts: what to collect.
        arguments: further ones of TorchRL's class.

    Raises:
        ConfigError: a worker raised it.
        RunError: a worker raised something else or ended; no worker is left running.
    """

    def __init__(self, options: WorkersConfig, rollouts: Rollouts, **arguments: Any) -> None:
        workers, policy, env = options.num_workers, rollouts.policy, rollouts.env
        self._device = policy.device
        self._learning = PolicyModule(policy)
        self.weights = SharedWeights(self._learning, workers)
        self._supervisor = Supervisor(options, env.num_envs)
        self._rows: dict[int, TensorDictBase] = {}
        self._handed_in = 0
        count = env.num_envs // workers
        with self._supervised():
            super().__init__(
                [partial(make_env, env, count, seed) for seed in seeds(rollouts.seed, env.num_envs)[::count]],
                policy_factory=[_made_by_the_worker] * workers,
                collector_class=partial(
                    WorkerCollector,
                    network=deepcopy(policy).cpu(),
                    seed=rollouts.seed,
                    weights=self.weights,
                    supervisor=self._supervisor,
                ),
                init_fn=ignore_signals,
                total_frames=-1,
                device="cpu",
                use_buffers=True,
                trust_policy=True,
                auto_register_policy_transforms=False,
                num_threads=torch.get_num_threads(),
                **arguments,
            )

    def metrics(self) -> dict[str, float]:
        """No metrics."""
        return {}

    def _continue(self, worker: int) -> None:
        self.pipes[worker].send((worker, "continue"))

    def _receive(self) -> tuple[int, TensorDictBase]:
        """The next ready worker and its rows, in memory that the worker overwrites when it continues."""
        while True:
            try:
                message, rollouts_before = self.queue_out.get(timeout=_POLL_S)
            except Empty:
                self._raise_fault()
                continue
            # A worker sends its shared memory once, and later only its index when it has filled it.
            if rollouts_before == 0:
                rows, worker = message
                self._rows[worker] = rows
            else:
                worker = message
            self._handed_in += 1
            return worker, self._rows[worker]

    def _called(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Calls a method of each worker, which must be waiting, with its arguments and returns the results."""
        with self._supervised():
            for pipe, given in zip(self.pipes, arguments, strict=True):
                pipe.send(((method, given, {}), "cascade_execute"))
            return [self._answer(pipe) for pipe in self.pipes]

    def _answer(self, pipe: Any) -> Any:
        while not pipe.poll(_POLL_S):
            self._raise_fault()
        result, _ = pipe.recv()
        return result

    def _raise_fault(self) -> None:
        fault = self._supervisor.fault(self.procs, self._frames_of_one())
        if fault is not None:
            raise fault from fault.__cause__

    def _frames_of_one(self) -> int:
        return self._handed_in // self.num_workers * self.frames_per_batch_worker(worker_idx=0)

    @contextmanager
    def _supervised(self) -> Iterator[None]:
        """Raises a worker's fault instead of its consequence here; an exception leaves no worker running."""
        try:
            yield
        except Exception as error:
            processes = getattr(self, "procs", ())
            fault = None
            if processes and not isinstance(error, RunError | ConfigError):
                fault = self._supervisor.fault_of_lost(processes, self._frames_of_one())
            for process in processes:
                process.kill()
            if fault is None:
                raise
            raise fault from fault.__cause__


def _made_by_the_worker() -> TensorDictModuleBase:
    # TorchRL sends the policy factory with all weights through a pipe, which delays the start of the next worker until
    # this one has read it, and blocks forever if it is killed before.
    raise AssertionError("the worker's collector makes its policy")
