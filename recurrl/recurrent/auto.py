"""What ``backend=auto`` chooses: ``native`` where it can, else the fastest of the others on the user's own data.

``native`` is fastest at every shape measured, and taken without measuring. Where it cannot (on a GPU, without a C
compiler, for another cell), each module measures once for each shape it meets, on that batch, and the times are kept in
a file for the next process. What was chosen belongs to a run's checkpoints: results differ in their last bits between
backends.
"""

from __future__ import annotations

import json
import logging
import math
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recurrl import __version__
from recurrl.recurrent.backends import Options, candidates, load_backend, native, refusal
from recurrl.recurrent.cell import Cell, Weights
from recurrl.recurrent.layer import Parameters, weights_of
from recurrl.recurrent.segments import Segments, in_transform
from recurrl.runtime.atomic import atomic_write
from recurrl.runtime.cache import cache_folder

# By turns, and the more often the shorter they take, for the median of a few short ones is that of the machine's moods.
_LEAST_REPETITIONS, _MOST_REPETITIONS = 5, 25
_SECONDS = 0.2
# A later candidate must beat an earlier one by this much, so that noise does not make two runs differ.
_MARGIN = 0.9

_log = logging.getLogger(__name__)


class Chooser:
    """Remembers one module's choices, so that an ordinary call asks for nothing that is on the device.

    A copy of a module chooses as the module does, because copies share this.

    Attributes:
        choices: by what was asked for: the backend, and the machine that it was measured on.
    """

    def __init__(self) -> None:
        self._chosen: dict[tuple[Any, ...], str] = {}
        self.choices: dict[str, tuple[str, str]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Chooser:
        return self

    def choose(self, cell: Cell, parameters: Parameters, x_BTI: Tensor, segments: Segments, options: Options) -> str:
        """The backend to run this batch by.

        Raises:
            ValueError: no backend can do what is asked on this device.
        """
        if torch.compiler.is_compiling():
            # The only two that compile without graph breaks.
            return "scan" if _why_not_native(cell, x_BTI, options) else "native"
        if in_transform():
            return "reference"
        shape = (x_BTI.shape, x_BTI.dtype, x_BTI.device, torch.is_grad_enabled(), torch.get_num_threads(), options)
        found = self._chosen.get(shape)
        if found is None:
            found = self._chosen[shape] = self._kept_or_chosen(cell, parameters, x_BTI, segments, options)
        return found

    def _kept_or_chosen(
        self, cell: Cell, parameters: Parameters, x_BTI: Tensor, segments: Segments, options: Options
    ) -> str:
        kind = "training" if torch.is_grad_enabled() else "inference"
        asked = f"{tuple(x_BTI.shape)} {x_BTI.dtype} {x_BTI.device.type} {kind} {options}"
        kept, _ = self.choices.get(asked, (None, None))
        if kept is not None:
            if refusal(kept, cell, options, x_BTI.device) is None:
                return kept
            _log.warning("backend auto was %s for %s, which is not possible here.", kept, asked)
        chosen = _choose(cell, parameters, x_BTI, segments, options)
        self.choices[asked] = (chosen, ", ".join(_machine(x_BTI.device)))
        return chosen


class Choices:
    """What the modules of a policy chose, as a component of a checkpoint.

    Args:
        choosers: of the modules, in their order.
        device: that they run on.
    """

    def __init__(self, choosers: Sequence[Chooser], device: torch.device) -> None:
        self._choosers, self._device = choosers, device

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"modules": [dict(chooser.choices) for chooser in self._choosers]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keeps the choices that were made, and logs it if they were made on another machine."""
        for chooser, choices in zip(self._choosers, state["modules"], strict=True):
            chooser.choices.update(choices)
        here = ", ".join(_machine(self._device))
        others = {machine for choices in state["modules"] for _, machine in choices.values()} - {here}
        if others:
            _log.info(
                "What backend auto chose on another machine (%s) is kept on this one (%s). backend=... changes it.",
                *("; ".join(sorted(others)), here),
            )


def _choose(cell: Cell, parameters: Parameters, x_BTI: Tensor, segments: Segments, options: Options) -> str:
    reason = _why_not_native(cell, x_BTI, options)
    if reason is None:
        _say("backend auto is native, whose kernel is compiled for this processor")
        return "native"
    if reason == native.library.problem():
        _say(f"backend auto does without native, which is faster: {reason}")
    names = [name for name in candidates(cell, options, x_BTI.device) if name != "native"]
    if len(names) == 1:
        return names[0]
    rows, steps = x_BTI.shape[:2]
    per_row = len(segments.packing.starts_N) / rows
    key = "|".join(
        str(part)
        for part in (
            cell.name,
            "x".join(str(_power_of_two(size)) for size in (rows, steps)),
            f"{x_BTI.shape[2]}x{parameters.hidden_size}x{parameters.proj_size}",
            f"{_power_of_two(per_row)} segments",
            str(x_BTI.dtype),
            "training" if torch.is_grad_enabled() else "inference",
            *(options.recompute, options.precision, options.compute_dtype, options.fused),
            f"recurrl {__version__}",  # the times are those of its code
            *_machine(x_BTI.device),
            ",".join(names),
        )
    )
    path = cache_folder() / "backends.json"
    known = _read(path)
    if key not in known:
        weights = weights_of(cell, parameters, 0, 0)
        runs = {name: _one_layer(name, cell, x_BTI, segments, weights, options) for name in names}
        known[key] = _measure(runs, x_BTI.device)
        _write(path, known)
    times: dict[str, float] = known[key]
    chosen = names[0]
    for name in names[1:]:
        if times[name] < _MARGIN * times[chosen]:
            chosen = name
    measured = ", ".join(f"{name} {1e3 * seconds:.2f} ms" for name, seconds in times.items())
    _log.info(
        "backend auto is %s for %d rows of %d steps, %.1f segments a row, %d features, %d hidden: %s a layer (%s)",
        *(chosen, rows, steps, per_row, x_BTI.shape[2], parameters.hidden_size, measured, path),
    )
    return chosen


def _why_not_native(cell: Cell, x_BTI: Tensor, options: Options) -> str | None:
    if x_BTI.dtype not in native.DTYPES:
        return f"backend=native does not compute in {x_BTI.dtype}."
    return native.supports(cell, options, x_BTI.device)


@cache
def _say(line: str) -> None:
    _log.info(line)


def _power_of_two(size: float) -> int:
    return int(2 ** round(math.log2(size)))


def _machine(device: torch.device) -> tuple[str, ...]:
    if device.type == "cuda":
        return (f"torch {torch.__version__}", torch.cuda.get_device_name(device))
    return (
        f"torch {torch.__version__}",
        platform.processor() or platform.machine(),
        f"{torch.get_num_threads()} threads",
    )


def _measure(runs: Mapping[str, Callable[[], None]], device: torch.device) -> dict[str, float]:
    """Median seconds of each, in turns; the first of each is warm-up."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    started = time.perf_counter()
    for repetition in range(_MOST_REPETITIONS + 1):
        if repetition > _LEAST_REPETITIONS and time.perf_counter() - started > _SECONDS:
            break
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if repetition > 0:
                times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(taken) for name, taken in times.items()}


def _one_layer(
    name: str,
    cell: Cell,
    x_BTI: Tensor,
    segments: Segments,
    weights: Weights,
    options: Options,
) -> Callable[[], None]:
    """What one layer computes by a backend: forward and, where gradients are wanted, backward."""
    train = torch.is_grad_enabled()
    x = x_BTI.detach().requires_grad_(train)
    own = {name: weight.detach().requires_grad_(train) for name, weight in weights.items()}
    stored = tuple(x.new_zeros(()).expand(*x.shape[:2], *shape) for shape in cell.states().values())
    sequence = load_backend(name).sequence

    def run() -> None:
        output, _ = sequence(cell, x, segments, stored, own, options)
        if train:
            torch.autograd.grad(output, [x, *own.values()], torch.ones_like(output))

    return run


def _read(path: Path) -> dict[str, dict[str, float]]:
    try:
        known: dict[str, dict[str, float]] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} holds no measurements of backends ({error}). Delete it.") from error
    return known


def _write(path: Path, known: dict[str, dict[str, float]]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            json.dump(known, file, indent=1, sort_keys=True)
    except OSError as error:
        _log.info("backend auto measures again in the next process: %s", error)
