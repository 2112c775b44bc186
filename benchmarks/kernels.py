"""Resource use of the triton kernels, compiled ahead of time without a GPU.

Registers and spilled bytes are per thread, as the assembler reports them; shared memory is per program. Tensor-core
instructions are counted in the generated code. The last column is the barrier check, that no thread reads from global
memory what another thread of its program wrote without a barrier in between: ok, or the faults.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import groupby, product

from benchmarks.compiled import SHARED_MEMORY, Figures, Job, Layer, compile_all

CELLS = ("gru", "lstm")
PRECISIONS = ("ieee", "tf32", "tf32x3", "bf16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``benchmark.py kernels``."""
    known = ", ".join(str(architecture) for architecture in SHARED_MEMORY)
    parser.add_argument("--cells", default=",".join(CELLS), help="default: %(default)s")
    parser.add_argument("--hidden", default="32,64,128,256", help="hidden sizes; default: %(default)s")
    parser.add_argument("--precisions", default=",".join(PRECISIONS), help="default: %(default)s")
    parser.add_argument("--architectures", default="80,90,100", help=f"any of {known}; default: %(default)s")
    parser.add_argument("--forms", action="store_true", help="all forms of each kernel, not only the most demanding")
    parser.add_argument("--summary", action="store_true", help="one line per layer: the worst of its kernels")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> None:
    """Compiles the kernels and prints their figures."""
    found = [figures for of_job in compile_all(_jobs(arguments), arguments.forms).values() for figures in of_job]
    if arguments.json:
        text = json.dumps([asdict(figures) | {"fits": figures.fits} for figures in found], indent=1)
    else:
        text = _summary(found) if arguments.summary else _table(found)
    sys.stdout.write(text + "\n")


def _jobs(arguments: argparse.Namespace) -> list[Job]:
    architectures = [int(each) for each in arguments.architectures.split(",")]
    for architecture in set(architectures) - set(SHARED_MEMORY):
        known = ", ".join(str(each) for each in SHARED_MEMORY)
        raise SystemExit(f"Unknown --architectures={architecture}. Choose from {known}.")
    sizes = [int(size) for size in arguments.hidden.split(",")]
    chosen = product(arguments.cells.split(","), sizes, arguments.precisions.split(","), architectures)
    return [Job(Layer(*each)) for each in chosen]


def _table(found: Iterable[Figures]) -> str:
    heads = (
        "kernel", "form", "cell", "hidden", "precision", "sm", "lanes per program", "registers", "spilled bytes",
        "shared memory", "tensor-core instructions", "fits", "barriers",
    )  # fmt: skip
    return _markdown(
        heads,
        (
            (
                *(f.kernel, f.form, f.cell, f.hidden_size, f.precision, f.architecture, f.lanes),
                *(f.registers, f.spills, f.shared_memory, f.tensor_core_instructions),
                *("yes" if f.fits else "no", _barriers([f])),
            )
            for f in found
        ),
    )


def _summary(found: Iterable[Figures]) -> str:
    """One line per cell, hidden size and precision, with a figure for each architecture."""
    heads = (
        "cell", "hidden", "precision", "kernels", "registers", "spilled bytes", "shared memory, KB",
        "tensor-core instructions", "barriers",
    )  # fmt: skip
    rows = []
    for layer, of_layer in groupby(found, key=lambda f: (f.cell, f.hidden_size, f.precision)):
        kernels = list(of_layer)
        each = {a: [f for f in kernels if f.architecture == a] for a in dict.fromkeys(f.architecture for f in kernels)}
        kinds = dict.fromkeys(
            " and ".join(dict.fromkeys(f.kernel.partition("_")[0] for f in of)) for of in each.values()
        )
        rows.append(
            (
                *layer,
                ", ".join(kinds),
                ", ".join(str(max(f.registers for f in of)) for of in each.values()),
                ", ".join(str(max(f.spills for f in of)) for of in each.values()),
                ", ".join(str(-(-max(f.shared_memory for f in of) // 1024)) for of in each.values()),
                ", ".join(str(max(f.tensor_core_instructions for f in of)) for of in each.values()),
                _barriers(kernels),
            )
        )
    return _markdown(heads, rows)


def _barriers(found: Iterable[Figures]) -> str:
    return "; ".join(fault for figures in found for fault in figures.faults) or "ok"


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
