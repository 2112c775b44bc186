"""Callbacks: their interface, and a list of callbacks that are called together.

``builtin`` has those of every run, ``diagnosis`` the one that warns if a run does not learn.

Shape legend: N environments, T steps of a row.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import chain, count
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from tensordict import TensorDictBase

from recurrl.agent import Agent
from recurrl.config import EnvConfig
from recurrl.errors import ConfigError, check_method, require, user_code
from recurrl.policy import Policy
from recurrl.runtime.metrics import floats, merged
from recurrl.runtime.seeds import random_numbers_restored
from recurrl.runtime.serialization import Stateful, state_copy

if TYPE_CHECKING:
    from recurrl.trainer import Trainer

logger = logging.getLogger(__name__)


class Callback:
    """Runs at fixed points of :meth:`recurrl.trainer.Trainer.fit`. A subclass overrides the methods that it needs.

    User-defined callbacks may write files. Random numbers that they draw from global generators
    affect training; those that an :class:`IterationCallback` draws do not.
    """

    @property
    def name(self) -> str:
        """The name of the callback's state in checkpoints; by default that of the class."""
        return type(self).__name__

    def on_start(self, trainer: Trainer) -> None:
        """Called once, before the first iteration."""

    def on_rollout(self, trainer: Trainer, rollout: TensorDictBase) -> Mapping[str, float] | None:
        """Called with each rollout ``[N, T]``, before the update.

        Returns:
            Metrics to log with the iteration, if there are any.
        """

    def on_iteration(self, trainer: Trainer, metrics: dict[str, float]) -> bool | None:
        """Called after each update; ``trainer.frames`` already includes this iteration.

        Args:
            trainer: the run.
            metrics: the iteration's metrics, to which callbacks may add. Users' callbacks run after an evaluation that
                is due, so they get its metrics too.

        Returns:
            True to end the run after this iteration, as ``trainer.stop()`` does.
        """

    def on_end(self, trainer: Trainer) -> None:
        """Called once, after the last iteration, also if a signal ended the run or, in a run of one process,
        environments failed in a rollout. It is not called after other errors.
        """

    def close(self, failed: bool) -> None:
        """Releases files and connections. Called however the run ends."""

    def state_dict(self) -> dict[str, Any]:
        """The state for checkpoints, of tensors and plain values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what ``state_dict`` returned."""


class IterationCallback(Protocol):
    """A callback that needs no more than the run's metrics and policy.

    If it has ``state_dict()`` and ``load_state_dict(state)``, checkpoints hold its state, of tensors and plain values.
    """

    def on_iteration(self, metrics: dict[str, float], agent: Agent) -> bool | None:
        """Called after each iteration, before it is logged. Random numbers drawn here do not affect training.

        Args:
            metrics: the iteration's metrics, with ``frames``, and those of the evaluation if one was due. Callbacks may
                add to them.
            agent: the policy with the parameters after this iteration, as an agent.

        Returns:
            True to stop: the run is saved and evaluated as if it had finished, with the status ``stopped``, and can be
            resumed.
        """


class UserCallback(Callback):
    """An :class:`IterationCallback` as a callback of the trainer.

    Args:
        callback: the user's.
        policy: the policy that is trained.
        env: the environments' options.
    """

    def __init__(self, callback: IterationCallback, policy: Policy, env: EnvConfig) -> None:
        self.user, self._agent = callback, Agent(policy, env)

    @property
    def name(self) -> str:
        """The name of the user's class."""
        return type(self.user).__name__

    def on_iteration(self, trainer: Trainer, metrics: dict[str, float]) -> bool | None:
        """Calls the user's callback with the metrics and ``frames``, and keeps what it adds to them."""
        seen = {"frames": trainer.frames, **metrics}
        with random_numbers_restored():
            ends = self.user.on_iteration(seen, self._agent)
        metrics |= {name: value for name, value in seen.items() if name != "frames"}
        return ends

    def state_dict(self) -> dict[str, Any]:
        """The callback's state, if it has one."""
        return self.user.state_dict() if isinstance(self.user, Stateful) else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the callback's state."""
        if isinstance(self.user, Stateful):
            self.user.load_state_dict(state)


def check_callbacks(callbacks: Sequence[Any]) -> None:
    """Rejects callbacks whose methods would not be called as intended, before a run begins.

    Raises:
        ConfigError: the message says what the callback needs.
    """
    require(isinstance(callbacks, list | tuple), f"callbacks must be a list (got a {type(callbacks).__name__}).")
    for each in callbacks:
        is_class, derives = isinstance(each, type), isinstance(each, Callback)
        name = (each if is_class else type(each)).__name__
        require(not is_class, f"callbacks must be objects (got the class {name}). Pass {name}().")
        base, others = (Callback, "metrics") if derives else (IterationCallback, "trainer")
        known = sorted(method for method in vars(base) if method.startswith("on_") or method == "close")
        unknown = sorted(method for method in dir(each) if method.startswith("on_") and method not in known)
        require(
            not unknown,
            f"on_ methods of the callback {name} must be among {', '.join(known)} (got {', '.join(unknown)})."
            + " Derive it from recurrl.Callback for that class's other methods." * (not derives),
        )
        for method in known:
            check_method(f"The callback {name}", each, base, method)
        arguments, why = ("trainer, metrics", "derives") if derives else ("metrics, agent", "does not derive")
        require(
            next(iter(inspect.signature(each.on_iteration).parameters)) != others,
            f"The callback {name} must have on_iteration({arguments}), because it {why} from recurrl.Callback.",
        )
        require(
            _defines(each, "state_dict") == _defines(each, "load_state_dict"),
            f"The callback {name} must have both state_dict and load_state_dict, or neither.",
        )


def _defines(callback: object, method: str) -> bool:
    """True if a callback, or the user's that it calls, has a method other than that of :class:`Callback`."""
    one = callback.user if isinstance(callback, UserCallback) else callback
    return getattr(type(one), method, None) not in (None, getattr(Callback, method))


class Callbacks:
    """Callbacks in the order in which they run."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks: dict[str, Callback] = {}
        for callback in callbacks:
            names = chain([callback.name], (f"{callback.name}_{number}" for number in count(1)))
            self._callbacks[next(name for name in names if name not in self._callbacks)] = callback

    def on_start(self, trainer: Trainer) -> None:
        """Calls ``on_start`` of each, before the first iteration."""
        for callback in self._callbacks.values():
            callback.on_start(trainer)

    def on_rollout(self, trainer: Trainer, rollout: TensorDictBase) -> dict[str, float]:
        """Calls ``on_rollout`` of each, before the update, and returns the metrics of all.

        Raises:
            ConfigError: a callback returns something else, two have a metric of the same name, or one is not a number.
        """
        parts: list[Mapping[str, float]] = []
        for name, callback in self._callbacks.items():
            metrics = callback.on_rollout(trainer, rollout)
            if not isinstance(metrics, Mapping | None):
                raise ConfigError(
                    f"on_rollout of the callback {name} must return metrics by name, or None (got {metrics!r:.60})."
                )
            parts.append(metrics or {})
        return floats(merged(*parts))

    def on_iteration(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        """Calls ``on_iteration`` of each, after the update.

        If a signal interrupts the evaluation, the callbacks after it are not called: a resumed run calls all again.

        Raises:
            ConfigError: a callback returns neither a bool nor None.
        """
        for name, callback in self._callbacks.items():
            ends = callback.on_iteration(trainer, metrics)
            if not isinstance(ends, bool | np.bool_ | None):
                raise ConfigError(
                    f"on_iteration of the callback {name} must return True, False or None (got {ends!r:.60})."
                )
            if ends:
                trainer.stop()
            if trainer.is_interrupted:
                return

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
        """The states of the callbacks that have one, by name.

        Raises:
            RunError: a state holds something other than tensors and plain values.
        """
        return {name: state for name, each in self._callbacks.items() if (state := state_copy(each, name)) != {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the states of callbacks by name. A callback without a saved state keeps its initial one.

        Raises:
            ConfigError: a callback's ``load_state_dict`` fails.
        """
        saved, now = state.keys(), self._callbacks.keys()
        if lost := sorted(saved - now):
            logger.warning("The checkpoint has states of callbacks that this run lacks: %s.", ", ".join(lost))
        if new := sorted(name for name in now - saved if _defines(self._callbacks[name], "state_dict")):
            logger.warning("The checkpoint has no states of these callbacks, which start fresh: %s.", ", ".join(new))
        for name in now & saved:
            with user_code(f"load_state_dict of the callback {name} fails", "It gets what state_dict returned."):
                self._callbacks[name].load_state_dict(state[name])
