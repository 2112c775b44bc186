"""The linear recurrence ``s[t] = a[t] · s[t−1] + b[t]`` on one backend.

Shape legend: B rows, T steps; any further dimensions are a state's.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from recurrl.recurrent.operators import Kernel, Tensors

REAL, COMPLEX = "real", "complex"


class RecurrenceKernel(Kernel):
    """The forward and backward pass of the recurrence on one backend.

    The inputs are a, b, the starts and the stored states, ``[B, T, ...]`` each; the output is the states after each
    step.

    Args:
        numbers: ``real`` or ``complex``; a complex state's first dimension, of size 2, has real and imaginary parts.
    """

    DIFFERENTIATED, results = 2, 1

    def __init__(self, numbers: str) -> None:
        self.planes = 2 if numbers == COMPLEX else 1
        super().__init__(numbers)

    @classmethod
    def recurrence(cls, a: Tensor, b: Tensor, starts_BT: Tensor, stored: Tensor, pair: int | None) -> Tensor:
        """Computes :func:`~recurrl.recurrent.linear_recurrence.linear_recurrence`; differentiable once."""
        return cls(REAL if pair is None else COMPLEX).run(a.expand(b.shape), b, starts_BT, stored)[0]

    def outputs(self, inputs: Tensors, keep: bool) -> list[Tensor]:
        """Allocates the states."""
        return [inputs[1].new_empty(inputs[1].shape)]

    def forward(self, inputs: Tensors, outputs: Tensors) -> None:
        """Writes the states."""
        self._run("forward", inputs, outputs, inputs[1].contiguous())

    def backward(self, inputs: Tensors, kept: Tensors, incoming: Tensors, grads: Tensors) -> None:
        """Writes the gradients of a, b and the stored states, given the gradient of the states."""
        (grad,), (grad_a, grad_b, _, grad_stored) = incoming, grads
        grad = torch.zeros_like(kept[0]) if grad is None else grad.contiguous()
        self._run("backward", inputs, kept, grad, grad_a, grad_b, grad_stored)

    @abstractmethod
    def launch(self, direction: str, states: Tensor, strides: tuple[int, ...], *tensors: Tensor) -> None:
        """Runs the kernel.

        Args:
            direction: ``forward`` or ``backward``.
            states: the states after each step.
            strides: between rows and between steps: first of a, then of the stored states.
            tensors: a and the stored states, contiguous within a step, and the starts; then, for ``forward``, b; for
                ``backward``, the gradient of the states, and memory for the gradients of a, b and the stored states.
        """

    def _run(self, direction: str, inputs: Tensors, kept: Tensors, *memory: Tensor) -> None:
        (a, _, starts_BT, stored), (states,) = inputs, kept
        if stored.shape != states.shape or a.dtype != states.dtype:
            raise ValueError(
                f"The stored states must be {list(states.shape)} and the coefficients {states.dtype} (got "
                f"{list(stored.shape)} and {a.dtype})."
            )
        a, stored = (each if each[0, 0].is_contiguous() else each.contiguous() for each in (a, stored.to(states)))
        strides = (*a.stride()[:2], *stored.stride()[:2])
        self.launch(direction, states, strides, a, stored, starts_BT.bool().contiguous(), *memory)
