"""Chooses launch configurations for the triton kernels and writes the table that the layer reads.

On this machine's GPU: times every candidate that fits without spilling, forwards and backwards, for each cell,
precision, hidden size and number of lanes. The table gets the fastest; rows for other GPUs are kept.

With --untimed, on any machine: for all GPUs takes the first candidate, from the largest tiles down, that fits without
spilling according to ahead-of-time compilation. recurrl ships this table.

To use the table: RECURRL_TRITON_TABLE=table.json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.compiled import Job, Layer, compile_all
from benchmarks.measuring import Run, interleaved, machine
from recurrl.recurrent.backends import Options, load_backend
from recurrl.recurrent.backends.triton import table
from recurrl.recurrent.backends.triton.table import Configuration, Row, Table
from recurrl.recurrent.cells import make_cell
from recurrl.recurrent.segments import Segments

HIDDEN = (16, 32, 64, 128, 256, 512, 1024)
LANES = (512, 2048, None)
_MANY_LANES = 8192
_LARGEST_RESIDENT = 128
# Hidden sizes that represent all others for one launch per step, whose tiles do not depend on them. Only the first is
# checked in all forms.
_STEP_HIDDEN = (100, 32, 50, 64, 96, 102, 128, table.LARGEST_HIDDEN)
# Lanes, units and warps for one launch per step, largest tiles first. Full float32 matmuls use no tensor cores and
# spread over the registers of smaller tiles.
_TILES = [(64, 64, 8), (32, 64, 4), (32, 64, 8), (32, 32, 4), (16, 64, 4), (16, 64, 8), (16, 32, 4)]
_TILES_IEEE = [(32, 32, 8), (16, 32, 8), (16, 32, 4), (16, 16, 4)]
_DEPTH = {"ieee": 16, "tf32": 32, "tf32x3": 32, "bf16": 64}
# Preferred value first. A kernel may spill with one but not the other, see docs/kernels.md.
_STAGES = {"ieee": (2, 3), "tf32": (3, 2), "tf32x3": (2, 3), "bf16": (3, 2)}
# Lanes times units. Larger accumulators exceed a thread's registers and take minutes to compile.
_LARGEST_TILE, _LARGEST_TILE_IEEE = 64 * 64, 32 * 32
# With few lanes, only small tiles give every multiprocessor a program.
_UNTIMED_LANES = {512: 16, 2048: 32, None: 64}


class Problem(NamedTuple):
    """The layers one row covers: up to this many features and lanes."""

    cell: str
    precision: str
    architecture: int
    hidden_size: int
    lanes: int | None


Pair = tuple[Problem, Configuration]
Candidates = Callable[[Problem], list[Configuration]]
Fits = Callable[[Iterable[Pair]], set[Pair]]
"""Selects the pairs that fit without spilling."""
Timer = Callable[[Problem, list[Configuration]], Mapping[Configuration, float]]
"""Seconds of each candidate."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``benchmark.py tune``."""
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--untimed", action="store_true", help="choose by compilation alone; needs no GPU")
    parser.add_argument("--steps", type=int, default=32, help="length of the timed sequences; default: %(default)s")
    parser.add_argument("--repetitions", type=int, default=9, help="timed repetitions; default: %(default)s")


def run(arguments: argparse.Namespace) -> None:
    """Chooses the configurations and writes the table.

    Raises:
        SystemExit: there is no GPU, it is too old for the kernels, or the output folder does not exist.
    """
    if not arguments.output.parent.is_dir():
        raise SystemExit(
            f"--output={arguments.output}: folder {arguments.output.parent} does not exist. Create it first."
        )
    if arguments.untimed:
        rows = tuned(table.ARCHITECTURES, preferred, first_fitting, in_order)
        made = Table(dict.fromkeys(table.ARCHITECTURES, _compiler()), rows)
    else:
        device, architecture = _gpu()
        rows = tuned([architecture], all_candidates, fitting, Stopwatch(device, arguments.steps, arguments.repetitions))
        made = replaced(table.current(), architecture, machine(device), rows)
    arguments.output.write_text(made.to_json(), encoding="utf-8")
    sys.stdout.write(f"Made {len(rows)} rows and wrote {len(made.rows)} to {arguments.output}\n")


def tuned(architectures: Iterable[int], candidates: Candidates, fits: Fits, timer: Timer) -> list[Row]:
    """Rows for some architectures: for each layer the fastest candidate that fits.

    If it keeps the weights resident, the fastest with one launch per step follows it, for recomputation.

    Raises:
        ValueError: no candidate fits some layer.
    """
    rows = []
    layers = list(product(table.CELLS, table.PRECISIONS, architectures))
    offered = {
        problem: candidates(problem)
        for problem in (Problem(*layer, hidden, lanes) for layer, hidden, lanes in product(layers, HIDDEN, LANES))
    }
    pairs = fits([(problem, candidate) for problem, of_problem in offered.items() for candidate in of_problem])
    for layer in layers:
        chosen = []
        for problem in (problem for problem in offered if problem[:3] == layer):
            left = [candidate for candidate in offered[problem] if (problem, candidate) in pairs]
            chosen += [Row(*problem, configuration) for configuration in _fastest(problem, left, timer)]
        rows += _without_redundant(chosen)
    return rows


def replaced(before: Table, architecture: int, source: str, rows: Sequence[Row]) -> Table:
    """A copy of the table with new rows for one architecture."""
    kept = [row for row in before.rows if row.architecture != architecture]
    return Table({**before.sources, architecture: f"timed on {source}"}, [*kept, *rows])


def preferred(problem: Problem) -> list[Configuration]:
    """Promising candidates, best first: resident weights, then the largest tiles that the lanes fill."""
    depth, both = _DEPTH[problem.precision], _STAGES[problem.precision]
    tiles = product(_TILES_IEEE if problem.precision == "ieee" else _TILES, both)
    most = _UNTIMED_LANES[problem.lanes]
    step = [
        Configuration(False, lanes, units, depth, warps, stages)
        for (lanes, units, warps), stages in tiles
        if lanes <= most
    ]
    return [*_resident(problem), *step]


def all_candidates(problem: Problem) -> list[Configuration]:
    """All candidates worth timing."""
    ieee = problem.precision == "ieee"
    shapes = product((16, 32, 64, 128), (32, 64), (16, 32) if ieee else (32, 64), (4, 8), (2, 3))
    most = _LARGEST_TILE_IEEE if ieee else _LARGEST_TILE
    step = [Configuration(False, *shape) for shape in shapes if shape[0] * shape[1] <= most]
    return [*_resident(problem), *step]


def _resident(problem: Problem) -> list[Configuration]:
    if problem.hidden_size > _LARGEST_RESIDENT:
        return []
    units = problem.hidden_size
    # Full float32 matmuls spread over the lanes; tensor-core ones do not.
    lanes = (16, 8) if problem.precision == "ieee" and units > 32 else (8, 16)
    warps = (4, 8) if units <= 32 else (8, 4)
    return [Configuration(True, width, units, units, count, stages=1) for count in warps for width in lanes]


def in_order(problem: Problem, candidates: list[Configuration]) -> dict[Configuration, float]:
    """A timer that ranks candidates by their position."""
    return {candidate: float(place) for place, candidate in enumerate(candidates)}


def fitting(pairs: Iterable[Pair]) -> set[Pair]:
    """The pairs whose kernels, compiled ahead of time, fit without spilling and pass the barrier check.

    Checks the most demanding form of each kernel at all sizes, the others at one. Resident configurations skip the
    latter: they are worth a few spilled registers in a rarely launched form.
    """
    jobs = {(problem, candidate): _jobs(problem, candidate) for problem, candidate in pairs}
    fit = _good(jobs, all_forms=False)
    resident = {(problem, candidate) for problem, candidate in fit if candidate.resident}
    by_step = fit - resident
    return resident | _good({pair: of_pair[:1] for pair, of_pair in jobs.items() if pair in by_step}, all_forms=True)


def _good(jobs: Mapping[Pair, Sequence[Job]], all_forms: bool) -> set[Pair]:
    different = list(dict.fromkeys(job for of_pair in jobs.values() for job in of_pair))
    sys.stderr.write(f"compiling {'all forms' if all_forms else 'the kernels'} of {len(different)} candidates\n")
    found = compile_all(different, all_forms)
    good = {job: all(figures.fits and not figures.faults for figures in of_job) for job, of_job in found.items()}
    return {pair for pair, of_pair in jobs.items() if all(good[job] for job in of_pair)}


def first_fitting(pairs: Iterable[Pair]) -> set[Pair]:
    """For each problem, the first fitting candidate with resident weights, and the first with one launch per step.

    Later candidates are not compiled.
    """
    waiting: dict[Problem, list[Configuration]] = {}
    for problem, candidate in pairs:
        waiting.setdefault(problem, []).append(candidate)
    found: set[Pair] = set()
    while waiting:
        first = {problem: candidates.pop(0) for problem, candidates in waiting.items()}
        fit = fitting(first.items())
        found |= fit
        for problem, fitted in fit:
            # Resident candidates come first.
            waiting[problem] = [other for other in waiting[problem] if fitted.resident and not other.resident]
        waiting = {problem: left for problem, left in waiting.items() if left}
    return found


def _jobs(problem: Problem, candidate: Configuration) -> list[Job]:
    """Includes sizes that are not multiples of 16 or have a short feature loop, which may take more registers."""
    odd = problem.hidden_size * 4 // 5
    sizes = (odd, problem.hidden_size) if candidate.resident else _STEP_HIDDEN
    return [Job(Layer(problem.cell, size, problem.precision, problem.architecture), candidate) for size in sizes]


def _fastest(problem: Problem, candidates: list[Configuration], timer: Timer) -> list[Configuration]:
    """The fastest candidate, and the fastest with one launch per step."""
    if all(candidate.resident for candidate in candidates):
        raise ValueError(f"No candidate with one launch per step fits {problem}. Add smaller ones.")
    seconds = timer(problem, candidates)
    best = min(candidates, key=lambda candidate: seconds[candidate])
    best_step = min((c for c in candidates if not c.resident), key=lambda candidate: seconds[candidate])
    return list(dict.fromkeys((best, best_step)))


def _without_redundant(rows: list[Row]) -> list[Row]:
    """Drops rows that a later row makes redundant."""
    kept = list(rows)
    for row in reversed(rows):
        without = [other for other in kept if other is not row]
        if _choices(without) == _choices(kept):
            kept = without
    return kept


def _choices(rows: list[Row]) -> list[Configuration | None]:
    """The choice for every hidden size and number of lanes, with and without resident weights allowed."""
    return [
        next(
            (
                r.configuration
                for r in rows
                if r.covers(hidden, lanes or _MANY_LANES) and not (step and r.configuration.resident)
            ),
            None,
        )
        for hidden, lanes, step in product(HIDDEN, LANES, (False, True))
    ]


@dataclass(frozen=True)
class Stopwatch:
    """Times candidates on a device: one layer forwards and backwards, on rows without resets."""

    device: torch.device
    steps: int
    repetitions: int

    def __call__(self, problem: Problem, candidates: list[Configuration]) -> dict[Configuration, float]:
        """Median seconds of each candidate, interleaved."""
        layer = self._layer(problem)
        seconds = interleaved({str(c): _with(c, layer) for c in candidates}, self.repetitions, self.device)
        return {candidate: seconds[str(candidate)] for candidate in candidates}

    def _layer(self, problem: Problem) -> Run:
        rows, hidden = problem.lanes or _MANY_LANES, problem.hidden_size
        cell = make_cell(problem.cell, hidden)
        weights = {
            name: (0.1 * torch.randn(shape, device=self.device)).requires_grad_()
            for name, shape in cell.parameters(hidden).items()
        }
        x_BTI = torch.randn(rows, self.steps, hidden, device=self.device)
        stored = (torch.zeros((), device=self.device).expand(rows, self.steps, hidden),) * len(cell.states())
        segments = Segments.from_is_init(torch.zeros(rows, self.steps, dtype=torch.bool, device=self.device))
        options = Options(precision=problem.precision)

        def run() -> None:
            output, _ = load_backend("triton").sequence(cell, x_BTI, segments, stored, weights, options)
            output.sum().backward()

        return run


def _with(candidate: Configuration, layer: Run) -> Run:
    def run() -> None:
        with table.forced(candidate):
            layer()

    return run


def _gpu() -> tuple[torch.device, int]:
    """This machine's GPU and its architecture in the table."""
    if not torch.cuda.is_available():
        raise SystemExit(
            "tune times the kernels on a CUDA device, but none is available. Run it on a machine with one, or use "
            "--untimed to choose by compilation alone."
        )
    device = torch.device("cuda", torch.cuda.current_device())
    capability = torch.cuda.get_device_capability(device)
    architecture = table.architecture(capability)
    if architecture is None:
        raise SystemExit(f"The kernels need compute capability 8.0, but {device} has {capability[0]}.{capability[1]}.")
    return device, architecture


def _compiler() -> str:
    return f"compiled ahead of time by triton {version('triton')}, not timed: the first that spills nothing and fits"
