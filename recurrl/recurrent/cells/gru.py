"""Gated recurrent unit, in the form torch and cuDNN use (the reset gate acts after the recurrent product).

    r = σ(xᵣ + hᵣ)    z = σ(x_z + h_z)    n = tanh(xₙ + r ⊙ hₙ)    h' = n + z ⊙ (h − n)

where ``x = W_ih·input + b_ih`` and ``h = W_hh·state + b_hh``, each split in (r, z, n). Cho et al. 2014,
https://arxiv.org/abs/1406.1078.

Shape legend: B rows, T steps, P steps of all rows, I input size, H hidden size, K gates, G gate rows (K × H).
"""

from __future__ import annotations

import torch
from torch import Tensor

MODE = "GRU"
GATES = 3
STATES = ("",)


def activate(x_gates_BG: Tensor, h_gates_BG: Tensor, states_BH: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """One step from the two projections."""
    (h,) = states_BH
    x_r, x_z, x_n = x_gates_BG.chunk(3, -1)
    h_r, h_z, h_n = h_gates_BG.chunk(3, -1)
    r = torch.sigmoid(x_r + h_r)
    z = torch.sigmoid(x_z + h_z)
    n = torch.tanh(x_n + r * h_n)
    return (n + z * (h - n),)


def forward_views(x_gates_PG: Tensor, gates_PG: Tensor, extra_PH: Tensor) -> tuple[Tensor, ...]:
    """Gates will hold (r, z, hₙ), extra n."""
    hidden = extra_PH.shape[-1]
    x_rz, x_n = x_gates_PG.split((2 * hidden, hidden), -1)
    rz, h_n = gates_PG.split((2 * hidden, hidden), -1)
    return x_rz, x_n, rz, *rz.chunk(2, -1), h_n, extra_PH


def forward_step(views: tuple[Tensor, ...], states_BH: tuple[Tensor, ...], out_states_BH: tuple[Tensor, ...]) -> None:
    """The same in given memory."""
    x_rz, x_n, rz, r, z, h_n, n = views
    rz.add_(x_rz).sigmoid_()
    torch.addcmul(x_n, r, h_n, out=n).tanh_()
    torch.lerp(n, states_BH[0], z, out=out_states_BH[0])


def derivatives(gates_PG: Tensor, extra_PH: Tensor, states_PH: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """``(∂h'/∂(h_r, h_z, hₙ), ∂h'/∂xₙ, ∂h'/∂h directly)``."""
    r, z, h_n = gates_PG.chunk(3, -1)
    n, (h,) = extra_PH, states_PH
    factors = torch.empty_like(gates_PG)
    f_r, f_z, f_h = factors.chunk(3, -1)
    f_n = (1 - z).mul_(1 - n * n)
    torch.mul(f_n, r, out=f_h)
    torch.mul(f_h, h_n, out=f_r).mul_(1 - r)
    torch.sub(h, n, out=f_z).mul_(z).mul_(1 - z)
    return factors.unflatten(-1, (3, -1)), f_n, z


def backward_step(
    grad_states_BH: tuple[Tensor, ...], derivatives: tuple[Tensor, ...], out: Tensor | None
) -> tuple[Tensor, Tensor | None, tuple[Tensor, ...]]:
    """All three gates' gradients are the output's times a factor."""
    (grad,), (factors, _, z) = grad_states_BH, derivatives
    return torch.mul(grad.unsqueeze(1), factors, out=out), grad * z, ()


def input_gradient(grad_gates_PG: Tensor, grad_output_PH: Tensor, derivatives: tuple[Tensor, ...]) -> Tensor:
    """R and z have it in common; n's recurrent part passes the reset gate, its input part does not."""
    grad_rz, _ = grad_gates_PG.tensor_split((2 * grad_output_PH.shape[-1],), -1)
    return torch.cat((grad_rz, grad_output_PH * derivatives[1]), -1)


def fused(
    x: Tensor, batch_sizes: Tensor | None, states_BH: tuple[Tensor, ...], weights: list[Tensor], train: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """``torch.gru`` over a padded ``[B, T, I]`` batch, or over packed data when its ``batch_sizes`` are given."""
    h_1BH = states_BH[0].unsqueeze(0)
    has_biases = len(weights) == 4
    if batch_sizes is None:
        output, h = torch.gru(x, h_1BH, weights, has_biases, 1, 0.0, train, False, True)
    else:
        output, h = torch.gru(x, batch_sizes, h_1BH, weights, has_biases, 1, 0.0, train, False)
    return output, (h[0],)
