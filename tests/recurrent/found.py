"""The cells that tests run over: all that are found in the package and ``examples/extending``, and one of its own."""

import importlib
import inspect
import pkgutil
from functools import partial

import my_package
import torch

from recurrl.config.plugins import options_class
from recurrl.recurrent import RecurrentModule
from recurrl.recurrent.backends import Options
from recurrl.recurrent.cell import Cell
from recurrl.recurrent.cells import cell_names, make_cell
from recurrl.recurrent.cells.mingru import MinGRU
from recurrl.recurrent.choice import BACKENDS, RECOMPUTE, unsupported_reason
from recurrl.recurrent.gated import AnalyticCell


class Several(Cell):
    """States of three ranks that act on one another, and parameters of three ranks."""

    def __init__(self, hidden_size):
        self.hidden_size = hidden_size

    def parameter_shapes(self, input_size):
        hidden = self.hidden_size
        return {"cube": (2, 3, hidden), "scale": (), "weight": (hidden, input_size)}

    def state_shapes(self):
        return {"_level": (), "_table": (2, 3), "_vector": (self.hidden_size,)}

    def step(self, weights, x_BX, states):
        level, table, vector = states
        vector = torch.tanh(x_BX @ weights["weight"].T + torch.einsum("bij,ijh->bh", table, weights["cube"]))
        level = torch.sigmoid(level + weights["scale"] * vector.sum(-1))
        table = torch.tanh(table + level[:, None, None] * torch.einsum("bh,ijh->bij", vector, weights["cube"]))
        return vector * level[:, None] + states[2], (level, table, vector)


def _of_examples():
    cells = {}
    for each in pkgutil.iter_modules(my_package.__path__):
        module = importlib.import_module(f"my_package.{each.name}")
        for name, member in vars(module).items():
            if inspect.isclass(member) and issubclass(member, Cell) and member.__module__ == module.__name__:
                cells[name] = partial(_made, member, f"{module.__name__}:{name}")
    return cells


def _made(factory, name, hidden_size):
    return factory(options_class("cell", name)(name=name, hidden_size=hidden_size, num_layers=1))


CELLS = {
    **{name: partial(make_cell, name) for name in cell_names()},
    **_of_examples(),
    "Several": Several,
    "mingru with a highway": partial(MinGRU, highway=True),
}
"""Makes a cell of a hidden size, by name."""

RECOMPUTED = ("gru", "lstm", "indrnn", "mingru", "mlstm")
RUNS = [
    (cell, backend, recompute)
    for cell, make in CELLS.items()
    for backend in sorted(BACKENDS.keys() - {"reference"})
    # The kernels of triton for gru and lstm compute in float32 only, and have tests of their own.
    if backend != "triton" or not isinstance(make(1), AnalyticCell)
    for recompute in (RECOMPUTE if cell in RECOMPUTED else ("none",))
    if unsupported_reason(backend, make(1), Options(recompute), torch.device("cpu")) is None
]
"""Each cell with each backend that supports it; some also with recomputation, which is the same for all."""


def layers_of(cell, backend, recompute, size, num_layers=1, **options):
    """Layers in float64, of a size (rows, steps, inputs, hidden)."""
    torch.manual_seed(0)
    options |= {"num_layers": num_layers, "recurrent_backend": backend, "recurrent_recompute": recompute}
    return RecurrentModule(CELLS[cell](size[3]), size[2], in_key="x", out_key="y", **options).double()
