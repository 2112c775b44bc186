"""Statistics of the episodes that end during collection."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from statistics import fmean

from tensordict import TensorDictBase

from recurrl.envs import EPISODE_LENGTH, EPISODE_RETURN


class EpisodeStatistics:
    """Returns and lengths of the last episodes, unscaled and undiscounted.

    Args:
        window: number of episodes that the means cover.
    """

    def __init__(self, window: int = 100) -> None:
        self.returns: deque[float] = deque(maxlen=window)
        self.lengths: deque[float] = deque(maxlen=window)
        self.count = 0

    def update(self, batch_NT: TensorDictBase) -> None:
        """Adds the episodes that ended within a batch, in order of time."""
        after = batch_NT["next"].transpose(0, 1)
        ended = after["done"].squeeze(-1)
        self._extend(after[EPISODE_RETURN][ended].flatten().tolist(), after[EPISODE_LENGTH][ended].flatten().tolist())

    def _extend(self, returns: Iterable[float], lengths: list[float]) -> None:
        self.returns.extend(returns)
        self.lengths.extend(lengths)
        self.count += len(lengths)

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

    def state_dict(self) -> dict[str, list[float] | int]:
        """For a checkpoint."""
        return {"returns": list(self.returns), "lengths": list(self.lengths), "count": self.count}

    def load_state_dict(self, state: dict[str, list[float] | int]) -> None:
        """From a checkpoint."""
        returns, lengths, count = state["returns"], state["lengths"], state["count"]
        assert isinstance(returns, list)
        assert isinstance(lengths, list)
        assert isinstance(count, int)
        self.returns.clear()
        self.lengths.clear()
        self._extend(returns, lengths)
        self.count = count
