"""mLSTM: an LSTM with a matrix as memory, and without a recurrence through its gates.

    C' = f·C + i·k vᵀ    f = σ(w_f·x + b_f)    i = σ(w_i·x + b_i)    output = W(LN(C'ᵀq) ⊙ σ(W_o·x + b_o)) + D·input

where x is the normalised input, v a linear map of it, and q and k linear maps of it after a short convolution and silu.
Beck et al. 2024, https://arxiv.org/abs/2405.04517, with the input gate of Beck et al. 2025,
https://arxiv.org/abs/2503.14376: a sigmoid instead of an exponential, so that there is nothing to stabilise. The gates'
initial values are those of Beck et al. 2025, https://arxiv.org/abs/2503.13427.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from recurrl.recurrent.cell import Weights, factory_of
from recurrl.recurrent.matrix import MatrixCell, MemoryInputs


class MLSTM(MatrixCell):
    """mLSTM, with a matrix in each head as memory."""

    CONVOLVED = 2

    def parameter_shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        """The block's parameters, with biases."""
        return {**super().parameter_shapes(input_size), "bias_in": (sum(self.sizes),)}

    def initialize(self, name: str, parameter: Tensor) -> None:
        """Zero weights for i and f; biases of −10 for i, so that the memory starts nearly closed, and 3 to 6 for f."""
        super().initialize(name, parameter)
        if name == "weight_in":
            for gate in parameter.split(self.sizes)[3:5]:
                nn.init.zeros_(gate)
        elif name == "bias_in":
            _, _, _, enter, forget, _ = parameter.split(self.sizes)
            nn.init.constant_(enter, -10.0)
            forget.copy_(torch.linspace(3, 6, self.heads))

    def memory_inputs(self, weights: Weights, x: Tensor) -> tuple[MemoryInputs, Tensor]:
        """Keys are scaled by 1/√K, values by the input gate."""
        q, k, v, enter, forget, gate = x.split(self.sizes, -1)
        q, k = functional.silu(q), functional.silu(k) * self.key_size**-0.5
        q, k, v = (each.unflatten(-1, (self.heads, -1)) for each in (q, k, v))
        # The sigmoid of i. That of ONNX Runtime is off by up to half a percent where i is as small as it begins.
        i = torch.exp(-functional.softplus(-enter))
        return MemoryInputs(q, k, i.unsqueeze(-1) * v, torch.sigmoid(forget)), gate

    def read(self, weights: Weights, read_input: Tensor, y: Tensor) -> Tensor:
        """Normalises each head, then applies the output's gate."""
        return torch.sigmoid(read_input) * functional.layer_norm(y, y.shape[-1:]).flatten(-2)


make = factory_of(MLSTM)
