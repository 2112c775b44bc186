"""Long short-term memory, in the form torch and cuDNN use.

    i, f, o = σ(x + h)    g = tanh(x_g + h_g)    c' = f ⊙ c + i ⊙ g    h' = o ⊙ tanh(c')

where ``x = W_ih·input + b_ih`` and ``h = W_hh·state + b_hh``, each split in (i, f, g, o). Hochreiter and Schmidhuber
1997; Gers et al. 2000 for the forget gate.

Shape legend: B rows, T steps, P steps of all rows, I input size, H hidden size, K gates, G gate rows (K × H).
"""

from __future__ import annotations

import torch
from torch import Tensor

MODE = "LSTM"
GATES = 4
STATES = ("_h", "_c")


def activate(x_gates_BG: Tensor, h_gates_BG: Tensor, states_BH: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """One step from the two projections."""
    _, c = states_BH
    i, f, g, o = (x_gates_BG + h_gates_BG).chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def forward_views(x_gates_PG: Tensor, gates_PG: Tensor, extra_PH: Tensor) -> tuple[Tensor, ...]:
    """Gates will hold (i, f, g, o), extra tanh c'."""
    i, f, g, o = gates_PG.chunk(4, -1)
    return x_gates_PG, gates_PG, gates_PG[:, : 2 * i.shape[-1]], i, f, g, o, extra_PH


def forward_step(views: tuple[Tensor, ...], states_BH: tuple[Tensor, ...], out_states_BH: tuple[Tensor, ...]) -> None:
    """The same in given memory."""
    x_gates, gates, i_f, i, f, g, o, tanh_c = views
    out_h, out_c = out_states_BH
    gates.add_(x_gates)
    i_f.sigmoid_()
    g.tanh_()
    o.sigmoid_()
    torch.mul(f, states_BH[1], out=out_c).addcmul_(i, g)
    torch.tanh(out_c, out=tanh_c)
    torch.mul(o, tanh_c, out=out_h)


def derivatives(gates_PG: Tensor, extra_PH: Tensor, states_PH: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """``(∂c'/∂(i, f, g), ∂h'/∂o, ∂h'/∂c', ∂c'/∂c)``, the derivatives by gates being by their projections."""
    i, f, g, o = gates_PG.chunk(4, -1)
    tanh_c, (_, c) = extra_PH, states_PH
    to_c = torch.stack((g * i * (1 - i), c * f * (1 - f), i * (1 - g * g)), 1)
    return to_c, tanh_c * o * (1 - o), o * (1 - tanh_c * tanh_c), f


def backward_step(
    grad_states_BH: tuple[Tensor, ...], derivatives: tuple[Tensor, ...], out: Tensor | None
) -> tuple[Tensor, Tensor | None, tuple[Tensor, ...]]:
    """i, f and g act through c', o through h'. The incoming h has no path but its projection."""
    (grad_h, grad_c), (to_c, to_o, h_by_c, f) = grad_states_BH, derivatives
    grad_c = torch.addcmul(grad_c, grad_h, h_by_c)
    grad_gates = torch.cat((grad_c.unsqueeze(1) * to_c, (grad_h * to_o).unsqueeze(1)), 1, out=out)
    return grad_gates, None, (grad_c * f,)


def input_gradient(grad_gates_PG: Tensor, grad_output_PH: Tensor, derivatives: tuple[Tensor, ...]) -> Tensor:
    """The two projections are added, so they have one gradient."""
    return grad_gates_PG


def fused(
    x: Tensor, batch_sizes: Tensor | None, states_BH: tuple[Tensor, ...], weights: list[Tensor], train: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """``torch.lstm`` over a padded ``[B, T, I]`` batch, or over packed data when its ``batch_sizes`` are given."""
    states = [state.unsqueeze(0) for state in states_BH]
    has_biases = len(weights) == 4
    if batch_sizes is None:
        output, h, c = torch.lstm(x, states, weights, has_biases, 1, 0.0, train, False, True)
    else:
        output, h, c = torch.lstm(x, batch_sizes, states, weights, has_biases, 1, 0.0, train, False)
    return output, (h[0], c[0])
