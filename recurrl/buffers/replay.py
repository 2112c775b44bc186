"""Replay: learns again from rows of earlier rollouts, together with the new ones.

Shape legend: N environments, T steps of a row, R rows.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from recurrl.buffers.on_policy import SliceBuffer
from recurrl.config.collector import ReplayConfig
from recurrl.keys import ACTION
from recurrl.specs import is_continuous

logger = logging.getLogger(__name__)


class ReplayBuffer(SliceBuffer):
    """Adds rows of earlier rollouts to new ones, the more the noisier gradients are.

    With a share s of signal in the gradients, m + (M − m) (1 − √s) rows, rounded, are learned from per new row, for
    ``min_replay_ratio`` m and ``replay_ratio`` M, by default 4, or 1 with continuous actions. Earlier ones are drawn
    without replacement from the last ``rollouts`` rollouts, and only as many as have been collected, so the first
    iterations replay less. An epoch has as many slices as the rollout, drawn from all rows, so that an iteration takes
    as many gradient steps as without replay; as many epochs as there are rows per new row learn once from every slice.

    Args:
        options: the buffer's options.
        slice_len: steps per slice.
        minibatch_slices: slices per minibatch.
    """

    options: ReplayConfig

    def __init__(self, options: ReplayConfig, slice_len: int, minibatch_slices: int) -> None:
        super().__init__(options, slice_len, minibatch_slices)
        # The last rollouts, the newest first, as copies, because learning changes the rows that it gets.
        self._earlier: list[TensorDictBase] = []
        # Rows to learn from per new one, and the parts of the permutation that are left for the next epochs.
        self._ratio = 1
        self._parts: list[Tensor] = []

    def state_dict(self) -> dict[str, list[dict[Any, Tensor]]]:
        """The entries ``[R, T, ...]`` of each earlier rollout, the newest first, for checkpoints."""
        return {"rollouts": [dict(rows_RT.items(True, True)) for rows_RT in self._earlier]}

    def load_state_dict(self, state: Mapping[str, Sequence[dict[Any, Tensor]]]) -> None:
        """Restores the rollouts. They are dropped if new ones have other entries or another length."""
        newest = state["rollouts"][: self.options.rollouts]
        self._earlier = [TensorDict(rows, rows["next", "done"].shape[:2]) for rows in newest]

    def order(self, slices_SK: TensorDictBase) -> Tensor:
        """As many slices as the rollout has: a part of a permutation of all slices, whose other parts come next."""
        if not self._parts:
            self._parts = list(super().order(slices_SK).chunk(self._ratio))
        return self._parts.pop()

    def extend(self, rollout_NT: TensorDictBase, signal_share: float) -> TensorDictBase:
        """Rows ``[R, T]`` to learn from: the new ones, then those drawn from earlier rollouts."""
        rows, min_ratio = len(rollout_NT), self.options.min_replay_ratio
        max_ratio = self.options.max_replay_ratio(continuous=is_continuous(rollout_NT[ACTION]))
        if max_ratio == 1:
            return rollout_NT
        layout = _layout(rollout_NT)
        earlier = [rows_RT.to(rollout_NT.device) for rows_RT in self._earlier if _layout(rows_RT) == layout]
        if len(earlier) < len(self._earlier):
            logger.warning("The replay buffer starts empty, because rows have other entries or another length now.")
        self._earlier = [rollout_NT.clone(), *earlier][: self.options.rollouts]
        lengths = [len(rows_RT) for rows_RT in earlier]
        wanted = min_ratio + round((max_ratio - min_ratio) * (1 - math.sqrt(signal_share)))
        self._ratio, self._parts = min(wanted, 1 + sum(lengths) // rows), []
        if self._ratio == 1:
            return rollout_NT
        is_drawn_R = torch.randperm(sum(lengths), device=rollout_NT.device) < (self._ratio - 1) * rows
        drawn = [rows_RT[drawn_R] for rows_RT, drawn_R in zip(earlier, is_drawn_R.split(lengths), strict=True)]
        return torch.cat([rollout_NT, *drawn])


def _layout(rows_RT: TensorDictBase) -> dict[Any, tuple[torch.Size, torch.dtype]]:
    return {key: (entry.shape[1:], entry.dtype) for key, entry in rows_RT.items(True, True)}


make = ReplayBuffer
