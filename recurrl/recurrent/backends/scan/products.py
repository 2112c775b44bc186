"""Matrix products, by oneDNN on a CPU where it is faster than the BLAS library torch is built with.

MKL uses only half of the vector units of other vendors' processors, oneDNN all of them: products of a few hundred rows
take half the time. But oneDNN compiles a kernel for each new size, which takes a millisecond, and each call costs ten
microseconds more. So it gets blocks of few distinct sizes.

Shape legend: M rows of the result, K the size that is summed over, N columns of the result.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator

import torch
from torch import Tensor

_MIN_WORK = 3 << 21  # M·K·N above which oneDNN measured faster than MKL, copies included
_ROW_MULTIPLE = 16
_BLOCKS = (1024, 256)


def min_rows(like: Tensor, k: int, n: int) -> int:
    """Minimum number of rows for which oneDNN computes a product with a ``[K, N]`` matrix.

    Args:
        like: a tensor with the operands' device and dtype.
        k: columns of the left operand.
        n: columns of the result.
    """
    has_onednn = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled
    if like.device.type != "cpu" or like.dtype != torch.float32 or not has_onednn:
        return sys.maxsize
    return math.ceil(_MIN_WORK / (k * n))


def onednn_linear(a_MK: Tensor, b_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """``a @ bᵀ + bias``."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(a_MK, b_NK, bias_N, "none", [], "")
    return product


def rounded_up(rows: int) -> int:
    """Rounds up to a multiple, so that oneDNN sees few distinct sizes; the extra rows are discarded."""
    return -(-rows // _ROW_MULTIPLE) * _ROW_MULTIPLE


def blocks(rows: int, least: int) -> Iterator[tuple[int, int, bool]]:
    """Yields ``(begin, end, use_onednn)`` for blocks of rows."""
    begin = 0
    for size in _BLOCKS:
        while rows - begin >= size >= least:
            yield begin, begin + size, True
            begin += size
    if begin < rows:
        yield begin, rows, False
