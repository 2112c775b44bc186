"""Replay: learns again from rows of earlier iterations, together with the new ones.

Shape legend: N environments, T steps of a row, R rows, C steps of the ring.
"""

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import LazyTensorStorage, SliceSampler
from torchrl.data import ReplayBuffer as Storage

from recurrl.buffers.on_policy import SliceBuffer
from recurrl.config.collector import ReplayConfig
from recurrl.errors import require
from recurrl.recurrent.module.keys import IS_INIT

_STREAM = "stream"
"""Entry of the ring: the number of the environment that a frame is from."""


class ReplayRing:
    """The last ``steps`` steps of each environment, from which contiguous slices are drawn.

    Uses TorchRL's ``ReplayBuffer`` (its ``TensorDictReplayBuffer`` fails with one environment) and ``SliceSampler``. To
    the sampler, all steps of an environment are one trajectory, so that short episodes are drawn too: a slice may hold
    several, and starts with the recurrent state stored at its first step. Environments and the starts of slices are
    drawn uniformly with replacement. A frame is drawn as often as any other, except the first and last ``slice_len −
    1`` of an environment's steps, in which fewer slices start or end. No slice crosses from the newest step to the
    oldest.

    Args:
        steps: C, the number of steps to keep of each environment.
        slice_len: steps of a slice; at most C.

    Raises:
        ConfigError: a slice is longer than the ring.
    """

    def __init__(self, steps: int, slice_len: int) -> None:
        require(
            slice_len <= steps,
            f"A slice of {slice_len} steps is longer than a ring of {steps} steps. Keep more frames, or draw shorter "
            "slices.",
        )
        self.steps, self.slice_len = steps, slice_len
        self.clear()

    def clear(self) -> None:
        """Removes all steps."""
        self._written = 0
        self._buffer: Storage | None = None

    def __len__(self) -> int:
        """The number of steps in the ring, per environment."""
        return min(self._written, self.steps)

    def extend(self, rows_NT: TensorDictBase) -> None:
        """Appends rows ``[N, T]``, the next T steps of the same N environments. A full ring drops its oldest steps."""
        rows, steps = rows_NT.batch_size
        if self._buffer is None:
            storage = LazyTensorStorage(self.steps * rows, ndim=2)
            # Without the last two keys the sampler changes no entry.
            sampler = SliceSampler(
                slice_len=self.slice_len, traj_key=_STREAM, truncated_key=None, init_key=None, cache_values=True
            )
            self._buffer = Storage(storage=storage, sampler=sampler, dim_extend=0)
        stream_TN = torch.arange(rows, device=rows_NT.device).expand(steps, rows)
        self._buffer.extend(rows_NT.transpose(0, 1).clone().set(_STREAM, stream_TN))
        self._written += steps

    def sample(self, slices: int) -> TensorDictBase:
        """Draws slices ``[slices, slice_len]``, as copies.

        Raises:
            ValueError: the ring has fewer than ``slice_len`` steps.
        """
        if self._buffer is None or len(self) < self.slice_len:
            raise ValueError(f"A slice of {self.slice_len} steps cannot be drawn from {len(self)} steps. Add more.")
        drawn = self._buffer.sample(slices * self.slice_len).reshape(slices, self.slice_len)
        # An episode abandoned after an error or on resume ends like a truncated one.
        drawn["next", "done"][:, :-1] |= drawn[IS_INIT][:, 1:]
        return drawn.exclude(_STREAM)

    def state_dict(self) -> dict[Any, Tensor]:
        """The frames by key, ``[C, N, ...]``, the oldest first."""
        if self._buffer is None:
            return {}
        frames_CN = self._buffer[:].exclude(_STREAM)
        oldest = self._written % self.steps if self._written > self.steps else 0
        return dict(frames_CN.apply(lambda entry_CN: entry_CN.roll(-oldest, 0)).items(True, True))

    def load_state_dict(self, state: Mapping[Any, Tensor]) -> None:
        """Restores the frames, only the newest if the saved ring was larger. The same slices are then drawn."""
        self.clear()
        if not state:
            return
        frames_CN = TensorDict(dict(state), state["next", "done"].shape[:2])
        self.extend(frames_CN[-self.steps :].transpose(0, 1))


make_replay_buffer = ReplayRing


class ReplayBuffer(SliceBuffer):
    """Adds ``replay_ratio − 1`` rows drawn from earlier iterations to each new row.

    An epoch has as many slices as the rollout, drawn from all rows, so that an iteration takes as many gradient steps
    as without replay. Each ``replay_ratio`` epochs learn once from every slice.

    Args:
        options: the buffer's options.
        slice_len: steps per slice.
        minibatch_slices: slices per minibatch.
    """

    options: ReplayConfig

    def __init__(self, options: ReplayConfig, slice_len: int, minibatch_slices: int) -> None:
        super().__init__(options, slice_len, minibatch_slices)
        self.ring: ReplayRing | None = None
        self._loaded: Mapping[Any, Tensor] = {}
        # The permutation's parts that are left for the next epochs, and how long they are; None for all slices.
        self._parts: list[Tensor] = []
        self._slices_of_rollout: int | None = None

    def state_dict(self) -> dict[Any, Tensor]:
        """The ring's state, for checkpoints."""
        return dict(self._loaded) if self.ring is None else self.ring.state_dict()

    def load_state_dict(self, state: Mapping[Any, Tensor]) -> None:
        """Restores the ring from a checkpoint; rows may have another length now."""
        self.ring, self._loaded = None, state

    def order(self, slices_SK: TensorDictBase) -> Tensor:
        """As many slices as the rollout has: a part of a permutation of all slices, whose other parts come next."""
        if not self._parts:
            self._parts = list(super().order(slices_SK).split(self._slices_of_rollout or len(slices_SK)))
        return self._parts.pop()

    def extend(self, rollout_NT: TensorDictBase) -> TensorDictBase:
        """Rows ``[R, T]`` to learn from: the new ones, then rows drawn from earlier iterations once there are any.

        Drawn rows are as long as new ones, start at any step, and go through the whole update as new ones do: states,
        values and advantages are computed over rows, and minibatches hold slices of them.
        """
        rows, steps = rollout_NT.batch_size
        self._slices_of_rollout, self._parts = rows * steps // self.slice_len, []
        if self.ring is None:
            self.ring = ReplayRing(self.options.rollouts * steps, steps)
            self.ring.load_state_dict(self._loaded)
            self._loaded = {}
        rows_RT = rollout_NT
        if len(self.ring) >= steps:
            drawn = self.ring.sample((self.options.replay_ratio - 1) * rows)
            rows_RT = torch.cat([rollout_NT, drawn.to(rollout_NT.device)])
        self.ring.extend(rollout_NT)
        return rows_RT


make = ReplayBuffer
