"""The gradient of a minibatch: computed by autograd, and on a CPU repeated from a recording."""

import logging
import time
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from recurrl.algorithms.algorithm import Algorithm, check_losses
from recurrl.errors import ConfigError, require
from recurrl.learning.compiling import Loss, compiled
from recurrl.learning.recording import Recording, record
from recurrl.losses import Losses
from recurrl.losses.deferred import Deferred, Metrics
from recurrl.recurrent import RecurrentModule
from recurrl.recurrent.backends import AUTO, load_backend

logger = logging.getLogger(__name__)


class Gradient:
    """Computes the losses of minibatches, and their gradients.

    On a CPU the tensor operations of one minibatch are recorded and repeated for others, without the Python around them
    and autograd's bookkeeping. A step of the default run takes three quarters of the time, with the same numbers, bit
    for bit. That is checked on a second minibatch, and again at the first one of every iteration.

    Args:
        algorithm: has the loss.
        vectors: the parameters, as :func:`recurrl.learning.flat.flattened` returns them.
        compiles: compile the loss; then nothing is recorded.

    Attributes:
        compile_time_s: seconds of the first gradient, nearly all of them the compiler's; None before it, and if
            nothing is compiled.
    """

    def __init__(self, algorithm: Algorithm, vectors: Sequence[nn.Parameter], compiles: bool) -> None:
        self._algorithm, self._compiles = algorithm, compiles
        self._gradients = [vector.grad for vector in vectors if vector.grad is not None]
        self._loss: Loss = compiled(algorithm.loss) if compiles else algorithm.loss
        self._names: set[str] | None = None
        self.compile_time_s: float | None = None
        self._recording: Recording | None = None
        self._form: _Form | None = None
        self._is_checked = False
        self._is_recorded = not compiles

    def __call__(self, minibatch: TensorDictBase, first: bool) -> tuple[Losses, Tensor]:
        """The losses of a minibatch and their total, whose gradient is then in the parameters' ``grad``.

        Args:
            minibatch: entries ``[S, K, ...]``.
            first: it is the first one of an iteration.

        Raises:
            ConfigError: the loss does not keep to :mod:`recurrl.algorithms.algorithm`.
        """
        if not self._is_recorded or torch.is_anomaly_enabled() or (first and self._recording is None):
            return self.compute(minibatch)
        # By name, because a TensorDict has the order in which its entries were written.
        inputs = [entry for _, entry in sorted(minibatch.items(True, True), key=_name)]
        if self._recording is None:
            return self._record(minibatch, inputs)
        if not self._recording.fits(inputs):
            return self.compute(minibatch)
        if first or not self._is_checked:
            return self._check(minibatch, inputs)
        assert self._form is not None
        return self._form.filled(self._recording(inputs))

    def compute(self, minibatch: TensorDictBase) -> tuple[Losses, Tensor]:
        """The same, always by autograd."""
        began = time.perf_counter()
        losses = self._losses(minibatch)
        for gradient in self._gradients:
            gradient.zero_()
        total = losses.total
        total.backward()
        if self._compiles and self.compile_time_s is None:
            self.compile_time_s = time.perf_counter() - began
        return losses, total.detach()

    def _record(self, minibatch: TensorDictBase, inputs: list[Tensor]) -> tuple[Losses, Tensor]:
        refusal = _refusal(self._algorithm.loss)
        if refusal is not None:
            self._refuse(refusal)
            return self.compute(minibatch)
        found: list[tuple[Losses, Tensor]] = []

        def function() -> list[Tensor]:
            found.append(self.compute(minibatch))
            return _tensors(*found[0])

        modules: nn.Module = self._algorithm.loss
        gradients = [parameter.grad for parameter in modules.parameters() if parameter.grad is not None]
        known = [*modules.parameters(), *modules.buffers(), *gradients, *self._gradients]
        _, recording = record(function, inputs, known)
        self._form, self._is_checked = _Form(found[0][0]), False
        if isinstance(recording, Recording):
            self._recording = recording
        else:
            self._refuse(recording)
        return found[0]

    def _check(self, minibatch: TensorDictBase, inputs: list[Tensor]) -> tuple[Losses, Tensor]:
        """Computes a minibatch both ways."""
        assert self._recording is not None
        losses, total = self.compute(minibatch)
        expected = [gradient.clone() for gradient in self._gradients]
        repeated = self._recording(inputs)
        if all(map(_equal, (*repeated, *self._gradients), (*_tensors(losses, total), *expected))):
            if not self._is_checked:
                logger.info("Gradient steps repeat recorded operations.")
            self._is_checked = True
            return losses, total
        for gradient, of_autograd in zip(self._gradients, expected, strict=True):
            gradient.copy_(of_autograd)
        self._refuse("they give other numbers than autograd, so they depend on what is not a tensor")
        return losses, total

    def _refuse(self, reason: str) -> None:
        logger.info("Gradient steps are computed by autograd, because their operations cannot be repeated: %s.", reason)
        self._is_recorded, self._recording = False, None

    def _losses(self, minibatch: TensorDictBase) -> Losses:
        """The losses of a minibatch; those of the first one are checked, and later ones must have the same names."""
        name = self._algorithm.options.name
        try:
            losses: Losses = self._loss(minibatch)
        except KeyError as error:
            raise ConfigError(
                f"The loss of algorithm={name} failed with KeyError: {error}. If it is an entry of the minibatch, name "
                "it in the algorithm's keys, or in the reads of its terms."
            ) from error
        names = {*losses.terms, *losses.metrics}
        if self._names is None:
            check_losses(losses, name)
            self._names = names
        require(
            names == self._names,
            f"The loss of algorithm={name} returns {sorted(names ^ self._names)} for some minibatches only. Return the "
            "same terms and metrics for each.",
        )
        return losses


class _Form:
    """What :class:`Losses` have besides their tensors."""

    def __init__(self, losses: Losses) -> None:
        self._terms = list(losses.terms)
        self._metrics = {
            name: (value.function, len(value.tensors)) if isinstance(value, Deferred) else None
            for name, value in losses.entries.items()
        }

    def filled(self, tensors: Iterable[Tensor]) -> tuple[Losses, Tensor]:
        """Losses and their total, from what :func:`_tensors` returned."""
        rest = iter(tensors)
        total, terms = next(rest), {name: next(rest) for name in self._terms}
        metrics: dict[str, Any] = {
            name: next(rest) if form is None else Deferred(form[0], tuple([next(rest) for _ in range(form[1])]))
            for name, form in self._metrics.items()
        }
        weights: Any = tuple(rest) or None
        return Losses(terms, Metrics(metrics), weights), total


def _tensors(losses: Losses, total: Tensor) -> list[Tensor]:
    tensors = [total, *losses.terms.values()]
    for value in losses.entries.values():
        tensors += value.tensors if isinstance(value, Deferred) else [value]
    return [*tensors, *(losses.weights or ())]


def _name(item: tuple[NestedKey, Tensor]) -> str:
    return str(item[0])


def _equal(ours: Tensor, theirs: Tensor) -> bool:
    """True if they have the same numbers, and NaN where the other has."""
    return bool(((ours == theirs) | ((ours != ours) & (theirs != theirs))).all())


def _refusal(loss: Any) -> str | None:
    """Why a loss may do more than tensor operations; None if it does not."""
    if any(isinstance(module, RecurrentModule) for module in loss.modules()):
        return "a recurrent layer's backend is not seen by the recorder"
    for module in loss.modules() if isinstance(loss, nn.Module) else [loss]:
        parts = [module]
        if isinstance(module, RecurrentModule):
            parts.append(module.cell)
            if module.recurrent_backend != AUTO:
                parts.append(load_backend(module.recurrent_backend))
        for part in parts:
            origin = part.__name__ if isinstance(part, ModuleType) else type(part).__module__
            if origin.partition(".")[0] not in ("torch", "recurrl"):
                return f"{type(part).__qualname__} is neither torch's nor ours"
        if has_hooks(module):
            return f"a {type(module).__qualname__} has hooks"
        if any(parameter.device.type != "cpu" for parameter in module.parameters(False)):
            return "the device is not a CPU"
    return None


def has_hooks(module: nn.Module) -> bool:
    """True for hooks, and for whatever else makes a call differ from the class's ``forward``."""
    own = (
        module._forward_pre_hooks,
        module._forward_hooks,
        module._backward_pre_hooks,
        module._backward_hooks,
        module._compiled_call_impl,
        "forward" in vars(module),
        type(module).__call__ is not nn.Module.__call__,
    )
    return any(own) or bool(_has_any_global_hook())
