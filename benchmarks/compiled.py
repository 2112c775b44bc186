"""Compiles the triton kernels ahead of time, without a GPU, and reads figures from the result.

Run as a program, it reads jobs as JSON from standard input, compiles them, and writes the figures.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks import barriers
from benchmarks.launched import Launched, launched_by_training
from recurrl.recurrent.backends.triton import table
from recurrl.recurrent.backends.triton.table import Configuration

if TYPE_CHECKING:
    from recurrl.recurrent.backends.triton.launches import Launch

SHARED_MEMORY = {80: 166_912, 86: 101_376, 90: 232_448, 100: 232_448}
"""Maximum bytes per program, by architecture (CUDA C++ programming guide, table of technical specifications)."""
_TENSOR_CORES = re.compile(r"\b(wgmma\.mma_async|mma\.sync|tcgen05\.mma)")
# All other arguments are pointers to float32.
_ARGUMENTS = {
    "starts": "*i8",
    "lane_begin": "*i64",
    "lane_length": "*i32",
    "slots": "*i64",
    **dict.fromkeys(("t", "first", "last", "lanes", "lanes_after", "slot_here", "slot_after", "part"), "i32"),
    "stored_stride": "i32",
}
# Constants that select a different kernel rather than leave something out.
_KINDS = ("LSTM", "RECOMPUTE")


class Layer(NamedTuple):
    """The target of a compilation."""

    cell: str
    hidden_size: int
    precision: str
    architecture: int


class Job(NamedTuple):
    """All kernels of a layer, compiled together."""

    layer: Layer
    configuration: Configuration | None = None
    """None for all kernels the table selects for the layer; else only kernels of this configuration."""


@dataclass(frozen=True)
class Figures:
    """Compilation results of one kernel in one configuration on one architecture."""

    kernel: str
    cell: str
    hidden_size: int
    precision: str
    architecture: int
    lanes: int
    """Lanes per program."""
    form: str
    """What it omits from the most demanding form, such as ``no bias``."""
    registers: int
    """Per thread."""
    spills: int
    """Bytes of registers spilled to memory, per thread."""
    shared_memory: int
    """Bytes per program."""
    tensor_core_instructions: int
    """In the generated code."""
    faults: list[str]
    """Findings of the barrier check."""

    @property
    def fits(self) -> bool:
        """True if a program can be launched and spills nothing."""
        return self.spills == 0 and self.shared_memory <= SHARED_MEMORY[self.architecture]


def compile_all(jobs: Sequence[Job], all_forms: bool = False) -> dict[Job, list[Figures]]:
    """Compiles all kernels of the jobs in separate processes, one per core.

    (In this process triton's interpreter, if enabled, would replace the compiler.)

    Args:
        jobs: what to compile.
        all_forms: also compile the forms without biases or gradients of stored states.

    Raises:
        RuntimeError: compilation failed.
    """
    if not jobs:
        return {}
    workers = min(len(jobs), os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool:
        shares = list(pool.map(lambda k: _compile_elsewhere(jobs[k::workers], all_forms), range(workers)))
    return {job: shares[k % workers][k // workers] for k, job in enumerate(jobs)}


def _compile_elsewhere(jobs: Sequence[Job], all_forms: bool) -> list[list[Figures]]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", __name__],
        cwd=Path(__file__).parent.parent,
        input=json.dumps({"jobs": jobs, "all_forms": all_forms}),
        capture_output=True,
        text=True,
        env={key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"},
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"Compiling the kernels failed:\n{done.stderr}")
    return [[Figures(**figures) for figures in of_job] for of_job in json.loads(done.stdout)]


def _compile_here(job: Job, all_forms: bool) -> Iterator[Figures]:
    for demanding in _launches(job):
        for launch in _forms(demanding, job.layer.cell) if all_forms else [demanding]:
            yield _compile(launch, job.layer, _left_out(launch, demanding))


def _launches(job: Job) -> list[Launch]:
    with nullcontext() if job.configuration is None else table.forced(job.configuration):
        found = all_launches(job.layer)
    # Resident configurations recompute with step kernels, which the table configures separately.
    return [
        each for each in found if job.configuration is None or ("HP" in each.constants) == job.configuration.resident
    ]


def all_launches(layer: Layer) -> list[Launch]:
    """Every kernel the table selects for a layer, for each of its limits on the lanes, in its most demanding form."""
    from recurrl.recurrent.backends.triton import launches

    cell, hidden_size, precision, architecture = layer
    rows = [row for row in table.current().of(cell, precision, architecture) if row.most_hidden >= hidden_size]
    forward, backward = [], []
    for lanes in sorted({row.most_lanes or table.ANY_NUMBER for row in rows}):
        chosen = table.configuration(*layer, lanes)
        recomputing = table.step_configuration(*layer, lanes)
        forward.append(launches.forward(chosen, layer[:3], has_bias=True, keep=True))
        forward.append(launches.forward(recomputing, layer[:3], has_bias=True, keep=True, recompute=True))
        backward.append(launches.backward(chosen, layer[:3], wants_stored=True, window=True))
    found = [*forward, *backward]
    return [launch for index, launch in enumerate(found) if launch not in found[:index]]


def signature(launch: Launch) -> dict[str, str]:
    """The type of each argument, for ``triton.compiler.ASTSource``."""
    kinds = _ARGUMENTS | dict.fromkeys(launch.constants, "constexpr")
    if launch.constants["PRECISION"] == "bf16":
        kinds |= {"w_hh": "*bf16", "w_hh_t": "*bf16"}
    return {name: kinds.get(name, "*fp32") for name in launch.kernel.arg_names}


def aligned(launch: Launch) -> list[str]:
    """Arguments divisible by 16 whenever the hidden size is, as at run time."""
    pointers = [name for name, kind in signature(launch).items() if kind.startswith("*")]
    return [*pointers, "stored_stride"] if launch.constants["H"] % 16 == 0 else pointers


def _forms(demanding: Launch, cell: str) -> list[Launch]:
    """All forms of a kernel that the layer launches, the most demanding included."""
    of_kind = {item for item in demanding.constants.items() if item[0] in _KINDS}
    launched = (dict(form) for form in _launched(cell)[demanding.kernel.__name__].forms if form >= of_kind)
    forms = [demanding._replace(constants=demanding.constants | form) for form in launched]
    return sorted(forms, key=lambda form: _left_out(form, demanding))


def _left_out(launch: Launch, demanding: Launch) -> str:
    names = [name for name, value in launch.constants.items() if value is not demanding.constants[name]]
    return ", ".join(f"no {name.removeprefix('HAS_').removeprefix('WANTS_').lower()}" for name in names)


def _compile(launch: Launch, layer: Layer, form: str) -> Figures:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel, names, kinds = launch.kernel.__name__, launch.kernel.arg_names, signature(launch)
    constants = {(names.index(name),): value for name, value in launch.constants.items()}
    divisible = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned(launch)}
    compiled = triton.compile(
        ASTSource(launch.kernel, kinds, constants, divisible),
        target=GPUTarget("cuda", layer.architecture, 32),
        options=launch.options,
    )
    registers, spills = _resources(compiled.asm["cubin"])
    arguments = [name for name in names if kinds[name] != "constexpr"]
    return Figures(
        kernel=kernel,
        **layer._asdict(),
        lanes=launch.constants["BM"],
        form=form,
        registers=registers,
        spills=spills,
        shared_memory=compiled.metadata.shared,
        tensor_core_instructions=len(_TENSOR_CORES.findall(compiled.asm["ptx"])),
        faults=_faults(compiled.asm["ptx"], arguments, _launched(layer.cell)[kernel].same),
    )


def _faults(text: str, arguments: Sequence[str], same: Collection[Collection[str]]) -> list[str]:
    return [str(fault) for fault in barriers.faults(text, arguments, same)]


@cache
def _launched(cell: str) -> dict[str, Launched]:
    return launched_by_training(cell)


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of local memory per thread; without arrays, local memory is all spills."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        listed = subprocess.run([_cuobjdump(), "-res-usage", path], capture_output=True, text=True, check=True)
    registers = re.search(r"REG:(\d+)", listed.stdout)
    local = re.findall(r"(?:LOCAL|STACK):(\d+)", listed.stdout)
    if registers is None or not local:
        raise RuntimeError(f"cuobjdump reported no registers:\n{listed.stdout}")
    return int(registers[1]), max(int(size) for size in local)


@cache
def _cuobjdump() -> str:
    import triton

    bundled = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    found = str(bundled) if bundled.exists() else shutil.which("cuobjdump")
    if found is None:
        raise RuntimeError("cuobjdump is neither in the triton package nor on the path. Install the CUDA toolkit.")
    return found


def _main() -> None:
    asked = json.load(sys.stdin)
    jobs = [Job(Layer(*layer), chosen and Configuration(*chosen)) for layer, chosen in asked["jobs"]]
    json.dump([[asdict(f) for f in _compile_here(job, asked["all_forms"])] for job in jobs], sys.stdout)


if __name__ == "__main__":
    _main()
