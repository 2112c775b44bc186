"""Compiles functions of tensors with ``torch.compile``, and captures them as CUDA graphs."""

import logging
from collections.abc import Callable
from typing import Any

import torch
from hoptorch.scan import ensure_scan_backward
from torch import Tensor
from torch.utils._pytree import tree_map_only  # torch has no public function for this

logger = logging.getLogger(__name__)
Function = Callable[..., Any]


def compiled(function: Function, device: torch.device, cuda_graph: bool = False) -> Function:
    """A function that is compiled as one graph at its first call, and its gradient at the first backward pass.

    Each shape of the arguments is compiled separately.

    Args:
        function: takes and returns tensors, or mappings and tuples of tensors.
        device: the device of the tensors.
        cuda_graph: replay the kernels as CUDA graphs, by torch's mode "reduce-overhead".
    """
    # Step-only cells run through hoptorch's scan, whose availability cannot be checked while tracing.
    ensure_scan_backward(device)
    mode = "reduce-overhead" if cuda_graph else None
    graph: Function = torch.compile(function, fullgraph=True, dynamic=False, mode=mode)

    def replayed(*args: Any) -> Any:
        # The next replay overwrites the graph's outputs, so the caller gets copies.
        torch.compiler.cudagraph_mark_step_begin()
        return tree_map_only(Tensor, Tensor.clone, graph(*args))

    return replayed if cuda_graph else graph
