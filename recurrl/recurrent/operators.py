"""Runs a backend's kernels, with their hand-written derivatives, within autograd; differentiable once.

Under ``torch.compile`` both passes are custom operators, which the compiler does not look into. Eager calls skip the
operators' dispatch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

Tensors = Sequence[Any]
"""Tensors, and None where there is none."""


class Kernel(ABC):
    """The forward and backward pass of a computation on one backend.

    Args:
        options: the computation's options, as strings: a custom operator rebuilds the kernel from them.

    Attributes:
        DIFFERENTIATED: number of leading inputs that always get a gradient; the others get one if it is needed.
        names: the module, the class and its options, from which an operator rebuilds the kernel.
        results: number of leading outputs that the caller gets. The backward pass may read any output.
    """

    DIFFERENTIATED: ClassVar[int]
    results: int

    def __init__(self, *options: str) -> None:
        self.names = [type(self).__module__, type(self).__name__, *options]

    @abstractmethod
    def outputs(self, inputs: Tensors, keep: bool) -> list[Tensor]:
        """Allocates the outputs. Those that only a backward pass reads may be empty unless ``keep`` is true."""

    @abstractmethod
    def forward(self, inputs: Tensors, outputs: Tensors) -> None:
        """Writes the outputs, except where they are empty."""

    @abstractmethod
    def backward(self, inputs: Tensors, kept: Tensors, incoming: Tensors, grads: Tensors) -> None:
        """Writes the gradients of the inputs, except where they are empty.

        Args:
            inputs: the inputs of the forward pass.
            kept: the outputs.
            incoming: gradients of the results; None for zero.
            grads: memory for the gradients.
        """

    def run(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        """Runs the forward pass and returns the results, which autograd can differentiate once."""
        return _Differentiable.apply(self, torch.is_grad_enabled(), *inputs)  # type: ignore[no-untyped-call]


@cache
def _made(module: str, name: str, *options: str) -> Kernel:
    return cast(Kernel, getattr(import_module(module), name)(*options))


def _traceable(schema: str, run: Callable[..., list[Tensor]], shapes: Callable[..., list[Tensor]]) -> Any:
    """``run(kernel, ...)``; under ``torch.compile`` an operator, which rebuilds the kernel from ``kernel.names``."""
    name, _, arguments = schema.partition("(")
    operator = torch.library.custom_op(
        f"recurrl::{name}",
        lambda names, *others: run(_made(*names), *others),
        mutates_args=(),
        schema=f"(str[] names, {arguments} -> Tensor[]",
    )
    operator.register_fake(lambda names, *others: shapes(_made(*names), *others))

    def call(kernel: Kernel, *others: Any) -> list[Tensor]:
        return operator(kernel.names, *others) if torch.compiler.is_compiling() else run(kernel, *others)

    return call


def _run_forward(kernel: Kernel, keep: bool, inputs: Tensors) -> list[Tensor]:
    outputs = kernel.outputs(inputs, keep)
    kernel.forward(inputs, outputs)
    return outputs


def _run_backward(kernel: Kernel, inputs: Tensors, kept: Tensors, incoming: Tensors, wanted: Any) -> list[Tensor]:
    grads = _gradients(kernel, inputs, kept, incoming, wanted)
    kernel.backward(inputs, kept, incoming, grads)
    return grads


def _gradients(kernel: Kernel, inputs: Tensors, kept: Tensors, incoming: Tensors, wanted: Any) -> list[Tensor]:
    return [kept[0].new_empty(each.shape if wants else 0) for each, wants in zip(inputs, wanted, strict=True)]


_forward = _traceable(
    "forward(bool keep, Tensor?[] inputs)", _run_forward, lambda kernel, keep, inputs: kernel.outputs(inputs, keep)
)
_backward = _traceable(
    "backward(Tensor?[] inputs, Tensor[] kept, Tensor?[] incoming, bool[] wanted)", _run_backward, _gradients
)


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernel: Kernel, keep: bool, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        outputs = _forward(kernel, keep, inputs)
        ctx.kernel = kernel
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, *outputs)
        return tuple(outputs[: kernel.results])

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Any, ...]:
        # once_differentiable would silently omit the computation from a second derivative.
        if torch.is_grad_enabled():
            raise RuntimeError(
                "The kernels of recurrent layers have first derivatives only, but create_graph=True needs a second "
                "one. Choose backend=reference, which supports any order."
            )
        kernel: Kernel = ctx.kernel
        needed = ctx.needs_input_grad[2:]
        saved = ctx.saved_tensors
        inputs, kept = saved[: len(needed)], saved[len(needed) :]
        always = [each is not None for each in inputs[: kernel.DIFFERENTIATED]]
        wanted = [*always, *needed[kernel.DIFFERENTIATED :]]
        device = inputs[0].device.type
        # Entering autocast takes as long as several operations.
        with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
            grads = _backward(kernel, inputs, kept, incoming, wanted)
        return None, None, *[grad if wants else None for grad, wants in zip(grads, wanted, strict=True)]
