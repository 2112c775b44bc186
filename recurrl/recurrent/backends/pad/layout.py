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

    near_Q: Tensor
    """The same, but for the last step of the rows where there is no such index."""

    place_P: Tensor
    """Where each step of the rows is among those of the blocks."""

    silent: Tensor
    """The steps of the blocks where the state is held or cleared, whose output is nobody's."""

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
    plans = [_Plan.separate(packing)]
    if not must_be_first_N.all():
        plans.append(_Plan.joined(packing, must_be_first_N))
    return min(plans, key=lambda plan: plan.cost).layout(packing, steps_at_once)


class _Plan:
    """Which chain each segment is in, at which of its steps it begins, and the blocks that the chains are cut into."""

    def __init__(self, lengths_N: np.ndarray, chain_N: np.ndarray, begin_N: np.ndarray) -> None:
        ends_C = np.zeros(chain_N.max() + 1, dtype=np.int64)
        np.maximum.at(ends_C, chain_N, begin_N + lengths_N)
        by_length = np.argsort(-ends_C, kind="stable")
        rank_C = np.empty_like(by_length)
        rank_C[by_length] = np.arange(len(by_length))
        self.lengths_N, self.chain_N, self.begin_N = lengths_N, rank_C[chain_N], begin_N
        self.lengths_C = ends_C[by_length]
        self.blocks = blocks_of(self.lengths_C, _BLOCK)
        area = sum(steps * size for _, steps, size in self.blocks)
        self.cost = int(area + _BLOCK * len(self.blocks) + _STEP * self.lengths_C[0])

    @classmethod
    def separate(cls, packing: Packing) -> _Plan:
        lengths_N = _lengths(packing)
        return cls(lengths_N, np.arange(len(lengths_N)), np.zeros_like(lengths_N))

    @classmethod
    def joined(cls, packing: Packing, must_be_first_N: np.ndarray) -> _Plan:
        """As many chains as make them about as long as the longest segment: each segment, the longest first, goes to
        the chain that is the shortest by then.
        """
        lengths_N = _lengths(packing)
        count = -(-int(lengths_N.sum() + GAP * len(lengths_N)) // int(lengths_N[0] + GAP))
        count = min(max(count, int(must_be_first_N.sum())), len(lengths_N))
        turns = np.argsort(~must_be_first_N, kind="stable")
        chain_N, begin_N = np.empty_like(lengths_N), np.zeros_like(lengths_N)
        chain_N[turns[:count]] = np.arange(count)
        shortest = [(int(lengths_N[segment]), chain) for chain, segment in enumerate(turns[:count])]
        heapq.heapify(shortest)
        for segment in turns[count:].tolist():
            end, chain = shortest[0]
            chain_N[segment], begin_N[segment] = chain, end + GAP
            heapq.heapreplace(shortest, (end + GAP + int(lengths_N[segment]), chain))
        return cls(lengths_N, chain_N, begin_N)

    def layout(self, packing: Packing, steps_at_once: int | None) -> Layout:
        widths = [_width(steps, size, steps_at_once) for _, steps, size in self.blocks]
        size_Q = sum(steps * size for _, steps, size in self.blocks)
        steps_P = packing.rows_and_steps.numel()
        place = _Places(self.blocks, widths)
        # The steps of all segments, one segment after another.
        segment_P = np.repeat(np.arange(len(self.lengths_N)), self.lengths_N)
        within_P = np.arange(steps_P) - np.repeat(np.cumsum(self.lengths_N) - self.lengths_N, self.lengths_N)
        at_P = place(self.begin_N[segment_P] + within_P, self.chain_N[segment_P])
        flat_P = packing.starts_N.cpu().numpy()[segment_P] + within_P
        end_N = self.begin_N + self.lengths_N
        followed_N = end_N < self.lengths_C[self.chain_N]
        shown_K = place(end_N[followed_N] + 1, self.chain_N[followed_N])
        cleared_K = place(end_N[followed_N] + 2, self.chain_N[followed_N])
        source_Q = np.full(size_Q, steps_P)
        source_Q[at_P] = flat_P
        source_Q[shown_K] = steps_P + 1
        source_Q[cleared_K] = steps_P + 2
        place_P = np.empty_like(at_P)
        place_P[flat_P] = at_P
        first = np.flatnonzero(self.begin_N == 0)
        last = np.flatnonzero(~followed_N)
        found_N = np.concatenate((np.flatnonzero(followed_N), last[np.argsort(self.chain_N[last])]))
        on_device = (
            torch.from_numpy(values).to(packing.starts_N.device)
            for values in (
                source_Q,
                np.minimum(source_Q, steps_P - 1),
                place_P,
                np.flatnonzero((source_Q == steps_P) | (source_Q == steps_P + 2)),
                shown_K,
                first[np.argsort(self.chain_N[first])],
                np.argsort(found_N),
            )
        )
        pieces = [
            (steps, [min(width, size - begin) for begin in range(0, size, width)])
            for (_, steps, size), width in zip(self.blocks, widths, strict=True)
        ]
        return Layout(pieces, *on_device)


def _lengths(packing: Packing) -> np.ndarray:
    lengths_N: np.ndarray = (packing.ends_N - packing.starts_N + 1).cpu().numpy()
    return lengths_N


def _width(steps: int, size: int, steps_at_once: int | None) -> int:
    """How many of a block's chains a piece holds: pieces of about the same size."""
    pieces = 1 if steps_at_once is None else min(-(-steps * size // steps_at_once), size)
    return -(-size // pieces)


class _Places:
    """Finds a step of a chain among those of the blocks: block by block, piece by piece, step by step."""

    def __init__(self, blocks: list[tuple[int, int, int]], widths: list[int]) -> None:
        self.first, self.steps, self.size = np.asarray(blocks).T
        self.width = np.asarray(widths)
        area = self.steps * self.size
        self.base = np.cumsum(area) - area

    def __call__(self, step: np.ndarray, chain: np.ndarray) -> np.ndarray:
        block = np.searchsorted(self.first, step, side="right") - 1
        width = self.width[block]
        before = chain // width * width
        own_width = np.minimum(width, self.size[block] - before)
        within = (step - self.first[block]) * own_width + chain - before
        places: np.ndarray = self.base[block] + self.steps[block] * before + within
        return places


def blocks_of(lengths_C: np.ndarray, cost_of_one: int) -> list[tuple[int, int, int]]:
    """``(first step, steps, chains)`` of each block, so that padding and number of blocks cost least together.

    By dynamic programming over the steps at which chains end: the best blocks up to one of them are the best up to an
    earlier one, and one more.

    Args:
        lengths_C: of the chains, longest first.
        cost_of_one: what one more block costs, in steps of one chain.
    """
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
