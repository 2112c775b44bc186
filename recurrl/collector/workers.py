"""What the collectors of several processes share: their workers, the weights these act with, and their errors.

Shape legend: N environments, T steps, W workers.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import multiprocessing, nn
from torchrl._utils import seed_generator
from torchrl.collectors import MultiCollector
from torchrl.envs import TransformedEnv

from recurrl.collector import acting
from recurrl.collector.lean import LeanCollector
from recurrl.config import EnvConfig, TrainConfig
from recurrl.envs import make_env
from recurrl.policy import ActorCritic


class SharedWeights:
    """A policy's parameters and statistics in shared memory, with a version that counts the updates.

    A worker takes them over whole, between two of its rollouts: no rollout sees an update in its midst.

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
        """Gives a worker's policy the newest version, if it has another."""
        with self._lock:
            self._used[worker] = self._version
            for name, value in _named(policy):
                value.detach().copy_(self._values[name])


def _named(policy: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from policy.state_dict(keep_vars=True).items()


class WorkerCollector(LeanCollector):
    """The collector within a worker: takes over the newest weights before a rollout, and reports what fails.

    Args:
        arguments: of :class:`LeanCollector`.
        weights: what the policy acts with.
        errors: where an exception goes before the worker ends by it.
        options: of :class:`LeanCollector`; ``worker_idx`` is the worker's number.
    """

    def __init__(self, *arguments: Any, weights: SharedWeights, errors: Any, **options: Any) -> None:
        self._weights, self._errors = weights, errors
        with _reported(errors):
            super().__init__(*arguments, **options)

    def rollout(self) -> TensorDictBase:
        """As the base class does, with the newest weights."""
        with _reported(self._errors):
            self._weights.load_into(self.policy, self.worker_idx)
            return super().rollout()


@contextmanager
def _reported(errors: Any) -> Iterator[None]:
    """Sends an exception, which goes on, to the main process."""
    try:
        yield
    except Exception as error:
        errors.put(_portable(error))
        raise


def _portable(error: Exception) -> tuple[bytes | None, str]:
    """The exception itself, if it survives being sent, and how it would be printed."""
    printed = "".join(traceback.format_exception(error))
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except (pickle.PicklingError, TypeError, AttributeError):
        return None, printed
    return pickled, printed


class RemoteTraceback(Exception):  # noqa: N818  (it is no error of its own, but where the other one came from)
    """The traceback of a worker's exception, in the worker."""


class Workers(MultiCollector):
    """Of TorchRL's collectors of several processes: what they are made of, and how they fail.

    The environments divide evenly among the workers, which act on the CPU, each with a copy of the policy. Where each
    environment has a seed of its own, they are those of a single collector, in its order. All workers start side by
    side.

    Args:
        config: the run's configuration.
        policy: the policy that learns.
        options: further ones of TorchRL's class.

    Raises:
        Exception: whatever a worker's environment or policy raised.
    """

    def __init__(self, config: TrainConfig, policy: ActorCritic, **options: Any) -> None:
        workers = config.collector.num_workers
        self._device = torch.device(config.device)
        self._learning = acting(policy)
        self.weights = SharedWeights(self._learning, workers)
        self._errors = multiprocessing.get_context("spawn").SimpleQueue()
        copy = deepcopy(policy).cpu()
        count = config.env.num_envs // workers
        with self._failing_as_the_worker():
            super().__init__(
                [
                    partial(_make_env, config.env, count, seed, copy)
                    for seed in _seeds(config.seed, config.env.num_envs)[::count]
                ],
                policy_factory=[partial(_make_policy, copy, config.seed + worker) for worker in range(workers)],
                collector_class=partial(WorkerCollector, weights=self.weights, errors=self._errors),
                total_frames=-1,
                device="cpu",
                use_buffers=True,
                trust_policy=True,
                auto_register_policy_transforms=False,
                num_threads=torch.get_num_threads(),
                **options,
            )

    @contextmanager
    def _failing_as_the_worker(self) -> Iterator[None]:
        """Raises what a worker raised in place of TorchRL's word that one has ended; no worker is left behind."""
        try:
            yield
        except Exception as error:
            for process in getattr(self, "procs", ()):
                if not process._closed:
                    process.kill()
            if self._errors.empty():
                raise
            pickled, printed = self._errors.get()
            if pickled is None:
                raise RuntimeError(f"A worker of the collector failed:\n{printed}") from error
            raise pickle.loads(pickled) from RemoteTraceback(f"\n{printed}")


def _make_env(config: EnvConfig, count: int, seed: int, policy: ActorCritic) -> TransformedEnv:
    return make_env(config, count, seed, policy)


def _make_policy(policy: ActorCritic, seed: int) -> TensorDictModuleBase:
    torch.manual_seed(seed)
    return acting(policy)


def _seeds(seed: int, count: int) -> list[int]:
    """The seeds of so many environments side by side, by TorchRL's chain."""
    seeds = [seed]
    for _ in range(count - 1):
        seeds.append(seed_generator(seeds[-1]))
    return seeds
