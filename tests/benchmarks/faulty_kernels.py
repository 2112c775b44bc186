"""Kernels that pass values between threads through global memory, with or without a barrier.

Run as a program, it compiles them for a compute capability and writes their PTX as JSON.
"""

from __future__ import annotations

import json
import sys

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def transposes(x, scratch, out, steps, N: tl.constexpr, BARRIERS: tl.constexpr):
    """Stores a tile and loads it back transposed, in other threads."""
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    tl.store(scratch + i * N + j, tl.load(x + i * N + j))
    if BARRIERS:
        tl.debug_barrier()
    tl.store(out + i * N + j, tl.load(scratch + j * N + i))


@triton.jit
def accumulates(x, scratch, out, steps, N: tl.constexpr, BARRIERS: tl.constexpr):
    """Loads at the start of an iteration what other threads stored at the end of the previous one."""
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    for t in range(steps):
        h = tl.load(scratch + j * N + i)
        tl.debug_barrier()
        tl.store(scratch + i * N + j, h + tl.load(x + t * N * N + i * N + j))
        if BARRIERS:
            tl.debug_barrier()


@triton.jit
def branches(x, scratch, out, steps, N: tl.constexpr, BARRIERS: tl.constexpr):
    """Skips its barrier if a program has no steps."""
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    tl.store(scratch + i * N + j, tl.load(x + i * N + j))
    if steps > 0:
        tl.debug_barrier()
    if BARRIERS:
        tl.debug_barrier()
    tl.store(out + i * N + j, tl.load(scratch + j * N + i))


def compiled(kernel: triton.JITFunction, barriers: bool, capability: int) -> str:
    """The PTX of a kernel."""
    constants = {"N": 32, "BARRIERS": barriers}
    kinds = {"steps": "i32"} | dict.fromkeys(constants, "constexpr")
    signature = {name: kinds.get(name, "*fp32") for name in kernel.arg_names}
    given = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    target = GPUTarget("cuda", capability, 32)
    return triton.compile(ASTSource(kernel, signature, given), target=target, options={"num_warps": 4}).asm["ptx"]


if __name__ == "__main__":
    kernels = (transposes, accumulates, branches)
    made = {f"{k.__name__} {barriers}": compiled(k, barriers, int(sys.argv[1])) for k in kernels for barriers in (0, 1)}
    json.dump(made, sys.stdout)
