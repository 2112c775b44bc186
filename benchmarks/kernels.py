"""Resource use of the triton kernels, compiled ahead of time without a GPU.

Registers and spilled bytes are per thread, as the assembler reports them; shared memory is per program. Tensor-core
instructions are counted in the generated code. Each line is the worst of a layer's kernels, with a figure for each
architecture; --json has the figures of each kernel.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, product
from pathlib import Path
from typing import Any, NamedTuple

from recurrl.recurrent.backends.triton import tiles

SHARED_MEMORY = {80: 166_912, 86: 101_376, 90: 232_448, 100: 232_448}
"""Maximum bytes per program by compute capability (CUDA C++ programming guide); 86 stands for all that have so few."""
_TENSOR_CORES = re.compile(r"\b(wgmma\.mma_async|mma\.sync|tcgen05\.mma)")
# A store to global memory, then a barrier, then the branch to the next step.
_BARRIER = re.compile(r"st\.global(?:(?!st\.global|\bbra\b).)*bar\.sync(?:(?!st\.global).)*?\bbra\b", re.DOTALL)
# All other arguments are pointers to float32.
_ARGUMENTS = {
    "starts": "*i8",
    "lane_begin": "*i64",
    "lane_length": "*i32",
    **dict.fromkeys(("first", "last", "lanes", "stored_stride"), "i32"),
    **dict.fromkeys(("T", "a_row", "a_step", "stored_row", "stored_step"), "i32"),
}
LINEAR = {"linear": False, "complex": True}
"""The kinds of linear cells, whose kernels multiply no matrices: whether their numbers are complex."""
_HEADS = ("cell", "hidden", "precision", "registers", "spilled bytes", "shared memory, KB", "tensor-core instructions")


class Layer(NamedTuple):
    """The target of a compilation."""

    cell: str
    hidden_size: int
    precision: str
    architecture: int


@dataclass(frozen=True)
class Figures:
    """Compilation results of one kernel for a layer."""

    kernel: str
    cell: str
    hidden_size: int
    precision: str
    architecture: int
    registers: int
    """Per thread."""
    spills: int
    """Bytes of registers spilled to memory, per thread."""
    shared_memory: int
    """Bytes per program."""
    tensor_core_instructions: int
    """In the generated code."""
    has_barrier: bool
    """A barrier follows the stores of each step."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``benchmark.py kernels``."""
    known = ", ".join(str(architecture) for architecture in SHARED_MEMORY)
    parser.add_argument("--cells", default=",".join((*tiles.CELLS, *LINEAR)), help="default: %(default)s")
    parser.add_argument("--hidden", default="64,128", help="hidden sizes; default: %(default)s")
    parser.add_argument("--precisions", default=",".join(tiles.PRECISIONS), help="default: %(default)s")
    parser.add_argument("--architectures", default="80,90,100", help=f"any of {known}; default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> None:
    """Compiles the kernels and prints their figures.

    Raises:
        SystemExit: an architecture is unknown.
    """
    architectures = [int(each) for each in arguments.architectures.split(",")]
    for architecture in set(architectures) - set(SHARED_MEMORY):
        known = ", ".join(str(each) for each in SHARED_MEMORY)
        raise SystemExit(f"--architectures must be among {known} (got {architecture}).")
    sizes = [int(size) for size in arguments.hidden.split(",")]
    chosen = product(arguments.cells.split(","), sizes, arguments.precisions.split(","), architectures)
    figures = compile_elsewhere([Layer(*each) for each in chosen if each[0] not in LINEAR or each[2] == "ieee"])
    sys.stdout.write((json.dumps(list(map(asdict, figures)), indent=1) if arguments.json else table(figures)) + "\n")


def table(figures: Iterable[Figures]) -> str:
    """One line per cell, hidden size and precision, with a figure for each architecture."""
    lines: list[Sequence[object]] = [_HEADS, ["---"] * len(_HEADS)]
    for layer, layer_figures in groupby(figures, key=lambda f: (f.cell, f.hidden_size, f.precision)):
        each = [list(of) for _, of in groupby(layer_figures, key=lambda f: f.architecture)]
        worst = [
            ", ".join(str(max(getattr(f, name) for f in of)) for of in each)
            for name in ("registers", "spills", "tensor_core_instructions")
        ]
        memory = ", ".join(str(-(-max(f.shared_memory for f in of) // 1024)) for of in each)
        lines.append((*layer, *worst[:2], memory, worst[2]))
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def compile_elsewhere(layers: Sequence[Layer]) -> list[Figures]:
    """Compiles all kernels of the layers in a process without triton's interpreter, which would replace the compiler.

    Raises:
        RuntimeError: compilation failed.
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", __name__],
        cwd=Path(__file__).parent.parent,
        input=json.dumps(layers),
        capture_output=True,
        text=True,
        env={key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"},
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"Compiling the kernels failed:\n{done.stderr}")
    return [Figures(**figures) for figures in json.loads(done.stdout)]


class Launch(NamedTuple):
    """A kernel and its compile-time constants, with the options of its compilation."""

    kernel: Any
    constants: dict[str, Any]
    options: dict[str, int]


def launches_of(layer: Layer) -> Iterator[Launch]:
    """The kernels of a layer, each in its most demanding form."""
    from recurrl.recurrent.backends.triton import kernels, linear_kernels, recurrence

    if layer.cell in LINEAR:
        constants = recurrence.constants(layer.hidden_size, LINEAR[layer.cell])
        options = {"num_warps": constants.pop("num_warps")}
        yield Launch(linear_kernels.forward, constants, options)
        yield Launch(linear_kernels.backward, constants | {"WANTS_STORED": True}, options)
        return
    for kernel, form in ((kernels.forward, {"KEEP": True}), (kernels.backward, {"WANTS_STORED": True})):
        constants = tiles.constants(*layer[:3]) | form
        options = {name: constants.pop(name) for name in ("num_warps", "num_stages", "maxnreg")}
        yield Launch(kernel, constants, options)


def signature(launch: Launch) -> dict[str, str]:
    """The type of each argument, for ``triton.compiler.ASTSource``."""
    kinds = _ARGUMENTS | dict.fromkeys(launch.constants, "constexpr")
    if launch.constants.get("PRECISION") == "bf16":
        kinds |= {"w_hh": "*bf16", "w_hh_t": "*bf16"}
    return {name: kinds.get(name, "*fp32") for name in launch.kernel.arg_names}


def _compiled(launch: Launch, layer: Layer) -> Figures:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names, kinds = launch.kernel.arg_names, signature(launch)
    constants = {(names.index(name),): value for name, value in launch.constants.items()}
    # Divisible by 16 whenever the hidden size is, as at run time.
    aligned = [name for name, kind in kinds.items() if kind.startswith("*")]
    strides = [name for name in names if name in ("stored_stride", "a_row", "a_step", "stored_row", "stored_step")]
    aligned += strides if layer.hidden_size % 16 == 0 else []
    compiled = triton.compile(
        ASTSource(
            launch.kernel, kinds, constants, {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
        ),
        target=GPUTarget("cuda", layer.architecture, 32),
        options=launch.options,
    )
    return Figures(
        launch.kernel.__name__,
        *layer,
        *_resources(compiled.asm["cubin"], Path(triton.__file__).parent),
        compiled.metadata.shared,
        len(_TENSOR_CORES.findall(compiled.asm["ptx"])),
        _BARRIER.search(compiled.asm["ptx"]) is not None,
    )


def _resources(cubin: bytes, triton: Path) -> tuple[int, int]:
    """Registers and bytes of local memory per thread; without arrays, local memory is all spills."""
    tool = triton / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        listed = subprocess.run([tool, "-res-usage", path], capture_output=True, text=True, check=True).stdout
    registers, local = re.search(r"REG:(\d+)", listed), re.findall(r"(?:LOCAL|STACK):(\d+)", listed)
    if registers is None or not local:
        raise RuntimeError(f"cuobjdump reported no registers:\n{listed}")
    return int(registers[1]), max(int(size) for size in local)


if __name__ == "__main__":
    layers = [Layer(*layer) for layer in json.load(sys.stdin)]
    json.dump([asdict(_compiled(launch, layer)) for layer in layers for launch in launches_of(layer)], sys.stdout)
