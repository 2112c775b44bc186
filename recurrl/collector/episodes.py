"""Statistics of the episodes that end during collection."""

import math
from collections import deque
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from tensordict import TensorDictBase

from recurrl.envs import EPISODE_LENGTH, EPISODE_RETURN


class EpisodeStatistics:
    """Returns and lengths of the last episodes, unscaled and undiscounted.

    Args:
        window: number of episodes in the means.
    """

    def __init__(self, window: int = 100) -> None:
        self.returns: deque[float] = deque(maxlen=window)
        self.lengths: deque[float] = deque(maxlen=window)
        self.count = 0

    def update(self, batch_NT: TensorDictBase) -> None:
        """Adds the episodes that ended within a batch, in order of time."""
        after = batch_NT["next"].transpose(0, 1)
        ended = after["done"].squeeze(-1)
        self.returns.extend(after[EPISODE_RETURN][ended].flatten().tolist())
        self.lengths.extend(after[EPISODE_LENGTH][ended].flatten().tolist())
        self.count += int(ended.sum())

    @property
    def return_mean(self) -> float:
        """Mean return, NaN while no episode has ended."""
        return fmean(self.returns) if self.returns else math.nan

    def metrics(self) -> dict[str, float]:
        """The metrics to log."""
        return {
            "train/return_mean": self.return_mean,
            "train/episode_length_mean": fmean(self.lengths) if self.lengths else math.nan,
            "train/episodes": float(self.count),
        }

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"returns": list(self.returns), "lengths": list(self.lengths), "count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """From a checkpoint."""
        self.returns = deque(state["returns"], maxlen=self.returns.maxlen)
        self.lengths = deque(state["lengths"], maxlen=self.lengths.maxlen)
        self.count = state["count"]
