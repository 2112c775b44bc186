"""Memory layout of segments for a fused kernel.

Segments may be joined into *chains*, separated by gaps, so that a few chains of similar length replace many segments of
different lengths. The chains, longest first, are cut into *blocks* of steps in which nearly all chains run from the
first step to the last; those that end earlier are padded. A block that takes too much memory is cut into *pieces*, each
holding some of its chains.

Shape legend: B rows, T steps, N segments, C chains, S steps of the longest chain, P steps of all rows, Q steps of all
blocks, K segments followed by another in their chain.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recurrl.recurrent.segments import Packing

GAP = 3
"""Steps between two segments of a chain: hold, read out, clear the state."""

# Cost of one more block (a kernel call), and of one more step of all chains, in steps of a single chain. Measured with
# oneDNN: 50 to 200 per block are about equally fast, and a lower value pads less.
_BLOCK = 50
_STEP = 8


@dataclass(frozen=True, eq=False)
class Layout:
    """Index maps between rows and blocks. Segments are in the packed order of
    :class:`~recurrl.recurrent.segments.Packing`.
    """

    blocks: list[tuple[int, list[int]]]
    """Steps of each block, and the number of chains in each of its pieces."""

    source_Q: Tensor
    """Source of each block step: a flat index into the rows, P to hold the state (padding and the first step of a
    gap), P + 1 to read it out, P + 2 to clear it.
    """

    place_P: Tensor
    """Index of each row step among the block steps."""

    readout_K: Tensor
    """Block steps that read out the state of a segment followed by another."""

    heads_C: Tensor
    """The packed index of each chain's first segment."""

    order_N: Tensor
    """Reorders segments to packed order; they come as those followed by another, then the last of each chain."""


# Same size as the cache of packings, and like it no inference-mode tensors.
@lru_cache(maxsize=64)
@torch.inference_mode(False)
def separate(packing: Packing, steps_at_once: int | None) -> Layout:
    """Lays out each segment as its own chain.

    Args:
        packing: the segments.
        steps_at_once: maximum steps of a piece, unless a single chain is longer; None does not cut blocks.
    """
    return _Plan.separate(packing).layout(packing, steps_at_once)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def joined(packing: Packing, first_N: bytes, steps_at_once: int | None) -> Layout:
    """Joins segments into chains if that costs less.

    Args:
        packing: the segments.
        first_N: one byte per segment, nonzero if it must begin its chain.
        steps_at_once: as in :func:`separate`.
    """
    must_be_first_N = np.frombuffer(first_N, dtype=bool)
    plan = None if must_be_first_N.all() else _Plan.joined(packing, must_be_first_N)
    if plan is None or plan.cost > _least_cost(packing.lengths_N):
        plans = [_Plan.separate(packing), *([] if plan is None else [plan])]
        plan = min(plans, key=lambda each: each.cost)
    return plan.layout(packing, steps_at_once)


def _least_cost(lengths_N: np.ndarray) -> int:
    """Lower bound on the cost of unjoined segments: one block, or two without padding."""
    longest = int(lengths_N[0])
    return min(len(lengths_N) * longest + _BLOCK, int(lengths_N.sum()) + 2 * _BLOCK) + _STEP * longest


class _Plan:
    """Assigns segments to chains and start steps, and cuts the chains into blocks."""

    def __init__(self, lengths_N: np.ndarray, chain_N: np.ndarray, begin_N: np.ndarray, ends_C: np.ndarray) -> None:
        by_length = np.argsort(-ends_C, kind="stable")
        rank_C = np.empty_like(by_length)
        rank_C[by_length] = np.arange(len(by_length))
        self.lengths_N, self.chain_N, self.begin_N = lengths_N, rank_C[chain_N], begin_N
        self.lengths_C = ends_C[by_length]
        self.blocks = blocks_of(self.lengths_C, _BLOCK)
        area = sum(steps * size for _, steps, size in self.blocks)
        self.cost = area + _BLOCK * len(self.blocks) + _STEP * int(self.lengths_C[0])

    @classmethod
    def separate(cls, packing: Packing) -> _Plan:
        lengths_N = packing.lengths_N
        return cls(lengths_N, np.arange(len(lengths_N)), np.zeros_like(lengths_N), lengths_N)

    @classmethod
    def joined(cls, packing: Packing, must_be_first_N: np.ndarray) -> _Plan:
        """Greedily appends each segment, longest first, to the shortest chain. The number of chains makes them about as
        long as the longest segment.
        """
        lengths_N = packing.lengths_N
        count = -(-int(lengths_N.sum() + GAP * len(lengths_N)) // int(lengths_N[0] + GAP))
        count = min(max(count, int(must_be_first_N.sum())), len(lengths_N))
        turns = np.argsort(~must_be_first_N, kind="stable")
        lengths = lengths_N[turns].tolist()
        chains, begins = list(range(count)), [0] * count
        shortest = [(length, chain) for chain, length in enumerate(lengths[:count])]
        heapq.heapify(shortest)
        for length in lengths[count:]:
            end, chain = shortest[0]
            chains.append(chain)
            begins.append(end + GAP)
            heapq.heapreplace(shortest, (end + GAP + length, chain))
        chain_N, begin_N, ends_C = np.empty_like(lengths_N), np.empty_like(lengths_N), np.empty(count, dtype=np.int64)
        chain_N[turns], begin_N[turns] = chains, begins
        ends, of_chains = zip(*shortest, strict=True)
        ends_C[list(of_chains)] = ends
        return cls(lengths_N, chain_N, begin_N, ends_C)

    def layout(self, packing: Packing, steps_at_once: int | None) -> Layout:
        place = _Places(self.blocks, [_width(steps, size, steps_at_once) for _, steps, size in self.blocks])
        steps_P = packing.rows_and_steps.numel()
        # The steps of all segments, one segment after another.
        nth_P = np.arange(steps_P)
        before_N = np.cumsum(self.lengths_N) - self.lengths_N
        starts_N = packing.starts_N.cpu().numpy()
        at_P = place(
            nth_P + np.repeat(self.begin_N - before_N, self.lengths_N), np.repeat(self.chain_N, self.lengths_N)
        )
        place_P = np.empty_like(at_P)
        place_P[nth_P + np.repeat(starts_N - before_N, self.lengths_N)] = at_P
        end_N = self.begin_N + self.lengths_N
        followed_N = end_N < self.lengths_C[self.chain_N]
        followed, last = np.flatnonzero(followed_N), np.flatnonzero(~followed_N)
        readout_K = place(end_N[followed] + 1, self.chain_N[followed])
        source_Q = np.full(place.count, steps_P)
        source_Q[place_P] = nth_P
        source_Q[readout_K] = steps_P + 1
        source_Q[place(end_N[followed] + 2, self.chain_N[followed])] = steps_P + 2
        # Each chain has a first segment, and a last one.
        heads_C, lasts_C = np.empty(len(last), dtype=np.int64), np.empty(len(last), dtype=np.int64)
        first = np.flatnonzero(self.begin_N == 0)
        heads_C[self.chain_N[first]] = first
        lasts_C[self.chain_N[last]] = last
        order_N = np.empty_like(self.chain_N)
        order_N[np.concatenate((followed, lasts_C))] = np.arange(len(order_N))
        on_device = (
            torch.from_numpy(values).to(packing.starts_N.device)
            for values in (source_Q, place_P, readout_K, heads_C, order_N)
        )
        return Layout(place.pieces, *on_device)


def _width(steps: int, size: int, steps_at_once: int | None) -> int:
    """Chains per piece of a block, for pieces of about the same size."""
    pieces = 1 if steps_at_once is None else min(-(-steps * size // steps_at_once), size)
    return -(-size // pieces)


class _Places:
    """Maps a step of a chain to its index among the block steps, ordered by block, piece, then step."""

    def __init__(self, blocks: list[tuple[int, int, int]], widths: list[int]) -> None:
        self.pieces = [
            (steps, [min(width, size - begin) for begin in range(0, size, width)])
            for (_, steps, size), width in zip(blocks, widths, strict=True)
        ]
        self.first, self.steps, self.size = np.asarray(blocks).T
        self.width = np.asarray(widths)
        area = self.steps * self.size
        self.base = np.cumsum(area) - area
        self.count = int(area.sum())
        """Total number of block steps."""

    def __call__(self, step: np.ndarray, chain: np.ndarray) -> Any:
        if len(self.pieces) == 1 and len(self.pieces[0][1]) == 1:
            return step * self.size[0] + chain
        block = np.searchsorted(self.first, step, side="right") - 1
        width = self.width[block]
        before = chain // width * width
        own_width = np.minimum(width, self.size[block] - before)
        within = (step - self.first[block]) * own_width + chain - before
        return self.base[block] + self.steps[block] * before + within


def blocks_of(lengths_C: np.ndarray, cost_of_one: int) -> list[tuple[int, int, int]]:
    """``(first step, steps, chains)`` of each block, minimising the total cost of padding and blocks.

    Dynamic programming over the steps at which chains end: the best blocks up to one of them are the best blocks up
    to an earlier one, plus one.

    Args:
        lengths_C: chain lengths, longest first.
        cost_of_one: cost of one more block, in steps of one chain.
    """
    longest, count = int(lengths_C[0]), len(lengths_C)
    if longest * count - int(lengths_C.sum()) <= cost_of_one:  # padding costs less than another block
        return [(0, longest, count)]
    edges = np.concatenate(([0], np.unique(lengths_C)))
    sizes = np.searchsorted(-lengths_C, -edges[:-1], side="left")
    cost = sizes[:, None] * (edges[None, :] - edges[:-1, None]) + cost_of_one
    best = np.zeros(len(edges), dtype=np.int64)
    begin = np.zeros(len(edges), dtype=np.int64)
    for end in range(1, len(edges)):
        totals = best[:end] + cost[:end, end]
        begin[end] = totals.argmin()
        best[end] = totals[begin[end]]
    blocks = []
    end = len(edges) - 1
    while end > 0:
        first = begin[end]
        blocks.append((int(edges[first]), int(edges[end] - edges[first]), int(sizes[first])))
        end = first
    return blocks[::-1]
