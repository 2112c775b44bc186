"""Does a kernel read from global memory what another thread of the same program wrote, with no barrier in between?

Of two threads of a program each runs at its own pace. A load that is to find what another thread stored needs a barrier
on **every** way from the store to the load, through branches and from one iteration of a loop to the next. The check
follows the control flow of the generated PTX from every store to global memory up to the next barrier; a load on the
way that may be of the same memory is a fault.

What orders is a barrier that all threads of the program reach: ``bar.sync``, ``barrier.sync`` and their ``red`` forms,
not guarded by a predicate and not of a part of the threads. It makes all that the threads stored before visible to all
of them (PTX ISA, ``bar``). A fence alone orders nothing, because no thread waits. Barriers of other kinds (mbarrier,
cluster) are not counted. A load of the read-only cache (``ld.global.nc``) need not see what the kernel stores, with a
barrier or without.

What may be the same memory: the pointer parameters are followed through all arithmetic, through selections and through
shared memory to the addresses. Addresses that come from different parameters are of different memory, unless the launch
passes one tensor for both; an address of unknown origin may be any. Within one tensor the offsets are **not** compared:
a thread that reads back its own element is reported too. The other order, a store that overtakes a load, is not looked
for, nor is what other programs do.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks import ptx
from benchmarks.ptx import Instruction, Kernel, NotUnderstoodError

Origins = frozenset[str]
"""The parameters and variables that an address may point into; empty if it is not known."""

_NAME = re.compile(r"(?<![\w$%.])%?[A-Za-z_$][\w$]*")
_SPACES = ("shared", "local", "param", "const", "global")
# These name global memory, and read or write none of it.
_HARMLESS = {"cvta", "isspacep", "prefetch", "prefetchu", "fence", "createpolicy"}
# What these write is no pointer, whatever they read: truth values, and products of matrices.
_NUMBERS = {"setp", "mma", "wgmma", "tcgen05"}


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
    """A store that reaches a load of perhaps the same memory with no barrier on the way."""

    kernel: str
    store: Access
    load: Access

    def __str__(self) -> str:
        return f"{self.kernel}: {self.store} reaches {self.load} without a barrier"


def faults(text: str, arguments: Sequence[str] = (), same: Collection[Collection[str]] = ()) -> list[Fault]:
    """The faults of the one kernel of a PTX module.

    Args:
        text: the PTX.
        arguments: names of the parameters, in order; those beyond keep their names in the PTX.
        same: groups of arguments for which a launch may pass the same tensor.

    Raises:
        NotUnderstoodError: the code holds an access to memory, or a way through it, that is not understood.
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
    """The instructions on the ways from ``begin``, which itself is among them only if a way comes back to it.

    A way ends at the first of the barriers.
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
    """Whether all threads of the program wait here for each other."""
    if instruction.name not in ("bar", "barrier") or instruction.guard:
        return False
    if not instruction.modifiers & {"sync", "red"} or instruction.modifiers & {"warp", "cluster"}:
        return False
    # barrier.red has a result before the barrier's number and a predicate after the count.
    count = instruction.operands[2:-1] if "red" in instruction.modifiers else instruction.operands[1:]
    return not count or count[0] == str(threads)


def _stale(accesses: Mapping[int, Access], loads: set[int]) -> set[int]:
    """Those that take for granted that nobody writes, and so may find what was there before a barrier."""
    instructions = {load: accesses[load].instruction for load in loads}
    return {k for k, load in instructions.items() if load.name == "ldu" or "nc" in load.modifiers}


def _may_be_the_same(store: Access, load: Access, same: Collection[Collection[str]]) -> bool:
    if store.loads and load.stores:
        return False  # two atomic operations order themselves
    if not store.origins or not load.origins:
        return True
    others = (set(group) for group in same if store.origins & set(group))
    return bool(store.origins.union(*others) & load.origins)


def _accesses(kernel: Kernel, names: Mapping[str, str]) -> dict[int, Access]:
    """Every access to global memory, by the index of its instruction."""
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
    """Of an access to global memory: its address, whether it stores, and whether it loads."""
    name, modifiers, operands = instruction.name, instruction.modifiers, instruction.operands
    if name in ("ld", "ldu", "st", "atom", "red"):
        if _space(instruction) != "global":
            return None
        return operands[name in ("ld", "ldu", "atom")], name in ("st", "atom", "red"), name in ("ld", "ldu", "atom")
    if name == "cp" and modifiers >= {"async", "global"} and "bulk" not in modifiers:
        return operands[1], False, True
    if "global" in modifiers and name not in _HARMLESS:
        raise NotUnderstoodError(
            f"Line {instruction.line}: what {instruction.opcode} does to global memory is not understood."
        )
    return None


def _space(instruction: Instruction) -> str:
    """The kind of memory of an access. A generic address, which may be of any, counts as global."""
    spaces = (modifier.partition("::")[0] for modifier in instruction.modifiers)
    return next((space for space in spaces if space in _SPACES), "global")


def _origins(kernel: Kernel, names: Mapping[str, str]) -> dict[str, Origins]:
    """What every register, wherever it is written, and every kind of memory may hold pointers into."""
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
    """What an instruction writes, and what of. A kind of memory is one cell, named in brackets."""
    operands = instruction.operands
    if not operands or instruction.name in _NUMBERS:
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
