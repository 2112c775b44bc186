"""The interface of callbacks, and several of them as one."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from tensordict import TensorDictBase

from recurrl.agent import Agent
from recurrl.algorithms.algorithm import merged
from recurrl.errors import RunError
from recurrl.evaluation import random_numbers_restored
from recurrl.runtime.in_bytes import read, written

if TYPE_CHECKING:
    from recurrl.trainer import Trainer

logger = logging.getLogger(__name__)


class Callback:
    """Runs at fixed points of :meth:`recurrl.trainer.Trainer.fit`. A subclass overrides the methods that it needs.

    Those of users run on rank 0 alone, and may write files.

    What a callback draws at random in ``on_iteration`` changes the run; :class:`IterationCallback` leaves it unchanged.
    """

    def on_start(self, trainer: Trainer) -> None:
        """Called once, before the first iteration."""

    def on_rollout(self, trainer: Trainer, rollout: TensorDictBase) -> None:
        """Called with each rollout ``[N, T]``, before the update."""

    def on_iteration(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        """Called after each update. ``trainer.frames`` includes the iteration.

        Args:
            trainer: ``trainer.stop()`` ends the run after this iteration.
            metrics: of the iteration, to which callbacks add. Those after the evaluation see its metrics too.
        """

    def on_end(self, trainer: Trainer) -> None:
        """Called once, after the last iteration; not if the run failed."""

    def close(self, failed: bool) -> None:
        """Releases files and connections. Called however the run ends."""

    def metrics(self) -> dict[str, float]:
        """Metrics to log with each iteration, beside those of the update."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values, for checkpoints."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what ``state_dict`` returned."""


class IterationCallback(Protocol):
    """A callback of a run that only sees its metrics and its policy.

    It may have ``state_dict()`` and ``load_state_dict(state)``: checkpoints then hold its state, of tensors and plain
    values.
    """

    def on_iteration(self, metrics: Mapping[str, float], policy: Agent) -> bool | None:
        """Called after each iteration, before it is logged. What it draws at random does not change the run.

        Args:
            metrics: of the iteration, with those of the evaluation after it if there was one, and ``frames``.
            policy: acts with the parameters that the iteration learned.

        Returns:
            True to stop: the run is saved and evaluated as at its end, with the status ``stopped``. It can be resumed.
        """


@runtime_checkable
class _Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Adapted(Callback):
    """An :class:`IterationCallback` as a callback of the trainer."""

    def __init__(self, callback: IterationCallback, policy: Agent) -> None:
        self.callback, self._policy = callback, policy

    def on_iteration(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        """Calls it, and stops the run if it returns True."""
        if trainer.evaluation is None and not trainer.stopped:
            return  # the evaluation was interrupted; a resumed run repeats it
        with random_numbers_restored():
            stops = self.callback.on_iteration({"frames": trainer.frames, **metrics}, self._policy)
        if stops and not trainer.is_last:
            trainer.stop()

    def state_dict(self) -> dict[str, Any]:
        """The callback's state, if it has one.

        Raises:
            RunError: it is not of tensors and plain values.
        """
        if not isinstance(self.callback, _Stateful):
            return {}
        state = self.callback.state_dict()
        try:
            read(written(state))
        except Exception as error:
            raise RunError(
                f"state_dict() of {type(self.callback).__name__} must return tensors and plain values: {error}"
            ) from error
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores it."""
        if isinstance(self.callback, _Stateful):
            self.callback.load_state_dict(state)


class Callbacks:
    """Callbacks in the order in which they run."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = callbacks

    def on_start(self, trainer: Trainer) -> None:
        """Before the first iteration."""
        for callback in self._callbacks:
            callback.on_start(trainer)

    def on_rollout(self, trainer: Trainer, rollout: TensorDictBase) -> None:
        """Before the update."""
        for callback in self._callbacks:
            callback.on_rollout(trainer, rollout)

    def on_iteration(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        """After the update."""
        trainer.evaluation, trainer.checkpoint = {}, None
        for callback in self._callbacks:
            callback.on_iteration(trainer, metrics)

    def on_end(self, trainer: Trainer) -> None:
        """After the last iteration."""
        for callback in self._callbacks:
            callback.on_end(trainer)

    def close(self, failed: bool) -> None:
        """However the run ends; if one fails, the others are closed nevertheless."""
        with ExitStack() as stack:
            for callback in self._callbacks:
                stack.callback(callback.close, failed)

    def metrics(self) -> dict[str, float]:
        """Those of all.

        Raises:
            ConfigError: two have a metric of the same name.
        """
        return merged(*(callback.metrics() for callback in self._callbacks))

    def state_dict(self) -> dict[str, Any]:
        """The states of all that have one, by name."""
        return {name: state for name, callback in self._named() if (state := callback.state_dict())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the states of those that were in the saved run, too; others begin anew, and the log says so."""
        for name, callback in self._named():
            if name in state:
                callback.load_state_dict(state[name])
            elif callback.state_dict():
                logger.warning("The checkpoint holds no state of the callback %s, which begins anew.", name)

    def _named(self) -> list[tuple[str, Callback]]:
        """The callbacks by the names of their classes, with a number where there are several of one."""
        named: dict[str, Callback] = {}
        for callback in self._callbacks:
            of = callback.callback if isinstance(callback, Adapted) else callback
            name = base = type(of).__name__
            number = 1
            while name in named:
                number += 1
                name = f"{base}_{number}"
            named[name] = callback
        return list(named.items())
