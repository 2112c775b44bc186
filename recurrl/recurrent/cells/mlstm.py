"""mLSTM: an LSTM with a matrix as memory, and without a recurrence through its gates.

    C' = f·C + i·k vᵀ    f = σ(w_f·input + b_f)    i = σ(w_i·input + b_i)    output = W(LN(C'ᵀq) ⊙ σ(W_o·input + b_o))

Beck et al. 2024, https://arxiv.org/abs/2405.04517, with the input gate of Beck et al. 2025,
https://arxiv.org/abs/2503.14376: a sigmoid instead of an exponential, so that there is nothing to stabilise.

Shape legend: H hidden size, N heads, K key size, V value size.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from recurrl.recurrent.cell import Weights, factory, orthogonal
from recurrl.recurrent.matrix import Access, MatrixCell


class MLSTM(MatrixCell):
    """A matrix in each head."""

    def parameters(self, input_size: int) -> dict[str, tuple[int, ...]]:
        """The maps of the input in one (q, k, v, i, f, o), and the output's."""
        values = self.heads * self.value_size
        rows = sum(self._sizes)
        return {"weight_in": (rows, input_size), "bias_in": (rows,), "weight_out": (self.hidden_size, values)}

    @property
    def _sizes(self) -> tuple[int, ...]:
        keys, values = self.heads * self.key_size, self.heads * self.value_size
        return keys, keys, values, self.heads, self.heads, values

    def initialize(self, name: str, parameter: Tensor) -> None:
        """Orthogonal matrices; biases of 3 to 6 for the forget gates, zero for others, as in the paper."""
        orthogonal(parameter, self.heads * self.key_size)
        if name == "bias_in":
            parameter.split(self._sizes)[4].copy_(torch.linspace(3, 6, self.heads))

    def project(self, weights: Weights, x: Tensor) -> Tensor:
        """The maps of the input."""
        return functional.linear(x, weights["weight_in"], weights["bias_in"])

    def access(self, weights: Weights, x: Tensor) -> tuple[Access, Tensor]:
        """Keys are scaled by 1/√K, values by the input gate."""
        q, k, v, enter, forget, rest = x.split(self._sizes, -1)
        q, k, v = (each.unflatten(-1, (self.heads, -1)) for each in (q, k * self.key_size**-0.5, v))
        return Access(q, k, torch.sigmoid(enter).unsqueeze(-1) * v, torch.sigmoid(forget)), rest

    def read(self, weights: Weights, rest: Tensor, y: Tensor) -> Tensor:
        """Each head is normalised."""
        y = functional.layer_norm(y, y.shape[-1:]).flatten(-2)
        return functional.linear(torch.sigmoid(rest) * y, weights["weight_out"])


make = factory(MLSTM)
