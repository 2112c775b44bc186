"""Cells with a matrix as memory, which keys write to and queries read from.

Each is a block as in the papers: it normalises its input, convolves a part of it over the last steps, and adds a
linear map of the input to the memories' output, in place of a residual connection.

Shape legend: B rows, T steps, N heads, K key size, V value size, X size of a projected input, C features that are
convolved, O output size.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from recurrl.recurrent.cell import Cell, States, Weights, orthogonal
from recurrl.recurrent.windows import convolved, windows


class MemoryInputs(NamedTuple):
    """The inputs of the memories, in one step or in each of many.

    Attributes:
        query: ``[..., N, K]``.
        key: ``[..., N, K]``.
        value: ``[..., N, V]``.
        decay: the fraction of a memory that is kept, α, ``[..., N]``.
        beta: β of the delta rule, the fraction by which what the key reads moves towards the value, ``[..., N]``; None
            to add the value instead.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    decay: Tensor
    beta: Tensor | None = None


Memories = Callable[[MemoryInputs, Tensor, Tensor], tuple[Tensor, ...]]
"""Computes what the queries read ``[B, T, N, V]`` and the memories ``[B, T, N, K, V]`` after each step, from the
memories' inputs, the starts of segments ``[B, T]`` and the stored memories.
"""


class MatrixCell(Cell):
    """A cell with a memory ``S`` ``[K, V]`` in each head. Subclasses define the memory's inputs and use its output.

    ``S' = αS + k·eᵀ`` with ``e = v``, or ``e = β(v − (αS)ᵀk)`` by the delta rule; read as ``y = S'ᵀq``. The output is
    ``W·read(y) + D·input``.

    Args:
        hidden_size: features of the output, O.
        heads: number of memories, N.
        key_size: size of a key and of a query, K.
        value_size: size of a value, V.

    Attributes:
        CONVOLVED: number of leading parts in ``sizes`` that are convolved over the last steps, feature by feature.
        WINDOW: length of the convolution in steps.
    """

    CONVOLVED: ClassVar[int]
    WINDOW: ClassVar[int] = 4

    def __init__(self, hidden_size: int, heads: int = 4, key_size: int = 16, value_size: int = 16) -> None:
        self.hidden_size, self.heads, self.key_size, self.value_size = hidden_size, heads, key_size, value_size

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of features in each part of the projected input: here queries, keys, values, two gates per head, and
        the output's gate.
        """
        keys, values = self.heads * self.key_size, self.heads * self.value_size
        return keys, keys, values, self.heads, self.heads, values

    @abstractmethod
    def memory_inputs(self, weights: Weights, x: Tensor) -> tuple[MemoryInputs, Tensor]:
        """The memories' inputs, and what ``read`` needs of ``x [..., X]``, the projected input of one or many steps."""

    @abstractmethod
    def read(self, weights: Weights, read_input: Tensor, y: Tensor) -> Tensor:
        """``[..., N · V]`` from what the queries read, y ``[..., N, V]``."""

    @property
    def convolved(self) -> int:
        """Number of convolved features, C."""
        return sum(self.sizes[: self.CONVOLVED])

    def parameter_shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        """The projection of the input, D, the convolution, and W."""
        return {
            "weight_in": (sum(self.sizes), input_size),
            "weight_skip": (self.hidden_size, input_size),
            "weight_conv": (self.WINDOW, self.convolved),
            "weight_out": (self.hidden_size, self.heads * self.value_size),
        }

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """The memories, and the earlier inputs of the convolution."""
        return {"": (self.heads, self.key_size, self.value_size), "_window": (self.WINDOW - 1, self.convolved)}

    def initialize(self, name: str, parameter: Tensor) -> None:
        """Orthogonal matrices; the convolution as torch's, uniform within ±1/√steps.

        A decay's parameters are as Mamba's, if a cell has them: rates of 1 to 16 after the exponential, and time steps
        of 0.001 to 0.1 after the softplus.
        """
        if name == "weight_conv":
            nn.init.uniform_(parameter, -(self.WINDOW**-0.5), self.WINDOW**-0.5)
        elif name == "log_rate":
            nn.init.uniform_(parameter, 1, 16).log_()
        elif name in ("bias_rate", "bias_step"):
            nn.init.uniform_(parameter, math.log(0.001), math.log(0.1)).exp_().expm1_().log_()
        else:
            orthogonal(parameter, self.heads * self.value_size)

    def project(self, weights: Weights, x: Tensor) -> Tensor:
        """The parts, computed from the input divided by its root mean square, and ``D·input``."""
        normal = functional.rms_norm(x, x.shape[-1:], eps=1e-6)
        parts = functional.linear(normal, weights["weight_in"], weights.get("bias_in"))
        return torch.cat((parts, functional.linear(x, weights["weight_skip"])), -1)

    def step(self, weights: Weights, x_BX: Tensor, states: States) -> tuple[Tensor, States]:
        """Computes one step of the memories, and the output."""
        parts, skip = self._split(x_BX)
        window = torch.cat((states[1], parts[:, : self.convolved].unsqueeze(1)), 1)
        (q, k, v, decay, beta), read_input = self.memory_inputs(weights, self._convolve(weights, parts, window))
        memory = decay.unsqueeze(-1).unsqueeze(-1) * states[0]
        if beta is not None:
            v = beta.unsqueeze(-1) * (v - (k.unsqueeze(-2) @ memory).squeeze(-2))
        memory = memory + k.unsqueeze(-1) * v.unsqueeze(-2)
        y = self.read(weights, read_input, (q.unsqueeze(-2) @ memory).squeeze(-2))
        return skip + functional.linear(y, weights["weight_out"]), (memory, window[:, 1:])

    def scan(
        self, memories: Memories, weights: Weights, x_BTX: Tensor, starts_BT: Tensor, stored: States
    ) -> tuple[Tensor, States]:
        """Computes all steps by an implementation of the memories: the outputs ``[B, T, O]`` and the states."""
        parts, skip = self._split(x_BTX)
        window = windows(parts[..., : self.convolved], starts_BT, stored[1])
        inputs, read_input = self.memory_inputs(weights, self._convolve(weights, parts, window))
        y, memory = memories(inputs, starts_BT, stored[0])
        output = skip + functional.linear(self.read(weights, read_input, y), weights["weight_out"])
        return output, (memory, window[:, :, 1:])

    def _split(self, x: Tensor) -> tuple[Tensor, ...]:
        return x.split((sum(self.sizes), self.hidden_size), -1)

    def _convolve(self, weights: Weights, parts: Tensor, window: Tensor) -> Tensor:
        mixed = convolved(window, weights["weight_conv"], weights.get("bias_conv"))
        return torch.cat((mixed, parts[..., self.convolved :]), -1)
