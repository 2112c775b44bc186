"""torch's recurrent modules in plain Python, for ``torch.vmap``.

Constructors, parameters and results match the classes of the same names in ``torchrl.modules``.

Shape legend: B rows, T steps, I input size, H hidden size, O output size, L layers, D directions, X size of a state.
"""

# ruff: noqa: A002 (torch names the argument `input`)

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from recurrl.recurrent.backends import Options, load_backend
from recurrl.recurrent.cells import gru, lstm
from recurrl.recurrent.gated import GatedCell
from recurrl.recurrent.layer import run_sequence, run_step, state_shapes


class PythonRNN(nn.RNNBase):
    """Stacked layers over whole rows, with the ``forward`` of ``nn.GRU`` and ``nn.LSTM`` for batched input."""

    use_scan: bool = False

    def __init__(self, kind: type[GatedCell], *sizes: Any, use_scan: bool) -> None:
        super().__init__(kind.__name__, *sizes)
        for backend in ("reference", "scan"):
            load_backend(backend)  # here, because the compiler cannot import while it traces
        self.cell = kind(self.hidden_size, self.bias, self.proj_size)
        self.use_scan = use_scan

    def _run(
        self, x: Tensor, states_LBX: tuple[Tensor, ...] | None, mask: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        name = type(self).__name__
        if x.dim() != 3:
            raise ValueError(f"{name}: Expected input to be 3D, got {x.dim()}D instead")
        if not self.batch_first:
            x = x.transpose(0, 1)
            mask = None if mask is None else mask.transpose(0, 1)
        rows, steps, _ = x.shape
        if states_LBX is None:
            states_LBX = tuple(x.new_zeros(count, rows, *sizes) for count, *sizes in state_shapes(self.cell, self))
        states_BLX = tuple(states.transpose(0, 1) for states in states_LBX)
        if mask is None:
            no_reset = torch.zeros(rows, steps, dtype=torch.bool, device=x.device)
            stored = tuple(states.unsqueeze(1).expand(-1, steps, -1, -1) for states in states_BLX)
            backend = load_backend("scan" if self.use_scan else "reference")
            output, ends = run_sequence(backend, self.cell, self, x, no_reset, stored, Options())
            states_BLX = tuple(end[:, -1] for end in ends)
        elif self.bidirectional:
            raise ValueError(f"{name} takes no mask when it is bidirectional. Drop the mask, or one direction.")
        else:
            outputs = []
            for t in range(steps):
                y, new = run_step(self.cell, self, x[:, t], states_BLX)
                running = mask[:, t, None, None]
                states_BLX = tuple(torch.where(running, n, old) for n, old in zip(new, states_BLX, strict=True))
                outputs.append(torch.where(mask[:, t, None], y, 0.0))
            output = torch.stack(outputs, 1)
        if not self.batch_first:
            output = output.transpose(0, 1)
        return output, tuple(states.transpose(0, 1) for states in states_BLX)


class GRU(PythonRNN):
    """``nn.GRU`` in Python.

    Args:
        input_size: features of the input, I.
        hidden_size: features of the state, H.
        num_layers: layers, L.
        bias: give the layers biases.
        batch_first: ``[B, T, I]`` rather than ``[T, B, I]``. Default: True.
        dropout: dropout probability between layers, in training mode.
        bidirectional: run each layer in both directions, D = 2.
        device: where the parameters live.
        dtype: dtype of the parameters.
        use_scan: use the ``scan`` backend instead of a plain loop.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        use_scan: bool = False,
    ) -> None:
        sizes = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)
        super().__init__(gru.GRU, *sizes, 0, device, dtype, use_scan=use_scan)

    def forward(self, input: Tensor, hx: Tensor | None = None, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Returns the output ``[B, T, D·O]`` and the last states ``[L·D, B, X]``.

        Args:
            input: ``[B, T, I]``.
            hx: the initial states; zero if None.
            mask: ``[B, T]``; where False the states stay unchanged and the output is zero.

        Raises:
            ValueError: the input has no batch dimension.
        """
        output, states = self._run(input, None if hx is None else (hx,), mask)
        return output, states[0]


class LSTM(PythonRNN):
    """``nn.LSTM`` in Python. Arguments as for :class:`GRU`, in TorchRL's order; ``proj_size`` projects the output."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        batch_first: bool = True,
        bias: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        use_scan: bool = False,
    ) -> None:
        sizes = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)
        super().__init__(lstm.LSTM, *sizes, proj_size, device, dtype, use_scan=use_scan)

    def forward(
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Returns the output ``[B, T, D·O]`` and the last states (h, c), ``[L·D, B, X]`` each. Arguments: see GRU."""
        output, (h, c) = self._run(input, hx, mask)
        return output, (h, c)


class GRUCell(nn.GRUCell):
    """``nn.GRUCell`` in Python."""

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """The state ``[B, H]``, or ``[H]`` for unbatched input, after one step from ``hx`` (zero if None)."""
        return _cell_step(gru.GRU, self, input, None if hx is None else (hx,))[0]


class LSTMCell(nn.LSTMCell):
    """``nn.LSTMCell`` in Python."""

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """The states (h, c), ``[B, H]`` or ``[H]`` each, after one step from ``hx`` (zero if None)."""
        h, c = _cell_step(lstm.LSTM, self, input, hx)
        return h, c


def _cell_step(
    kind: type[GatedCell], parameters: nn.RNNCellBase, x: Tensor, states: tuple[Tensor, ...] | None
) -> tuple[Tensor, ...]:
    cell = kind(parameters.hidden_size, parameters.bias)
    for value, what in ((x, "input"), *((state, f"hx[{k}]") for k, state in enumerate(states or ()))):
        if value.dim() not in (1, 2):
            raise ValueError(f"{type(parameters).__name__}: Expected {what} to be 1D or 2D, got {value.dim()}D instead")
    if states is None:
        states = tuple(x.new_zeros(*x.shape[:-1], *shape) for shape in cell.states().values())
    weights = {name: getattr(parameters, name) for name in cell.parameters(parameters.input_size)}
    return cell.step(weights, cell.project(weights, x), states)[1]
