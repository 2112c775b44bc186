"""The recurrent states that slices start from, and their drift as weights change.

Shape legend: N environments, T steps of a row, S slices, K steps of a slice, B burn-in steps.
"""

from collections.abc import Mapping
from itertools import pairwise

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.utils import expand_as_right
from torch import Tensor

from recurrl.config.run import BURN_IN, REFRESH, ZERO
from recurrl.keys import IS_INIT, OBSERVATION
from recurrl.policy import Policy
from recurrl.recurrent.segments import Segments
from recurrl.runtime.ranks import world


class SliceStates:
    """Sets the recurrent states that slices start from.

    - ``stored``: the states recorded in the rollout.
    - ``zero``: zeros.
    - ``burn_in``: recomputed with the current weights, by running the half slice before each slice from the state
      stored there (Kapturowski et al. 2019, https://openreview.net/forum?id=r1lyTjAqYX). Burn-in steps contribute
      neither loss nor gradient, so no frame counts twice in an epoch. The first slice of a row starts from its
      stored state.
    - ``refresh``: recomputed with the current weights by one pass over the rows before each epoch, starting from the
      states stored at the beginnings of rows. Values and advantages stay those of the iteration.

    In every mode, a slice that begins with an episode starts from zeros. No gradient flows into these states.

    Args:
        policy: the policy that the states belong to; nothing is done for a policy without states.
        mode: ``stored``, ``zero``, ``burn_in`` or ``refresh``.
        slice_len: steps per slice.

    """

    def __init__(self, policy: Policy, mode: str, slice_len: int) -> None:
        self._mode, self._slice_len, self._burn_in_len = mode, slice_len, slice_len // 2
        self._policy, self._keys = policy, policy.state_keys
        self._read = [OBSERVATION, IS_INIT, *policy.input_keys]

    def set_rows(self, rows_NT: TensorDictBase) -> None:
        """Sets the rows of an iteration. Call this before anything changes the states recorded in them."""
        self._slices_per_row = rows_NT.batch_size[1] // self._slice_len
        self._slices_SK = rows_NT.select(*self._read).reshape(-1, self._slice_len)
        self._recorded_SK = rows_NT["next"].select(*self._keys).reshape(-1, self._slice_len)

    def norms(self, rows_NT: TensorDictBase) -> dict[str, float]:
        """The mean Euclidean norm of each recurrent state in the rows, as metrics."""
        return {f"state/{key}_norm": float(rows_NT[key].flatten(2).norm(dim=-1).mean()) for key in self._keys}

    @torch.no_grad()
    def begin_epoch(self, rows_NT: TensorDictBase) -> None:
        """Recomputes the states that the slices of the rows start from, if the mode is ``refresh``."""
        if self._mode != REFRESH:
            return
        # The slices are views of the rows.
        for before_NK, after_NK in pairwise(rows_NT.select(*self._read).split(self._slice_len, 1)):
            state = self._policy.sequence(*self._policy.inputs(before_NK)).state
            self._write_initial(after_NK, {key: each[:, -1] for key, each in state.items()})

    def set_initial_states(self, slices_SK: TensorDictBase) -> None:
        """Writes the states that sampled slices start from into their first step.

        Args:
            slices_SK: a minibatch of the buffer, with the ``index`` of each slice.
        """
        if self._mode == ZERO:
            for key in self._keys:
                slices_SK[key][:, 0] = 0
        elif self._mode == BURN_IN:
            index_S = slices_SK["index"][:, 0]
            # The preceding slice has the preceding index. First slices of rows are run too, which keeps the shape the
            # same from call to call.
            before_SB = self._slices_SK[(index_S - 1).clamp_min(0)][:, -self._burn_in_len :]
            with torch.no_grad():
                output = self._policy.sequence(*self._policy.inputs(before_SB))
            warmed_S = {key: state[:, -1] for key, state in output.state.items()}
            self._write_initial(slices_SK, warmed_S, index_S % self._slices_per_row > 0)

    def drift(self, slices_SK: TensorDictBase) -> dict[str, float]:
        """How far the states under the current weights are from the recorded ones, relative to the norm of the latter.

        Compares the states at the ends of segments, after running these slices. Empty for a policy without states.

        Args:
            slices_SK: a minibatch after :meth:`set_initial_states`.
        """
        if not self._keys:
            return {}
        # With gradients enabled, so that the backend is the one of the update.
        current = self._policy.sequence(*self._policy.inputs(slices_SK)).state
        recorded = self._recorded_SK[slices_SK["index"][:, 0]]
        ends = Segments(slices_SK[IS_INIT].reshape(slices_SK.batch_size)).ends_BT
        difference = torch.cat([(current[key].detach() - recorded[key])[ends].flatten() for key in self._keys])
        reference = torch.cat([recorded[key][ends].flatten() for key in self._keys])
        squares = torch.stack([difference.square().sum(), reference.square().sum()])
        difference_norm, reference_norm = world().all_gather(squares).sum(0).sqrt()
        return {"state/drift": float(difference_norm / reference_norm)}

    def _write_initial(
        self, slices_SK: TensorDictBase, entering_S: Mapping[NestedKey, Tensor], where_S: Tensor | bool = True
    ) -> None:
        """Writes states into the first step of slices, except at episode starts and outside ``where_S``."""
        write_S = ~slices_SK[IS_INIT][:, 0].flatten() & where_S
        for key in self._keys:
            stored = slices_SK[key][:, 0]
            slices_SK[key][:, 0] = torch.where(expand_as_right(write_S, stored), entering_S[key], stored)
