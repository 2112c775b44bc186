"""Callbacks that look at rollouts: the consistency check, and statistics of the episodes that end in them."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Mapping
from operator import itemgetter
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase

from recurrl.callbacks.callback import Callback
from recurrl.envs import EPISODE_LENGTH, EPISODE_RETURN
from recurrl.returns import WINDOW
from recurrl.runtime.ranks import world

if TYPE_CHECKING:
    from recurrl.trainer import Trainer

logger = logging.getLogger(__name__)
_WINDOWS = ("returns", "lengths", "truncated")


class ConsistencyCheck(Callback):
    """Checks once, on the first rollout, that the update sees what the rollout saw.

    Args:
        check: takes the rollout and ``resumed``, and returns a line for the log.
    """

    def __init__(self, check: Callable[..., str]) -> None:
        self._check = check
        self._done = False

    def on_rollout(self, trainer: Trainer, rollout: TensorDictBase) -> None:
        """Checks the first rollout of this process, as part of the start-up.

        Raises:
            ConsistencyError: the update would see something else.
        """
        if not self._done:
            with trainer.report.starting_up():
                logger.info(self._check(rollout, resumed=trainer.frames > 0))
            self._done = True


class EpisodeStatistics(Callback):
    """Returns, unscaled and undiscounted, lengths and truncations of the last episodes; on rank 0 of all ranks."""

    def __init__(self) -> None:
        self.returns: deque[float] = deque(maxlen=WINDOW)
        self.lengths: deque[float] = deque(maxlen=WINDOW)
        self.truncated: deque[float] = deque(maxlen=WINDOW)
        self.count = 0

    def on_rollout(self, trainer: Trainer, rollout: TensorDictBase) -> None:
        """Adds the episodes that ended within the rollout."""
        self.update(rollout)

    def update(self, batch_NT: TensorDictBase) -> None:
        """Adds the episodes that ended within a batch, in order of time."""
        ended = [each for rows in world().gather(_ended_in(batch_NT)) for each in rows]
        # A stable sort: within a step they are in the order of the environments, as in a run of one process.
        ended.sort(key=itemgetter(0))
        _, returns, lengths, truncated = zip(*ended, strict=True) if ended else ((), (), (), ())
        self.returns.extend(returns)
        self.lengths.extend(lengths)
        self.truncated.extend(truncated)
        self.count += len(returns)

    @property
    def return_mean(self) -> float:
        """Mean return, NaN while no episode has ended."""
        return _mean(self.returns)

    def metrics(self) -> dict[str, float]:
        """Means and deviations over the last episodes."""
        mean = self.return_mean
        return {
            "train/return_mean": mean,
            "train/episode_length_mean": _mean(self.lengths),
            "train/episodes": float(self.count),
            "train/return_std": math.sqrt(_mean([(each - mean) ** 2 for each in self.returns])),
            "train/truncated_fraction": _mean(self.truncated),
        }

    def state_dict(self) -> dict[str, Any]:
        """The last episodes and their number, for checkpoints."""
        return {**{name: list(getattr(self, name)) for name in _WINDOWS}, "count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores them."""
        self.returns, self.lengths, self.truncated = (deque(state[name], maxlen=WINDOW) for name in _WINDOWS)
        self.count = state["count"]


def _ended_in(batch_NT: TensorDictBase) -> list[list[float]]:
    """The episodes that ended within a batch: step of the row, return, length, and 1 if truncated."""
    after = batch_NT["next"].transpose(0, 1)
    done_TN1 = after["done"]
    step_TN1 = torch.arange(len(done_TN1), device=done_TN1.device).view(-1, 1, 1).expand_as(done_TN1)
    truncated = done_TN1 & ~after["terminated"]
    # As one table, so that a device is waited for once.
    table_TN4 = torch.cat((step_TN1, after[EPISODE_RETURN], after[EPISODE_LENGTH], truncated), -1)
    return table_TN4[done_TN1.squeeze(-1)].tolist()


def _mean(values: Collection[float]) -> float:
    return fmean(values) if values else math.nan
