"""Saves the batch that made training produce NaN or Inf, and diagnoses where they appear.

Shape legend: N environments, T steps.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from recurrl.algorithms import Algorithm
from recurrl.checkpoint import Stateful, components, files
from recurrl.checkpoint.ranks import SCALER
from recurrl.errors import NonFiniteError
from recurrl.runtime.in_bytes import read, written
from recurrl.runtime.ranks import world
from recurrl.runtime.resources import os_error_message

FOLDER = "not_finite"
ROWS = "rows"


def with_saved_batch(error: NonFiniteError, run_dir: Path, frames: int, algorithm: Algorithm) -> NonFiniteError:
    """The error that an update raised, with how to diagnose it: the batch and the algorithm are saved. Collective.

    All ranks learn from what all collected, so all have the error; rank 0 saves the rows of all.
    """
    rows = world().gather(written(_entries(algorithm)) if world().size > 1 else b"")
    if world().rank > 0:
        return error
    return NonFiniteError(f"{error} {_save(run_dir, frames, algorithm, [read(each) for each in rows[1:]])}")


def _save(run_dir: Path, frames: int, algorithm: Algorithm, others: Sequence[Mapping[Any, Tensor]]) -> str:
    """Saves them, and returns how to diagnose them; or why they could not be saved.

    Args:
        run_dir: the run's directory.
        frames: of the run before this batch.
        algorithm: of the run.
        others: the rows of the other ranks.
    """
    path = run_dir / FOLDER / f"{files.PREFIX}{frames:012d}"
    own = _entries(algorithm).items()
    rows = {key: torch.cat([value, *(each[key].to(value) for each in others)]) for key, value in own}
    states = {name: part.state_dict() for name, part in _components(algorithm).items()}
    try:
        files.write(path, {**states, ROWS: rows}, {"frames": frames})
    except OSError as error:
        return f"The batch could not be saved. {os_error_message(error)}"
    return f"To find where they appear: recurrl-check --not-finite {path}"


def diagnose(algorithm: Algorithm, path: Path) -> Iterator[str]:
    """Replays the batch that :func:`with_saved_batch` wrote, and yields lines that locate NaN and Inf.

    Args:
        algorithm: made as for the run; its state is replaced by the saved one.
        path: of the saved batch.

    Raises:
        ConfigError: no batch is saved there, it is damaged, or it does not fit the algorithm.
    """
    files.manifest(path)  # verifies the checksums
    rows = files.state(path, ROWS)
    files.load(path, _components(algorithm))
    batch_NT = TensorDict(rows, batch_size=rows["next", "done"].shape[:2]).to(algorithm.policy.device)
    for key in sorted(batch_NT.keys(True, True), key=str):
        yield from _largest(" ".join(key) if isinstance(key, tuple) else key, batch_NT[key])
    for number, (losses, not_finite) in enumerate(algorithm.trial(batch_NT), start=1):
        terms = ", ".join(f"{name} {value:g}" for name, value in losses.items())
        where = f"non-finite in {', '.join(not_finite)}" if not_finite else "finite"
        yield f"minibatch {number}: {terms}; gradient {where}"


def _entries(algorithm: Algorithm) -> dict[Any, Tensor]:
    """The rows of the last iteration, by their keys."""
    assert algorithm.rows is not None
    return dict(algorithm.rows.items(True, True))


def _components(algorithm: Algorithm) -> dict[str, Stateful]:
    """The components of an algorithm without the reward scale: the rows are scaled already."""
    return {name: part for name, part in components(algorithm).items() if name != SCALER}


def _largest(name: str, values_NT: Tensor) -> Iterator[str]:
    if not values_NT.is_floating_point():
        return
    rows, steps = values_NT.shape[:2]
    finite_NT = values_NT.isfinite().reshape(rows, steps, -1).all(-1)
    size_NT = values_NT.abs().reshape(rows, steps, -1).amax(-1)
    row, step = divmod(int(torch.where(finite_NT, size_NT, torch.inf).argmax()), steps)
    what = "largest" if finite_NT.all() else "not finite,"
    yield f"{name}: {what} {float(size_NT[row, step]):g} in environment {row} at step {step} of the row"
