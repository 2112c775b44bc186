"""Where the steps of the segments lie in the memory that a fused kernel reads.

Segments may be joined into *chains*, one after another with a gap in between, so that few chains of about the same
length take the place of many segments of different ones. The chains, longest first, are cut into *blocks* of steps, so
that within a block about as many run from its first step to its last; those that end earlier are padded. A block that
takes too much memory is cut into *pieces* of chains.

Shape legend: B rows, T steps, N segments, C chains, S steps of the longest chain, P steps of all rows, Q steps of all
blocks, K segments that another one follows in its chain.
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
"""Steps between two segments of a chain: the first holds the state, the second shows it, the third clears it."""

# What one more block costs, a call of the kernel, in steps of one chain, and one more step of all chains likewise.
# Measured with oneDNN: blocks of 50 to 200 are about as fast, and the less, the less padding takes memory.
_BLOCK = 50
_STEP = 8


@dataclass(frozen=True, eq=False)
class Layout:
    """What lies where. The packed order of segments is that of :class:`~recurrl.recurrent.segments.Packing`."""

    blocks: list[tuple[int, list[int]]]
    """The steps of each block, and how many chains each of its pieces holds."""

    source_Q: Tensor
    """Where each step of the blocks comes from: a flat index within the rows, or P where the state is held (padding
    and the first step of a gap), P + 1 where it is shown, P + 2 where it is cleared.
    """

    place_P: Tensor
    """Where each step of the rows is among those of the blocks."""

    shown_K: Tensor
    """The steps of the blocks where that of a segment is shown which another one follows."""

    heads_C: Tensor
    """The packed index of each chain's first segment."""

    order_N: Tensor
    """Brings the segments that another one follows, and then the chains' last ones, in packed order."""


# As many as the packings that are kept, and like these no tensors of inference mode.
@lru_cache(maxsize=64)
@torch.inference_mode(False)
def separate(packing: Packing, steps_at_once: int | None) -> Layout:
    """Each segment a chain of its own.

    Args:
        packing: the segments.
        steps_at_once: the most steps a piece may hold, unless it is one chain of more; None does not cut blocks.
    """
    return _Plan.separate(packing).layout(packing, steps_at_once)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def joined(packing: Packing, first_N: bytes, steps_at_once: int | None) -> Layout:
    """Segments joined into chains if that costs less.

    Args:
        packing: the segments.
        first_N: for each segment a byte that is not zero where it must be the first of its chain.
        steps_at_once: as in :func:`separate`.
    """
    must_be_first_N = np.frombuffer(first_N, dtype=bool)
    plan = None if must_be_first_N.all() else _Plan.joined(packing, must_be_first_N)
    if plan is None or plan.cost > _least_cost(packing.lengths_N):
        plans = [_Plan.separate(packing), *([] if plan is None else [plan])]
        plan = min(plans, key=lambda each: each.cost)
    return plan.layout(packing, steps_at_once)


def _least_cost(lengths_N: np.ndarray) -> int:
    """What chains of one segment each cost at least: that of one block, or that of two without any padding."""
    longest = int(lengths_N[0])
    return min(len(lengths_N) * longest + _BLOCK, int(lengths_N.sum()) + 2 * _BLOCK) + _STEP * longest


class _Plan:
    """Which chain each segment is in, at which of its steps it begins, and the blocks that the chains are cut into."""

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
        """As many chains as make them about as long as the longest segment: each segment, the longest first, goes to
        the chain that is the shortest by then.
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
        shown_K = place(end_N[followed] + 1, self.chain_N[followed])
        source_Q = np.full(place.count, steps_P)
        source_Q[place_P] = nth_P
        source_Q[shown_K] = steps_P + 1
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
            for values in (source_Q, place_P, shown_K, heads_C, order_N)
        )
        return Layout(place.pieces, *on_device)


def _width(steps: int, size: int, steps_at_once: int | None) -> int:
    """How many of a block's chains a piece holds: pieces of about the same size."""
    pieces = 1 if steps_at_once is None else min(-(-steps * size // steps_at_once), size)
    return -(-size // pieces)


class _Places:
    """Finds a step of a chain among those of the blocks: block by block, piece by piece, step by step."""

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
        """How many steps the blocks have."""

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
    """``(first step, steps, chains)`` of each block, so that padding and number of blocks cost least together.

    By dynamic programming over the steps at which chains end: the best blocks up to one of them are the best up to an
    earlier one, and one more.

    Args:
        lengths_C: of the chains, longest first.
        cost_of_one: what one more block costs, in steps of one chain.
    """
    longest, count = int(lengths_C[0]), len(lengths_C)
    if longest * count - int(lengths_C.sum()) <= cost_of_one:  # less than any further block
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
