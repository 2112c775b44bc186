"""Products of matrices, on a CPU by oneDNN where that is faster than the BLAS library that torch is built with.

MKL runs on processors of other makers than its own with half of their vector units, oneDNN with all of them: products
of a few hundred rows take half the time. But it compiles a kernel for sizes that it has not met, which takes a
millisecond, and each call costs ten microseconds more. So what it gets are blocks of few different sizes.

Shape legend: M rows of the result, K the size that is summed over, N columns of the result.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator

import torch
from torch import Tensor

_LEAST_WORK = 3 << 21  # M·K·N from which oneDNN was measured to be faster than MKL, copies in and out included
_ROWS_TOGETHER = 16
_BLOCKS = (1024, 256)


def least_rows(like: Tensor, k: int, n: int) -> int:
    """How many rows a product by a ``[K, N]`` matrix must have at least to be oneDNN's.

    Args:
        like: a tensor of the factors' device and dtype.
        k: columns of the first factor.
        n: columns of the result.
    """
    has_onednn = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled
    if like.device.type != "cpu" or like.dtype != torch.float32 or not has_onednn:
        return sys.maxsize
    return math.ceil(_LEAST_WORK / (k * n))


def by_onednn(a_MK: Tensor, b_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """``a @ bᵀ + bias``."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(a_MK, b_NK, bias_N, "none", [], "")
    return product


def rounded_up(rows: int) -> int:
    """The next of the numbers of rows that oneDNN is to meet, where rows that nobody needs can be computed too."""
    return -(-rows // _ROWS_TOGETHER) * _ROWS_TOGETHER


def blocks(rows: int, least: int) -> Iterator[tuple[int, int, bool]]:
    """Begin and end of blocks of rows, and whether oneDNN is to have them."""
    begin = 0
    for size in _BLOCKS:
        while rows - begin >= size >= least:
            yield begin, begin + size, True
            begin += size
    if begin < rows:
        yield begin, rows, False
