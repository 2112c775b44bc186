"""Detects races: loads of global memory that another thread of the program stored, with no barrier in between.

Threads of a program run independently. A load that reads another thread's store needs a barrier on **every** path from
the store to the load, through branches and across loop iterations. The check follows the control flow of the generated
PTX from every store to global memory up to the next barrier; a load on the way that may alias the store is a fault.

Only a barrier that all threads of the program reach orders accesses: ``bar.sync``, ``barrier.sync`` and their ``red``
forms, without a predicate and not for a subset of the threads. It makes everything the threads stored before visible to
all of them (PTX ISA, ``bar``). A fence alone orders nothing, because no thread waits. Other kinds of barrier (mbarrier,
cluster) do not count. A load through the read-only cache (``ld.global.nc``) need not see the kernel's stores even with
a barrier.

Aliasing: pointer parameters are followed through arithmetic, selections and shared memory to the addresses. Addresses
from different parameters do not alias unless the launch passes one tensor for both; an address of unknown origin may
alias anything. Offsets within one tensor are **not** compared, so a thread that reads back its own element is also
reported. Not checked: a store that overtakes a load, and other programs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks import ptx
from benchmarks.ptx import Instruction, Kernel, UnsupportedPTXError

Origins = frozenset[str]
"""The parameters and variables an address may point into; empty if unknown."""

_NAME = re.compile(r"(?<![\w$%.])%?[A-Za-z_$][\w$]*")
_SPACES = ("shared", "local", "param", "const", "global")
# These name global memory without accessing it.
_HARMLESS = {"cvta", "isspacep", "prefetch", "prefetchu", "fence", "createpolicy"}
# Their results are never pointers: predicates and matrix products.
_NON_POINTERS = {"setp", "mma", "wgmma", "tcgen05"}


@dataclass(frozen=True)
class Access:
    """One instruction's access to global memory."""

    instruction: Instruction
    origins: Origins
    stores: bool
    loads: bool

    def __str__(self) -> str:
        at = f" ({self.instruction.source})" if self.instruction.source else ""
        into = " or ".join(sorted(self.origins)) or "an unknown address"
        return f"{self.instruction.opcode} of {into} in line {self.instruction.line}{at}"


@dataclass(frozen=True)
class Fault:
    """A store that reaches a possibly aliasing load without a barrier."""

    kernel: str
    store: Access
    load: Access

    def __str__(self) -> str:
        return f"{self.kernel}: {self.store} reaches {self.load} without a barrier"


def faults(text: str, arguments: Sequence[str] = (), same: Collection[Collection[str]] = ()) -> list[Fault]:
    """The faults of a PTX module's only kernel.

    Args:
        text: the PTX.
        arguments: names of the parameters, in order; any further ones keep their PTX names.
        same: groups of arguments for which a launch may pass the same tensor.

    Raises:
        UnsupportedPTXError: the code holds an unsupported memory access or branch.
    """
    kernel = ptx.parse(text)
    names = dict(zip(kernel.parameters, arguments, strict=False))
    accesses = _accesses(kernel, {parameter: names.get(parameter, parameter) for parameter in kernel.parameters})
    barriers = {k for k, instruction in enumerate(kernel.instructions) if _orders(instruction, kernel.threads)}
    found = []
    for store in (index for index, access in accesses.items() if access.stores):
        loads = {
            k for k, access in accesses.items() if access.loads and _may_be_the_same(accesses[store], access, same)
        }
        if loads:
            unordered = loads & _reached(kernel, store, barriers) | _stale(accesses, loads & _reached(kernel, store))
            found += [Fault(kernel.name, accesses[store], accesses[load]) for load in sorted(unordered)]
    return found


def _reached(kernel: Kernel, begin: int, barriers: Collection[int] = ()) -> set[int]:
    """The instructions reachable from ``begin``, itself included only if a path returns to it.

    A path ends at its first barrier.
    """
    reached: set[int] = set()
    ahead = list(kernel.successors[begin])
    while ahead:
        index = ahead.pop()
        if index not in reached:
            reached.add(index)
            if index not in barriers:
                ahead += kernel.successors[index]
    return reached


def _orders(instruction: Instruction, threads: int | None) -> bool:
    """True if all threads of the program wait for each other here."""
    if instruction.name not in ("bar", "barrier") or instruction.guard:
        return False
    if not instruction.modifiers & {"sync", "red"} or instruction.modifiers & {"warp", "cluster"}:
        return False
    # barrier.red has a result before the barrier's number and a predicate after the thread count.
    count = instruction.operands[2:-1] if "red" in instruction.modifiers else instruction.operands[1:]
    return not count or count[0] == str(threads)


def _stale(accesses: Mapping[int, Access], loads: set[int]) -> set[int]:
    """Loads that assume read-only memory and may return stale data even after a barrier."""
    instructions = {load: accesses[load].instruction for load in loads}
    return {k for k, load in instructions.items() if load.name == "ldu" or "nc" in load.modifiers}


def _may_be_the_same(store: Access, load: Access, same: Collection[Collection[str]]) -> bool:
    if store.loads and load.stores:
        return False  # atomics are ordered
    if not store.origins or not load.origins:
        return True
    others = (set(group) for group in same if store.origins & set(group))
    return bool(store.origins.union(*others) & load.origins)


def _accesses(kernel: Kernel, names: Mapping[str, str]) -> dict[int, Access]:
    """Every access to global memory, by instruction index."""
    origins = _origins(kernel, names)
    found = {}
    for index, instruction in enumerate(kernel.instructions):
        kind = _kind(instruction)
        if kind is not None:
            address, stores, loads = kind
            pointed = frozenset().union(*(origins.get(name, frozenset()) for name in _NAME.findall(address)))
            found[index] = Access(instruction, pointed, stores, loads)
    return found


def _kind(instruction: Instruction) -> tuple[str, bool, bool] | None:
    """``(address, stores, loads)`` of an access to global memory, else None."""
    name, modifiers, operands = instruction.name, instruction.modifiers, instruction.operands
    if name in ("ld", "ldu", "st", "atom", "red"):
        if _space(instruction) != "global":
            return None
        return operands[name in ("ld", "ldu", "atom")], name in ("st", "atom", "red"), name in ("ld", "ldu", "atom")
    if name == "cp" and modifiers >= {"async", "global"} and "bulk" not in modifiers:
        return operands[1], False, True
    if "global" in modifiers and name not in _HARMLESS:
        raise UnsupportedPTXError(
            f"Line {instruction.line}: {instruction.opcode} accesses global memory in an unsupported way."
        )
    return None


def _space(instruction: Instruction) -> str:
    """The state space of an access. A generic address counts as global."""
    spaces = (modifier.partition("::")[0] for modifier in instruction.modifiers)
    return next((space for space in spaces if space in _SPACES), "global")


def _origins(kernel: Kernel, names: Mapping[str, str]) -> dict[str, Origins]:
    """Maps each register and state space to what it may point into, over the whole kernel."""
    pointers = {name: frozenset({names[name]}) for name, is_pointer in kernel.parameters.items() if is_pointer}
    found: dict[str, Origins] = {name: frozenset({name}) for name in kernel.variables}
    flows = [flow for instruction in kernel.instructions for flow in _flows(instruction)]
    changed = True
    while changed:
        changed = False
        for into, of in flows:
            before = found.get(into, frozenset())
            after = before.union(*(found.get(name, pointers.get(name, frozenset())) for name in of))
            if after != before:
                found[into], changed = after, True
    return found


def _flows(instruction: Instruction) -> Iterator[tuple[str, list[str]]]:
    """``(destination, sources)`` of an instruction's data flow. A state space is one cell, named in brackets."""
    operands = instruction.operands
    if not operands or instruction.name in _NON_POINTERS:
        return
    memory = f"[{_space(instruction)}]"
    if instruction.name in ("st", "stmatrix", "red"):
        yield memory, _NAME.findall(",".join(operands[1:]))
    elif instruction.name in ("ld", "ldu", "ldmatrix", "atom"):
        of = _NAME.findall(operands[1]) if memory == "[param]" else [memory]
        yield from ((into, of) for into in _NAME.findall(operands[0]))
        if instruction.name == "atom":
            yield memory, _NAME.findall(",".join(operands[2:]))
    elif not operands[0].startswith("["):
        yield from ((into, _NAME.findall(",".join(operands[1:]))) for into in _NAME.findall(operands[0]))
