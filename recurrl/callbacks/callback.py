"""The interface of callbacks, and several of them as one."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from tensordict import TensorDictBase

from recurrl.algorithms.metrics import check_numbers, merged
from recurrl.errors import require
from recurrl.evaluation import random_numbers_restored
from recurrl.runtime.serialization import state_copy

if TYPE_CHECKING:
    from recurrl.trainer import Trainer

logger = logging.getLogger(__name__)
STATE = "state_dict", "load_state_dict"


class Callback:
    """Runs at fixed points of :meth:`recurrl.trainer.Trainer.fit`. A subclass overrides the methods that it needs.

    User-defined callbacks are supported in single-process runs only. They may write files. To act with the policy,
    make an ``Agent(trainer.policy, trainer.config.env)``.
    """

    def on_start(self, trainer: Trainer) -> None:
        """Called once, before the first iteration."""

    def on_rollout(self, trainer: Trainer, rollout: TensorDictBase) -> None:
        """Called with each rollout ``[N, T]``, before the update."""

    def on_iteration(self, trainer: Trainer, metrics: dict[str, float]) -> bool | None:
        """Called after each update, before the iteration is saved, evaluated and logged.

        Random numbers drawn here do not affect training.

        Args:
            trainer: the run. ``trainer.frames`` includes the iteration; ``trainer.evaluation`` has the metrics of an
                evaluation after the iteration before.
            metrics: the iteration's metrics, to which callbacks add.

        Returns:
            True to stop, as ``trainer.stop()`` does: the run is saved and evaluated as if it had finished, with
            the status ``stopped``. It can be resumed.
        """

    def on_end(self, trainer: Trainer) -> None:
        """Called once, after the last iteration, also of an interrupted run; not if the run failed."""

    def close(self, failed: bool) -> None:
        """Releases files and connections. Called however the run ends."""

    def metrics(self) -> dict[str, float]:
        """Metrics to log with each iteration, in addition to the update's. Called after ``on_iteration``."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values, for checkpoints."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what ``state_dict`` returned."""


def check_callbacks(callbacks: Sequence[Any]) -> None:
    """Rejects what would not be called as its author meant, before a run begins.

    Raises:
        ConfigError: with what a callback needs.
    """
    require(isinstance(callbacks, list | tuple), f"callbacks must be a list (got a {type(callbacks).__name__}).")
    for each in callbacks:
        name = getattr(each, "__name__", None) if isinstance(each, type) else type(each).__name__
        require(
            isinstance(each, Callback),
            f"callbacks must hold objects whose class derives from recurrl.Callback (got {each!r:.80}). "
            + (f"Pass {name}()." if isinstance(each, type) else f"Derive {name} from it."),
        )
        unknown = sorted(method for method in dir(each) if method.startswith("on_") and not hasattr(Callback, method))
        known = sorted(method for method in vars(Callback) if method.startswith("on_"))
        require(
            not unknown,
            f"The callback {name} has {', '.join(unknown)}, which nothing calls. It may have {', '.join(known)}.",
        )
        saves, loads = (getattr(type(each), method) is not getattr(Callback, method) for method in STATE)
        require(saves == loads, f"The callback {name} must have both {' and '.join(STATE)}, or neither.")


class Callbacks:
    """Callbacks in the order in which they run."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks: dict[str, Callback] = {}
        for callback in callbacks:
            name = type(callback).__name__
            number = sum(type(other).__name__ == name for other in self._callbacks.values())
            self._callbacks[f"{name}_{number}" if number else name] = callback

    def on_start(self, trainer: Trainer) -> None:
        """Calls ``on_start`` of each, before the first iteration."""
        for callback in self._callbacks.values():
            callback.on_start(trainer)

    def on_rollout(self, trainer: Trainer, rollout: TensorDictBase) -> None:
        """Calls ``on_rollout`` of each, before the update."""
        for callback in self._callbacks.values():
            callback.on_rollout(trainer, rollout)

    def on_iteration(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        """Calls ``on_iteration`` of each, after the update, and adds its metrics.

        Raises:
            ConfigError: one has a metric that is not a number, or that another part of the run has too.
        """
        with random_numbers_restored():
            for name, callback in self._callbacks.items():
                if callback.on_iteration(trainer, metrics):
                    trainer.stop()
                metrics.update(merged(metrics, callback.metrics()))
                check_numbers(metrics, f" of the callback {name}")

    def on_end(self, trainer: Trainer) -> None:
        """Calls ``on_end`` of each, after the last iteration."""
        for callback in self._callbacks.values():
            callback.on_end(trainer)

    def close(self, failed: bool) -> None:
        """Closes all, however the run ends: if one fails, the others are closed nevertheless."""
        with ExitStack() as stack:
            for callback in self._callbacks.values():
                stack.callback(callback.close, failed)

    def state_dict(self) -> dict[str, Any]:
        """The states of those that have one, by name.

        Raises:
            RunError: one is not of tensors and plain values.
        """
        return {name: state for name, callback in self._callbacks.items() if (state := state_copy(callback, name))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the states of callbacks by name. One that the saved run did not have keeps its initial state."""
        if lost := sorted(state.keys() - self._callbacks.keys()):
            logger.warning("The checkpoint has states of callbacks that this run lacks: %s.", ", ".join(lost))
        for name in self._callbacks.keys() & state.keys():
            self._callbacks[name].load_state_dict(state[name])
