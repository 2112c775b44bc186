"""The state policy: which recurrent state a slice starts from, and how far recorded states are from today's weights.

Shape legend: N environments, T steps of a row, S slices, K steps of a slice, B burn-in steps.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.utils import expand_as_right
from torch import Tensor

from recurrl.config import BURN_IN, REFRESH, ZERO, TrainConfig
from recurrl.learning.buffers.on_policy import segment_ends
from recurrl.policy import OBSERVATION, VALUE, Policy
from recurrl.recurrent.module.keys import IS_INIT
from recurrl.recurrent.segments import Segments


class SliceStates:
    """Gives slices the recurrent states they start from.

    - ``stored``: those of the rollout.
    - ``zero``: zeros.
    - ``burn_in``: what the current weights make of the ``burn_in_len`` steps that precede the slice in its row, from
      the state stored there (Kapturowski et al. 2019, https://openreview.net/forum?id=r1lyTjAqYX). Those steps give no
      loss and no gradient here, so every frame still counts once an epoch. A row's first slice has none before it and
      starts from its stored state.
    - ``refresh``: those of the current weights, by one pass over the rows before each epoch, from the states stored at
      the rows' beginnings.

    A slice that starts where an episode starts begins with the state stored there, zero, whatever the policy. No
    gradient flows into any of these states.

    Args:
        config: the run's configuration.
        policy: whose states they are; a feed-forward one has none, and nothing is done.
    """

    def __init__(self, config: TrainConfig, policy: Policy) -> None:
        self._mode = config.state
        self._burn_in_len = config.burn_in_len or 0
        self._slice_len = config.slice_len
        self._slices_per_row = config.steps_per_row // config.slice_len
        self._policy, self._keys = policy, policy.state_keys
        self._read = [OBSERVATION, IS_INIT, *self._keys] if self._keys else [OBSERVATION]

    def take(self, batch_NT: TensorDictBase) -> None:
        """Takes the rows of an iteration, as they were collected."""
        inputs = batch_NT.select(*self._read)
        self._slices_SK = inputs.reshape(-1, self._slice_len)
        self._recorded_SK = batch_NT["next"].select(*self._keys).reshape(-1, self._slice_len)

    def norms(self, batch_NT: TensorDictBase) -> dict[str, float]:
        """Euclidean norms of the states that steps began with, each on average over the batch; nothing without states.

        Args:
            batch_NT: rows of an iteration, as they were collected.
        """
        if not self._keys:
            return {}
        means = torch.stack([batch_NT[key].flatten(2).norm(dim=-1).mean() for key in self._keys]).tolist()
        return {f"state/{key}_norm": mean for key, mean in zip(self._keys, means, strict=True)}

    @property
    def refreshes(self) -> bool:
        """True if states, and with them values and advantages, are recomputed before each epoch."""
        return self._mode == REFRESH

    @torch.no_grad()
    def refresh(self, batch_NT: TensorDictBase) -> None:
        """Replaces states and values of the rows by those of the current weights.

        States are replaced where they are read: at the starts of slices, and where an episode or a row ends, for the
        bootstrap. Log-probabilities stay those of the policy that acted.
        """
        rows_NT = batch_NT.select(*self._read).clone()
        values: list[Tensor] = []
        states: list[dict[NestedKey, Tensor]] = []
        for begin in range(0, rows_NT.batch_size[1], self._slice_len):
            slices_NK = rows_NT[:, begin : begin + self._slice_len]
            if states:
                self._enter(slices_NK, {key: state[:, -1] for key, state in states[-1].items()})
            _, value_NK, state_NK = self._policy.sequence(*self._policy.inputs(slices_NK))
            values += [] if value_NK is None else [value_NK]
            states.append(state_NK)
        ends_NT = segment_ends(batch_NT, self._slice_len)
        for key in self._keys:
            now, then = torch.cat([state[key] for state in states], 1), batch_NT["next", key]
            batch_NT.set(key, rows_NT[key])
            batch_NT.set(("next", key), torch.where(expand_as_right(ends_NT, now), now, then))
        if values:
            batch_NT.set(VALUE, torch.cat(values, 1))

    @torch.no_grad()
    def enter(self, slices_SK: TensorDictBase) -> None:
        """Writes the states that sampled slices start from into their first step.

        Args:
            slices_SK: a minibatch of the buffer; its ``index`` says which of the iteration's slices they are.
        """
        if self._mode == ZERO:
            for key in self._keys:
                slices_SK[key][:, 0] = 0
        elif self._mode == BURN_IN:
            index_S = slices_SK["index"][:, 0]
            # The slices of a row lie one after the other. All are run, also those that have none before them: a number
            # of rows that differs from call to call would be a new shape each time.
            before_SB = self._slices_SK[(index_S - 1).clamp_min(0)][:, -self._burn_in_len :]
            _, _, state_SB = self._policy.sequence(*self._policy.inputs(before_SB))
            warmed_S = {key: state[:, -1] for key, state in state_SB.items()}
            self._enter(slices_SK, warmed_S, index_S % self._slices_per_row > 0)

    def drift(self, slices_SK: TensorDictBase) -> dict[str, float]:
        """The drift of the current weights' states from the recorded ones, ``‖now − then‖ / ‖then‖``.

        Measured where the segments of these slices end, after running them from the states they start from. Empty for
        a policy without states.

        Args:
            slices_SK: a minibatch that ``enter`` has been called with.
        """
        if not self._keys:
            return {}
        # With gradients, though none are asked for: the computation that learning has just run, by the same backend.
        _, _, now = self._policy.sequence(*self._policy.inputs(slices_SK))
        then = self._recorded_SK[slices_SK["index"][:, 0]]
        starts = slices_SK[IS_INIT].reshape(slices_SK.batch_size)
        ends = Segments.from_is_init(starts).ends_BT
        difference = torch.cat([(now[key].detach() - then[key])[ends].flatten() for key in self._keys])
        recorded = torch.cat([then[key][ends].flatten() for key in self._keys])
        return {"state/drift": float(difference.norm() / recorded.norm())}

    def _enter(
        self, slices_SK: TensorDictBase, entering_S: Mapping[NestedKey, Tensor], where_S: Tensor | None = None
    ) -> None:
        """Writes states into the first step of slices, but where an episode starts, or outside ``where_S``."""
        first_S = slices_SK[:, 0]
        write_S = ~first_S[IS_INIT].reshape(first_S.batch_size)
        if where_S is not None:
            write_S = write_S & where_S
        for key in self._keys:
            stored = slices_SK[key][:, 0]
            slices_SK[key][:, 0] = torch.where(expand_as_right(write_S, stored), entering_S[key], stored)
