"""The recurrent layer against TorchRL's and plain torch: time and memory, forward and backward.

All run interleaved on the same data. Plain torch cannot reset mid-sequence: it runs without resets, as the baseline for
the cost of resets.
"""

import argparse
import itertools
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.modules import GRUModule as TorchRLGRU
from torchrl.modules import LSTMModule as TorchRLLSTM

from benchmarks.command_line import add_output, add_threads, publish
from benchmarks.measuring import Run, interleaved, machine, peak_memory
from recurrl.recurrent import GRUModule, LSTMModule, set_recurrent_mode
from recurrl.recurrent.segments import CACHED_PACKINGS

SHAPES = "8x128x64x64,32x64x64x128,256x32x64x128,64x128x64x256"
PLAIN = {"gru": nn.GRU, "lstm": nn.LSTM}
THEIRS = {"gru": TorchRLGRU, "lstm": TorchRLLSTM}
OURS = {"gru": GRUModule, "lstm": LSTMModule}
# The small tables have short cases and report their spread.
EXTRA_REPETITIONS = 5


@dataclass(frozen=True)
class Case:
    """One row of the table: a cell, a shape, resets per row, and each implementation's measurements."""

    cell: str
    shape: tuple[int, int, int, int]
    resets: float
    seconds: dict[str, float]
    megabytes: dict[str, float | None]
    chosen: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``benchmark.py layer``."""
    parser.add_argument("--cells", default="gru,lstm", help="default: %(default)s")
    parser.add_argument("--shapes", default=SHAPES, help="rows x steps x inputs x hidden; default: %(default)s")
    parser.add_argument("--resets", default="4", help="random resets per row, such as 0,4,16; default: %(default)s")
    parser.add_argument("--backends", default="auto,pad,scan", help="recurrl's backends; default: %(default)s")
    parser.add_argument("--peers", default="pad,scan", help="TorchRL's backends; default: %(default)s")
    parser.add_argument("--repetitions", type=int, default=9, help="timed repetitions; default: %(default)s")
    add_threads(parser, default=2)
    parser.add_argument("--device", default="cpu", help="default: %(default)s")
    add_output(parser, "layer.md", "layer.png")


def run(arguments: argparse.Namespace) -> None:
    """Measures and writes the table, and with ``--output`` the plot."""
    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    cases = list(_cases(arguments, device))
    cells = arguments.cells.split(",")
    by_distribution = {cell: _by_distribution(cell, device, arguments.repetitions) for cell in cells}
    by_size = {cell: _by_size(cell, device, arguments.repetitions) for cell in cells}
    by_novelty = {cell: _by_novelty(cell, device, arguments.repetitions) for cell in cells}
    text = "\n\n".join(
        [
            f"# The layer: all figures\n\nMeasured on {machine(device)}.",
            _table(cases),
            _small_table("Resets, four per row (256 rows of 64 steps, 64 inputs, 128 hidden)", by_distribution),
            _small_table("Frames (rows of 64 steps, four random resets, 64 inputs, 128 hidden)", by_size),
            *(
                f"{cell}: {fixed:.0f} µs fixed and {each:.2f} µs per frame; every size is within {off:.0%} of this fit."
                for cell, (fixed, each, off) in ((cell, fit_line(figures)) for cell, figures in by_size.items())
            ),
            _small_table(
                "Cached and new reset patterns (8 rows of 32 steps, one reset per row, 64 inputs, 64 hidden)",
                by_novelty,
            ),
        ]
    )
    publish(text + "\n", arguments.output, "layer.md")
    if arguments.output is not None:
        plot(cases, by_distribution, by_size, arguments.output / "layer.png")


def _cases(arguments: argparse.Namespace, device: torch.device) -> Iterator[Case]:
    for cell in arguments.cells.split(","):
        for shape in arguments.shapes.split(","):
            for resets in arguments.resets.split(","):
                sizes = tuple(int(size) for size in shape.split("x"))
                yield _case(cell, sizes, float(resets), arguments, device)


def _case(
    cell: str, shape: tuple[int, ...], resets: float, arguments: argparse.Namespace, device: torch.device
) -> Case:
    rows, steps, inputs, hidden = shape
    torch.manual_seed(0)
    x = torch.randn(rows, steps, inputs, device=device)
    is_init = torch.rand(rows, steps, device=device) < resets / steps
    runs: dict[str, Run] = {"plain torch": _plain(cell, x, hidden)}
    keys: dict[str, Any] = {"in_key": "x", "out_key": "y", "device": device}
    for backend in filter(None, arguments.peers.split(",")):
        module = THEIRS[cell](inputs, hidden, recurrent_backend=backend, **keys)
        runs[f"TorchRL {backend}"] = _module(module, x, is_init)
    chosen = ""
    for backend in arguments.backends.split(","):
        ours = OURS[cell](inputs, hidden, recurrent_backend=backend, **keys)
        runs[f"recurrl {backend}"] = run = _module(ours, x, is_init)
        if backend == "auto":
            run()
            chosen = str(ours.backend_in_use)
    seconds = interleaved(runs, arguments.repetitions, device)
    megabytes = {name: _usual_peak_memory(run, device) for name, run in runs.items()}
    return Case(cell, (rows, steps, inputs, hidden), resets, seconds, megabytes, chosen)


def _usual_peak_memory(run: Run, device: torch.device) -> float | None:
    """The median of three: what the allocator takes from the system varies."""
    peaks = [peak for peak in (peak_memory(run, device) for _ in range(3)) if peak is not None]
    return statistics.median(peaks) if peaks else None


def _plain(cell: str, x: Tensor, hidden: int) -> Run:
    module = PLAIN[cell](x.shape[-1], hidden, batch_first=True, device=x.device)

    def run() -> None:
        module.zero_grad()
        module(x.clone().requires_grad_())[0].sum().backward()

    return run


def _module(module: Any, x: Tensor, is_init: Tensor) -> Run:
    specs = module.make_tensordict_primer().primers
    states = {key: torch.zeros(*x.shape[:2], *specs[key].shape, device=x.device) for key in specs.keys(True, True)}

    def run() -> None:
        module.zero_grad()
        data = TensorDict({"x": x.clone().requires_grad_(), "is_init": is_init.unsqueeze(-1), **states}, x.shape[:2])
        with set_recurrent_mode(True):
            module(data)["y"].sum().backward()

    return run


def _by_distribution(cell: str, device: torch.device, repetitions: int) -> dict[str, float]:
    """Microseconds per frame for the same number of resets in different layouts."""
    rows, steps = 256, 64
    x = torch.randn(rows, steps, 64, device=device)
    runs = {name: _ours(cell, x, 128, [flags.to(device)]) for name, flags in distributions(rows, steps).items()}
    return _microseconds_a_frame(runs, dict.fromkeys(runs, rows * steps), repetitions, device)


def distributions(rows: int, steps: int) -> dict[str, Tensor]:
    """Reset flags ``[rows, steps]`` with four resets per row on average, in different layouts."""
    made = {
        name: torch.zeros(rows, steps, dtype=torch.bool) for name in ("even", "random", "bunched", "in half the rows")
    }
    generator = torch.Generator().manual_seed(0)
    made["even"][:, [steps * k // 5 for k in range(1, 5)]] = True
    made["bunched"][:, steps // 2 : steps // 2 + 4] = True
    for row in range(rows):
        made["random"][row, 1 + torch.randperm(steps - 1, generator=generator)[:4]] = True
        if row % 2:
            made["in half the rows"][row, 1 + torch.randperm(steps - 1, generator=generator)[:8]] = True
    return made


def _by_size(cell: str, device: torch.device, repetitions: int) -> dict[str, float]:
    """Microseconds per frame by number of frames."""
    runs: dict[str, Run] = {}
    for rows in (64, 128, 256, 512):
        x = torch.randn(rows, 64, 64, device=device)
        runs[str(rows * 64)] = _ours(cell, x, 128, [distributions(rows, 64)["random"].to(device)])
    return _microseconds_a_frame(runs, {name: int(name) for name in runs}, repetitions, device)


def _by_novelty(cell: str, device: torch.device, repetitions: int) -> dict[str, float]:
    """Microseconds per frame for small-task minibatches whose packing is cached or new."""
    x = torch.randn(8, 32, 64, device=device)
    patterns = (torch.rand(2 * CACHED_PACKINGS, 8, 32, generator=torch.Generator().manual_seed(0)) < 1 / 32).to(device)
    # Cycle through more patterns than the cache holds: each is evicted before its next turn.
    runs = {"cached": _ours(cell, x, 64, [*patterns[:10]]), "new": _ours(cell, x, 64, [*patterns[10:]])}
    return _microseconds_a_frame(runs, dict.fromkeys(runs, 8 * 32), 10 * repetitions, device)


def _microseconds_a_frame(
    runs: dict[str, Run], frames: dict[str, int], repetitions: int, device: torch.device
) -> dict[str, float]:
    seconds = interleaved(runs, EXTRA_REPETITIONS * repetitions, device)
    return {name: 1e6 * seconds[name] / frames[name] for name in runs}


def _ours(cell: str, x: Tensor, hidden: int, flags: list[Tensor]) -> Run:
    """A module of recurrl with ``auto``, cycling through several reset patterns."""
    module = OURS[cell](x.shape[-1], hidden, in_key="x", out_key="y", device=x.device)
    turns = itertools.cycle([_module(module, x, is_init) for is_init in flags])
    return lambda: next(turns)()


def _table(cases: list[Case]) -> str:
    """Milliseconds, peak MB, and ratios to plain torch and to TorchRL's best."""
    names = list(cases[0].seconds)
    lines = [
        "Milliseconds forward and backward (peak MB). Ratios: `recurrl auto`'s time over plain torch's, which has no "
        "resets; TorchRL's best time over `recurrl auto`'s; `recurrl auto`'s peak memory over plain torch's.",
        "",
        f"| cell, rows × steps × inputs × hidden | resets per row | {' | '.join(names)} "
        "| auto chose | / plain | TorchRL / | memory |",
        "|" + "---|" * (len(names) + 6),
    ]
    for case in cases:
        figures = [_figure(case.seconds[name], case.megabytes[name]) for name in names]
        shape = " × ".join(str(size) for size in case.shape)
        lines.append(
            f"| {case.cell} {shape} | {case.resets:g} | {' | '.join(figures)} | {case.chosen} | {_ratios(case)} |"
        )
    return "\n".join(lines)


def _figure(seconds: float, megabytes: float | None) -> str:
    return f"{1e3 * seconds:.1f}" + ("" if megabytes is None else f" ({megabytes:.0f})")


def _ratios(case: Case) -> str:
    ours = case.seconds.get("recurrl auto")
    if ours is None:
        return " |  | "
    theirs = [seconds for name, seconds in case.seconds.items() if name.startswith("TorchRL")]
    memory, plain = case.megabytes["recurrl auto"], case.megabytes["plain torch"]
    return " | ".join(
        (
            f"{ours / case.seconds['plain torch']:.2f}",
            f"{min(theirs) / ours:.1f}" if theirs else "",
            f"{memory / plain:.2f}" if memory and plain else "",
        )
    )


def fit_line(by_frames: dict[str, float]) -> tuple[float, float, float]:
    """Fits a line to time over frames, from microseconds per frame by number of frames.

    Returns:
        The intercept and slope in microseconds, and the largest relative deviation from the line.
    """
    frames, costs = np.array([float(name) for name in by_frames]), np.array(list(by_frames.values()))
    parts = np.stack((1 / frames, np.ones_like(frames)), 1) / costs[:, None]
    (fixed, each), *_ = np.linalg.lstsq(parts, np.ones_like(frames), rcond=None)
    return float(fixed), float(each), float(np.abs(parts @ (fixed, each) - 1).max())


def _small_table(title: str, by_cell: dict[str, dict[str, float]]) -> str:
    """Microseconds per frame by cell, and the ratio of largest to smallest."""
    columns = list(next(iter(by_cell.values())))
    lines = [f"{title}: microseconds per frame", "", f"| cell | {' | '.join(columns)} | largest / smallest |"]
    lines.append("|" + "---|" * (len(columns) + 2))
    for cell, figures in by_cell.items():
        spread = max(figures.values()) / min(figures.values())
        lines.append(f"| {cell} | {' | '.join(f'{value:.2f}' for value in figures.values())} | {spread:.2f} |")
    return "\n".join(lines)


def plot(
    cases: list[Case], by_distribution: dict[str, dict[str, float]], by_size: dict[str, dict[str, float]], path: Path
) -> None:
    """Plots time over plain torch's by shape, and microseconds per frame by reset layout and number of frames."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 4.5), layout="constrained")
    ratios, distribution, size = figure.subplots(1, 3, width_ratios=(2, 1, 1))
    names = [name for name in cases[0].seconds if name != "plain torch"]
    width = 0.8 / len(names)
    for k, name in enumerate(names):
        heights = [case.seconds[name] / case.seconds["plain torch"] for case in cases]
        ratios.bar([position + k * width for position in range(len(cases))], heights, width, label=name)
    ratios.axhline(1, color="black", linewidth=0.8)
    ratios.set_yscale("log")
    ratios.set_ylabel("time / plain torch without resets")
    labels = [
        "{}\n{}×{}\n{}×{}\n{:g} resets".format(case.cell, *case.shape, case.resets)  # rows × steps, inputs × hidden
        for case in cases
    ]
    ratios.set_xticks([position + 0.4 for position in range(len(cases))], labels, fontsize=7)
    ratios.legend(fontsize=8)
    for axes, by_cell, label in ((distribution, by_distribution, "resets"), (size, by_size, "frames")):
        for cell, figures in by_cell.items():
            axes.plot(list(figures), list(figures.values()), marker="o", label=cell)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(label)
        axes.set_ylabel("µs per frame, forward and backward")
        axes.tick_params(axis="x", labelsize=8)
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)
