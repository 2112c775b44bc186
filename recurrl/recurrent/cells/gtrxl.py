"""GTrXL: attention over the last inputs of a layer, with gates like a GRU's in place of residual connections.

    y = g(x, relu(Attention(LN(window))))    output = g(y, relu(W₂·relu(W₁·LN(y))))
    g(x, y) = (1 − z) ⊙ x + z ⊙ tanh(W_g·y + U_g(r ⊙ x))    r = σ(W_r·y + U_r·x)    z = σ(W_z·y + U_z·x − b)

where x is a linear map of the input and the newest entry of the window; the attention adds a learned term for each
distance to its scores. Parisotto et al. 2019, https://arxiv.org/abs/1910.06764. Initially z is small, so that the
output is almost x. Gradients do not flow into a stored window.

Shape legend: B rows, T steps, H hidden size, X size of a projected input, S the window (the earlier inputs and the
current one).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from recurrl.recurrent.cell import ParallelCell, States, Weights, factory_of, orthogonal
from recurrl.recurrent.windows import windows

PARTS = ("attention", "dense")
BIAS = 2.0
"""The initial value of b."""


class GTrXL(ParallelCell):
    """GTrXL, whose states are the earlier inputs, the oldest first, and their number.

    Args:
        hidden_size: features of the input's map and of the output, H.
        heads: number of attention heads.
        key_size: features per head.
        length: inputs in the window, including the current one, S; at least 2.
    """

    def __init__(self, hidden_size: int, heads: int = 4, key_size: int = 16, length: int = 32) -> None:
        self.hidden_size, self.heads, self.key_size, self.length = hidden_size, heads, key_size, length

    def parameter_shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        """The input's map; the attention's q, k and v in one, its distances and output; W₁ and W₂; the gates."""
        hidden, inner = self.hidden_size, self.heads * self.key_size
        gate_shapes = {"weight": (3 * hidden, hidden), "recurrent": (3 * hidden, hidden), "bias": (hidden,)}
        return {
            "weight_in": (hidden, input_size),
            "weight_qkv": (3 * inner, hidden),
            "distance": (self.heads, self.length, self.key_size),
            "weight_read": (hidden, inner),
            "weight_1": (hidden, hidden),
            "weight_2": (hidden, hidden),
            **{f"{kind}_{part}": shape for part in PARTS for kind, shape in gate_shapes.items()},
        }

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """The window without the current input, and how many of its inputs belong to this episode."""
        return {"_window": (self.length - 1, self.hidden_size), "_count": ()}

    def initialize(self, name: str, parameter: Tensor) -> None:
        """Orthogonal matrices, zero distances, and gate biases of :data:`BIAS`."""
        if name.startswith("bias"):
            parameter.fill_(BIAS)
        elif name == "distance":
            nn.init.zeros_(parameter)
        else:
            orthogonal(parameter, self.heads * self.key_size if name == "weight_qkv" else self.hidden_size)

    def project(self, weights: Weights, x: Tensor) -> Tensor:
        """The input's map."""
        return functional.linear(x, weights["weight_in"])

    def step(self, weights: Weights, x_BX: Tensor, states: States) -> tuple[Tensor, States]:
        """Attends over the window that ends with the new input."""
        window, count = torch.cat((states[0], x_BX.unsqueeze(1)), 1), states[1]
        return self.attend(weights, window, count), (window[:, 1:], (count + 1).clamp(max=self.length - 1))

    def parallel(self, weights: Weights, x_BTX: Tensor, starts_BT: Tensor, stored: States) -> tuple[Tensor, States]:
        """Attends over the windows of all steps at once."""
        step = torch.arange(starts_BT.shape[1], device=x_BTX.device)
        start = torch.where(starts_BT, step, 0).cummax(1).values
        before = (stored[1].gather(1, start) + (step - start)).clamp(max=self.length - 1)
        window = windows(x_BTX, starts_BT, stored[0])
        return self.attend(weights, window, before), (window[..., 1:, :], (before + 1).clamp(max=self.length - 1))

    def attend(self, weights: Weights, window: Tensor, count: Tensor) -> Tensor:
        """The output, from windows ``[..., S, H]`` and the number of earlier inputs in each ``[...]``."""
        normal = functional.layer_norm(window, window.shape[-1:])
        w_q, w_kv = weights["weight_qkv"].split((len(weights["weight_qkv"]) // 3, 2 * len(weights["weight_qkv"]) // 3))
        q = functional.linear(normal[..., -1, :], w_q).unflatten(-1, (self.heads, 1, -1))
        k, v = functional.linear(normal, w_kv).unflatten(-1, (2, self.heads, -1)).movedim(-4, -2).unbind(-4)
        scores = (q @ (k + weights["distance"]).transpose(-1, -2)) * self.key_size**-0.5
        age = torch.arange(self.length - 1, -1, -1, device=window.device)
        absent = (age > count.clamp(min=0).unsqueeze(-1)).unsqueeze(-2).unsqueeze(-2)
        read = (scores.masked_fill(absent, -torch.inf).softmax(-1) @ v).flatten(-3)
        y = self.gate(weights, "attention", window[..., -1, :], functional.linear(read, weights["weight_read"]))
        dense = torch.relu(functional.linear(functional.layer_norm(y, y.shape[-1:]), weights["weight_1"]))
        return self.gate(weights, "dense", y, functional.linear(dense, weights["weight_2"]))

    def gate(self, weights: Weights, part: str, x: Tensor, y: Tensor) -> Tensor:
        """``g(x, relu(y))``."""
        y_rzg = functional.linear(torch.relu(y), weights[f"weight_{part}"]).chunk(3, -1)
        u_rz, u_g = weights[f"recurrent_{part}"].split((2 * self.hidden_size, self.hidden_size))
        x_r, x_z = functional.linear(x, u_rz).chunk(2, -1)
        r = torch.sigmoid(y_rzg[0] + x_r)
        z = torch.sigmoid(y_rzg[1] + x_z - weights[f"bias_{part}"])
        return torch.lerp(x, torch.tanh(y_rzg[2] + functional.linear(r * x, u_g)), z)


make = factory_of(GTrXL)
