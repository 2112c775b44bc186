"""The linear recurrence ``s[t] = a[t] · s[t−1] + b[t]`` by a backend.

Shape legend: B rows, T steps; any further dimensions are a state's.
"""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from recurrl.recurrent.operators import Kernel, Tensors

REAL, COMPLEX = "real", "complex"


class RecurrenceKernel(Kernel):
    """Both passes by one backend.

    The inputs are a, b, the starts and the stored states, ``[B, T, ...]`` each; the output is the states after each
    step.

    Args:
        numbers: real, or complex: then the first dimension of a state, of size 2, has real and imaginary parts.
    """

    DIFFERENTIATED, unread = 2, 0

    def __init__(self, numbers: str) -> None:
        self.planes = 2 if numbers == COMPLEX else 1
        super().__init__(numbers)

    def outputs(self, inputs: Tensors, keep: bool) -> list[Tensor]:
        """Memory for the states."""
        return [inputs[1].new_empty(inputs[1].shape)]

    def forward(self, inputs: Tensors, outputs: Tensors) -> None:
        """Writes the states."""
        self.launch("forward", *self._read(inputs, outputs), inputs[1].contiguous())

    def backward(self, inputs: Tensors, kept: Tensors, incoming: Tensors, grads: Tensors) -> None:
        """Writes the gradients of a, b and the stored states, from the states'."""
        grad_a, grad_b, _, grad_stored = grads
        self.launch("backward", *self._read(inputs, kept), incoming[0].contiguous(), grad_a, grad_b, grad_stored)

    @abstractmethod
    def launch(
        self, direction: str, a: Tensor, stored: Tensor, starts_BT: Tensor, states: Tensor, *memory: Tensor
    ) -> None:
        """Runs the kernel.

        Args:
            direction: ``forward`` or ``backward``.
            a: contiguous within a step, as are the stored states.
            stored: the stored states.
            starts_BT: where one enters.
            states: after each step.
            memory: b; or the gradient of the states, and memory for those of a, b and the stored states.
        """

    def _read(self, inputs: Tensors, kept: Tensors) -> tuple[Tensor, ...]:
        (a, _, starts_BT, stored), (states,) = inputs, kept
        if stored.shape != states.shape or a.dtype != states.dtype:
            raise ValueError(
                f"The stored states must be {list(states.shape)} and the coefficients {states.dtype} (got "
                f"{list(stored.shape)} and {a.dtype})."
            )
        a, stored = (each if each[0, 0].is_contiguous() else each.contiguous() for each in (a, stored.to(states)))
        return a, stored, starts_BT.bool().contiguous(), states
