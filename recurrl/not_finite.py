"""What learning was given when it yielded no numbers any more: kept, and gone over again to see where they end.

Shape legend: N environments, T steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from recurrl.checkpoint import Stateful, components, files
from recurrl.config import TrainConfig
from recurrl.learner import Learner
from recurrl.policy import Policy
from recurrl.resources import sentence

FOLDER = "not_finite"
ROWS = "rows"


class Rows:
    """The rows of an iteration, as a component of a checkpoint."""

    def __init__(self, batch_NT: TensorDictBase | None = None) -> None:
        self.batch_NT = batch_NT

    def state_dict(self) -> dict[Any, Tensor]:
        """Each entry by its key."""
        assert self.batch_NT is not None
        return dict(self.batch_NT.items(True, True))

    def load_state_dict(self, state: Mapping[Any, Tensor]) -> None:
        """From a checkpoint."""
        shape = state["next", "done"].shape[:2]
        self.batch_NT = TensorDict(dict(state), batch_size=shape)


def keep(run_dir: Path, frames: int, batch_NT: TensorDictBase, of: Mapping[str, Stateful]) -> str:
    """Writes rows, as learning had prepared them, and what learnt from them, and says how to look at them.

    Where they cannot be written, it says why; the run's error is still that learning yielded no numbers.
    """
    path = run_dir / FOLDER / f"{files.PREFIX}{frames:012d}"
    try:
        files.write(path, {**of, ROWS: Rows(batch_NT)}, {"frames": frames})
    except OSError as error:
        return f"The batch could not be kept. {sentence(error)}"
    return f"To see where its numbers end: recurrl-check --not-finite {path}"


def examine(config: TrainConfig, policy: Policy, path: Path) -> Iterator[str]:
    """Goes over what :func:`keep` wrote, and says in lines where its numbers end.

    Args:
        config: the run's configuration.
        policy: made for it; its weights are replaced by those that were kept.
        path: what ``keep`` wrote.

    Raises:
        ConfigError: nothing is kept there, it is damaged, or it does not fit the configuration.
    """
    learner, rows = Learner(config, policy), Rows()
    files.read(path, {**components(learner), ROWS: rows})
    assert rows.batch_NT is not None
    batch_NT = rows.batch_NT.to(torch.device(config.device))
    for key in sorted(batch_NT.keys(True, True), key=str):
        yield from _said_of(" ".join(key) if isinstance(key, tuple) else key, batch_NT[key])
    for number, (losses, not_finite) in enumerate(learner.trial(batch_NT), start=1):
        told = ", ".join(f"{name} {value:g}" for name, value in losses.items())
        where = f"not finite in {', '.join(not_finite)}" if not_finite else "finite"
        yield f"minibatch {number}: {told}; gradient {where}"


def _said_of(name: str, values_NT: Tensor) -> Iterator[str]:
    if not values_NT.is_floating_point():
        return
    rows, steps = values_NT.shape[:2]
    finite_NT = values_NT.isfinite().reshape(rows, steps, -1).all(-1)
    size_NT = values_NT.abs().reshape(rows, steps, -1).amax(-1)
    row, step = divmod(int(torch.where(finite_NT, size_NT, torch.inf).argmax()), steps)
    what = "largest" if finite_NT.all() else "not finite,"
    yield f"{name}: {what} {float(size_NT[row, step]):g} in environment {row} at step {step} of the row"
