"""Every cell beside the GRU: parameters, bytes of state, a step, and learning from rows of several lengths.

Learning is the layer forwards and backwards, on one thread, by ``backend=auto``. Times are the process's own, the least
of all repetitions: other programs on the machine lengthen them little.
"""

import argparse
import time

import torch

from benchmarks.command_line import add_output, publish
from benchmarks.measuring import Run, interleaved, machine
from recurrl.recurrent import RecurrentModule
from recurrl.recurrent.cells import cell_names

ROWS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``benchmark.py cells``."""
    parser.add_argument("--cells", default=",".join(cell_names()), help="default: %(default)s")
    parser.add_argument("--hidden", type=int, default=64, help="features of input and output; default: %(default)s")
    parser.add_argument("--steps", default="32,128,512", help="lengths of the rows; default: %(default)s")
    parser.add_argument("--repetitions", type=int, default=20, help="timed repetitions; default: %(default)s")
    add_output(parser, "cells.md")


def run(arguments: argparse.Namespace) -> None:
    """Measures and writes the table."""
    torch.set_num_threads(1)
    names = ["gru", *(name for name in arguments.cells.split(",") if name != "gru")]
    lengths = [int(steps) for steps in arguments.steps.split(",")]
    layers = {name: _layer(name, arguments.hidden) for name in names}
    # One length after another: the cells alternate within it.
    columns = [_least({name: _step(layer) for name, layer in layers.items()}, 10 * arguments.repetitions)]
    for steps in lengths:
        runs = {name: _learning(layer, steps) for name, layer in layers.items()}
        columns.append(_least(runs, arguments.repetitions))
    gru = [column["gru"] for column in columns]
    text = [
        f"Measured on {machine(torch.device('cpu'))}, one thread: {ROWS} rows, {arguments.hidden} inputs and outputs. "
        f"Ratios to the GRU, whose step takes {1e6 * gru[0]:.0f} µs and whose learning "
        f"{', '.join(f'{1e3 * each:.2f}' for each in gru[1:])} ms.",
        "",
        f"| cell | parameters | bytes of state | backend | step | {' | '.join(f'T = {steps}' for steps in lengths)} |",
        "|" + "---|" * (5 + len(lengths)),
    ]
    for name, layer in layers.items():
        figures = [f"{column[name] / gru_figure:.2f}" for column, gru_figure in zip(columns, gru, strict=True)]
        parameters = sum(parameter.numel() for parameter in layer.parameters())
        state = sum(4 * each.numel() for each in _states(layer))
        text.append(f"| `{name}` | {parameters:,} | {state:,} | {layer.backend_in_use} | {' | '.join(figures)} |")
    publish("\n".join(text) + "\n", arguments.output, "cells.md")


def _layer(cell: str, hidden: int) -> RecurrentModule:
    torch.manual_seed(0)
    return RecurrentModule(cell, hidden, hidden, in_key="x", out_key="y")


def _states(layer: RecurrentModule, *batch: int) -> tuple[torch.Tensor, ...]:
    """Zeros for each state of a batch of rows."""
    specs = layer.make_tensordict_primer().primers
    return tuple(torch.zeros(*batch, *specs[key].shape) for key in layer.state_keys)


def _step(layer: RecurrentModule) -> Run:
    x, is_init = torch.randn(ROWS, layer.layers.input_size), torch.zeros(ROWS, dtype=torch.bool)
    states = _states(layer, ROWS)

    def run() -> None:
        with torch.no_grad():
            layer.run(x, is_init, states, False)

    return run


def _learning(layer: RecurrentModule, steps: int) -> Run:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, steps, layer.layers.input_size, generator=generator).requires_grad_()
    is_init = torch.rand(ROWS, steps, generator=generator) < 1 / steps
    states = _states(layer, ROWS, steps)

    def run() -> None:
        layer.zero_grad()
        layer.run(x, is_init, states, True)[0].sum().backward()

    return run


def _least(runs: dict[str, Run], repetitions: int) -> dict[str, float]:
    """The least seconds of this process in each."""
    return interleaved(runs, repetitions, torch.device("cpu"), time.process_time, min)
