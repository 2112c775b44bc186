"""Statistics of the episodes that end during collection."""

import math
from collections import deque
from collections.abc import Collection, Mapping
from operator import itemgetter
from statistics import fmean
from typing import Any

import torch
from tensordict import TensorDictBase

from recurrl.envs import EPISODE_LENGTH, EPISODE_RETURN
from recurrl.learning.metrics import WINDOW
from recurrl.runtime.ranks import world

_KEPT = ("returns", "lengths", "truncated")


class EpisodeStatistics:
    """Returns, unscaled and undiscounted, lengths and truncations of the last episodes."""

    def __init__(self) -> None:
        self.returns: deque[float] = deque(maxlen=WINDOW)
        self.lengths: deque[float] = deque(maxlen=WINDOW)
        self.truncated: deque[float] = deque(maxlen=WINDOW)
        self.count = 0

    def update(self, batch_NT: TensorDictBase) -> None:
        """Adds the episodes that ended within a batch, in order of time; on rank 0 those of all ranks."""
        ended = [each for rows in world().gather(_ended_in(batch_NT)) for each in rows]
        # A stable sort: within a step they are in the order of the environments, as in a run alone.
        ended.sort(key=itemgetter(0))
        _, returns, lengths, cut = zip(*ended, strict=True) if ended else ((), (), (), ())
        self.returns.extend(returns)
        self.lengths.extend(lengths)
        self.truncated.extend(cut)
        self.count += len(returns)

    @property
    def return_mean(self) -> float:
        """Mean return, NaN while no episode has ended."""
        return _mean(self.returns)

    def metrics(self) -> dict[str, float]:
        """The metrics to log."""
        mean = self.return_mean
        return {
            "train/return_mean": mean,
            "train/episode_length_mean": _mean(self.lengths),
            "train/episodes": float(self.count),
            "train/return_std": math.sqrt(_mean([(each - mean) ** 2 for each in self.returns])),
            "train/truncated_fraction": _mean(self.truncated),
        }

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {**{name: list(getattr(self, name)) for name in _KEPT}, "count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """From a checkpoint."""
        self.returns, self.lengths, self.truncated = (deque(state[name], maxlen=WINDOW) for name in _KEPT)
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
