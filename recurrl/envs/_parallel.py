"""TorchRL's environments in processes of their own, which say which of them it was that failed.

Shape legend: N environments.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import connection
from typing import Any

from tensordict import TensorDictBase
from torchrl.envs import EnvBase, ParallelEnv

from recurrl.errors import EnvironmentFaultError
from recurrl.time_limit import TimeLimitError


class NamedParallelEnv(ParallelEnv):
    """One process an environment.

    Args:
        env_id: the environments' registered id.
        makers: of each environment, ``N``.

    Raises:
        EnvironmentFaultError: by a call that takes longer than allowed, or whose process has ended.
    """

    def __init__(self, env_id: str, makers: Sequence[Callable[[], EnvBase]]) -> None:
        super().__init__(len(makers), list(makers))
        self._env_id = env_id
        self._exit_codes: dict[int, int] = {}

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """Seeds them one after the other."""
        with self._blamed(lambda: [len(self._seeds) - 1] if self._seeds else []):
            return super().set_seed(seed, static_seed)

    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """A step of each, and a reset of those whose episodes are over."""
        with self._blamed():
            return super().step_and_maybe_reset(tensordict)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        with self._blamed():
            return super()._step(tensordict)

    def _reset(self, tensordict: TensorDictBase | None, **options: Any) -> TensorDictBase:
        with self._blamed():
            return super()._reset(tensordict, **options)

    def _wait_for_workers(self, workers_range: Sequence[int]) -> None:
        with self._blamed(lambda: [i for i in workers_range if not self._shm_done_flags[self._worker_indices[i]]]):
            super()._wait_for_workers(workers_range)

    def _cleanup_failed_worker_startup(self) -> None:
        # TorchRL forgets the processes here.
        self._note_exit_codes()
        super()._cleanup_failed_worker_startup()

    def _shutdown_workers(self) -> None:
        self._note_exit_codes()
        if not self._exit_codes:
            super()._shutdown_workers()
            return
        # TorchRL would ask those that are gone too, and the others by a signal that they ignore.
        for process in self._workers:
            process.kill()
        for process in self._workers:
            process.join()
        for channel in self.parent_channels:
            channel.close()

    def _note_exit_codes(self) -> None:
        """Of the processes that ended by themselves, which are the first to be noticed."""
        if self._exit_codes:
            return
        ending = connection.wait([process.sentinel for process in self._workers], timeout=0)
        for i, process in enumerate(self._workers):
            if process.sentinel in ending:
                # Its files are closed a moment before it has an exit code.
                process.join()
                self._exit_codes[i] = process.exitcode

    @contextmanager
    def _blamed(self, silent: Callable[[], list[int]] = list) -> Iterator[None]:
        """Says of an exception which environments it comes from; ``silent`` gives those that have not answered."""
        try:
            yield
        except EnvironmentFaultError:
            raise
        except TimeLimitError as error:
            raise EnvironmentFaultError(f"{self._name(silent())}: {error}.") from error
        except (EOFError, ConnectionError, RuntimeError, ValueError) as error:
            self._note_exit_codes()
            if not self._exit_codes:
                raise
            codes = ", ".join(sorted({_said(code) for code in self._exit_codes.values()}))
            raise EnvironmentFaultError(
                f"{self._name(sorted(self._exit_codes))}: its process has ended ({codes}). What it printed says why."
            ) from error

    def _name(self, which: list[int]) -> str:
        numbers = f"Environment {' and '.join(map(str, which))}" if which else "An environment"
        return f"{numbers} of {self.num_workers} ({self._env_id})"


def _said(exit_code: int) -> str:
    return f"exit code {exit_code}" if exit_code >= 0 else signal.Signals(-exit_code).name
