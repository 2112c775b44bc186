"""The triton kernels, compiled ahead of time for GPUs that need not be here: what each takes of a multiprocessor.

Registers and spills are those of one thread, as the assembler reports them; shared memory is that of one program.
Tensor-core instructions are counted in the generated code.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

CELLS = ("gru", "lstm")
PRECISIONS = ("ieee", "tf32", "tf32x3", "bf16")
SHARED_MEMORY = {80: 166_912, 90: 232_448, 100: 232_448}
"""Bytes that one program may take, by architecture (CUDA C++ programming guide, table of technical specifications)."""
_TENSOR_CORES = re.compile(r"\b(wgmma\.mma_async|mma\.sync|tcgen05\.mma)")


@dataclass(frozen=True)
class Figures:
    """Of one kernel in one configuration on one architecture."""

    kernel: str
    cell: str
    hidden_size: int
    precision: str
    architecture: int
    registers: int
    spills: int
    shared_memory: int
    tensor_core_instructions: int

    @property
    def fits(self) -> bool:
        """Whether a program can be launched, and spills nothing."""
        return self.spills == 0 and self.shared_memory <= SHARED_MEMORY[self.architecture]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of ``benchmark.py kernels``."""
    parser.add_argument("--hidden", default="32,64,128", help="hidden sizes; default: %(default)s")
    parser.add_argument("--precisions", default=",".join(PRECISIONS), help="default: %(default)s")
    parser.add_argument("--architectures", default="80,90,100", help="compute capabilities; default: %(default)s")
    parser.add_argument("--json", action="store_true", help="JSON rather than a table")


def run(arguments: argparse.Namespace) -> None:
    """Compiles and prints."""
    found = compile_all(
        [int(size) for size in arguments.hidden.split(",")],
        arguments.precisions.split(","),
        [int(architecture) for architecture in arguments.architectures.split(",")],
    )
    if arguments.json:
        text = json.dumps([asdict(figures) | {"fits": figures.fits} for figures in found], indent=1)
    else:
        text = _table(found)
    sys.stdout.write(text + "\n")


def compile_all(
    hidden_sizes: list[int], precisions: list[str], architectures: list[int], cells: Sequence[str] = CELLS
) -> list[Figures]:
    """The figures of both kernels of each cell, compiled in a process of its own.

    Triton's interpreter, if it is on here, would take the place of the compiler.
    """
    program = (
        "import json, sys; from dataclasses import asdict; from recurrl.benchmark.kernels import compile_here; "
        "json.dump([asdict(f) for f in compile_here(*json.loads(sys.argv[1]))], sys.stdout)"
    )
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, json.dumps([hidden_sizes, precisions, architectures, cells])],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"The kernels could not be compiled:\n{done.stderr}")
    return [Figures(**figures) for figures in json.loads(done.stdout)]


def compile_here(
    hidden_sizes: list[int], precisions: list[str], architectures: list[int], cells: Sequence[str]
) -> list[Figures]:
    """As :func:`compile_all`, in this process."""
    from recurrl.recurrent.backends.triton.launches import all_launches

    return [
        _compile(launch, cell, hidden, precision, architecture)
        for hidden in hidden_sizes
        for cell in cells
        for precision in precisions
        for direction in ("forward", "backward")
        for architecture in architectures
        for launch in all_launches(cell, hidden, precision, architecture, direction)
    ]


def _compile(launch: Any, cell: str, hidden: int, precision: str, architecture: int) -> Figures:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = launch.kernel.arg_names
    given = {(k,): launch.constants[name] for k, name in enumerate(names) if name in launch.constants}
    # Pointers from torch's allocator are aligned, which the compiler is told at run time too.
    aligned = {(k,): [["tt.divisibility", 16]] for k, name in enumerate(names) if name in launch.aligned}
    compiled = triton.compile(
        ASTSource(launch.kernel, launch.signature, given, aligned),
        target=GPUTarget("cuda", architecture, 32),
        options=launch.options,
    )
    registers, spills = _resources(compiled.asm["cubin"])
    return Figures(
        launch.name,
        cell,
        hidden,
        precision,
        architecture,
        registers,
        spills,
        compiled.metadata.shared,
        len(_TENSOR_CORES.findall(compiled.asm["ptx"])),
    )


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers a thread, and bytes of local memory, which a kernel without arrays has only for spills."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        listed = subprocess.run([_cuobjdump(), "-res-usage", path], capture_output=True, text=True, check=True)
    registers = re.search(r"REG:(\d+)", listed.stdout)
    local = re.search(r"(?:LOCAL|STACK):(\d+)", listed.stdout)
    if registers is None or local is None:
        raise RuntimeError(f"cuobjdump says nothing of registers:\n{listed.stdout}")
    return int(registers[1]), max(int(size) for size in re.findall(r"(?:LOCAL|STACK):(\d+)", listed.stdout))


def _cuobjdump() -> str:
    import triton

    bundled = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    found = str(bundled) if bundled.exists() else shutil.which("cuobjdump")
    if found is None:
        raise RuntimeError("cuobjdump is neither in the triton package nor on the path. Install the CUDA toolkit.")
    return found


def _table(found: list[Figures]) -> str:
    lines = [
        "| kernel | cell | hidden | precision | sm | registers | spilled bytes | shared memory "
        "| tensor-core instructions | fits |",
        "|" + "---|" * 10,
    ]
    lines += [
        f"| {f.kernel} | {f.cell} | {f.hidden_size} | {f.precision} | {f.architecture} | {f.registers} | {f.spills} "
        f"| {f.shared_memory} | {f.tensor_core_instructions} | {'yes' if f.fits else 'no'} |"
        for f in found
    ]
    return "\n".join(lines)
