"""Parses PTX, NVIDIA's virtual assembly, into instructions and a control-flow graph.

Supports only what generated kernels use and raises on anything else. Source: NVIDIA, PTX ISA 9.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

# Inside inline assembly the compiler's .loc lines do not refer to the source.
_INLINE_ASSEMBLY = re.compile(r"(?<=// begin inline asm\n)(.*?)(?=// end inline asm)", re.DOTALL)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\((.*?)\)([^{]*)\{", re.DOTALL)
_PARAMETER = re.compile(r"\.param\s+([^,]*?)([\w$]+)(?:\[\d*\])?\s*(?:,|$)", re.DOTALL)
_VARIABLE = re.compile(r"\.(?:global|shared|const|local)\b[^;=\[]*?([\w$]+)\s*(?=[;=\[])")
_THREADS = re.compile(r"\.reqntid\s+([\d,\s]+)")
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"(?:[^"]*/)?([^"]+)"', re.MULTILINE)
# Start of a statement: a source location, a scope, a label, or a statement up to its semicolon.
_STATEMENT = re.compile(
    r"\s*(?:\.loc\s+(?P<file>\d+)\s+(?P<line>\d+)[^\n]*|(?P<scope>[{}])|(?P<label>[\w$]+)\s*:(?!:)|(?P<text>[^;{}][^;]*);)"
)
_INSTRUCTION = re.compile(r"(?:@(?P<guard>!?[\w$%]+)\s+)?(?P<opcode>[a-z][\w.:]*)\s*(?P<operands>.*)", re.DOTALL)
_ENDS = {"ret", "exit", "trap"}
_UNSUPPORTED = {"brx", "call"}


class UnsupportedPTXError(ValueError):
    """The PTX uses a construct that this parser does not support."""


@dataclass(frozen=True)
class Instruction:
    """One instruction."""

    line: int
    """Line in the PTX, from 1."""
    source: str
    """Source file and line; empty if unknown."""
    guard: str
    """Predicate; empty if unconditional."""
    opcode: str
    operands: tuple[str, ...]

    @property
    def name(self) -> str:
        """Base opcode: ``ld`` of ``ld.global.v4.b32``."""
        return self.opcode.partition(".")[0]

    @property
    def modifiers(self) -> frozenset[str]:
        """Opcode modifiers: ``global``, ``v4``, ``b32``."""
        return frozenset(self.opcode.split(".")[1:])


@dataclass(frozen=True)
class Kernel:
    """A module's only entry."""

    name: str
    parameters: dict[str, bool]
    """Parameter names in order; True for pointers."""
    variables: frozenset[str]
    """Names of memory that the module declares."""
    threads: int | None
    """Threads per program, if declared."""
    instructions: tuple[Instruction, ...]
    successors: tuple[tuple[int, ...], ...]
    """For each instruction, the indices of its successors."""


@dataclass(frozen=True)
class _Body:
    instructions: list[Instruction]
    scopes: list[tuple[int, ...]]
    """Enclosing scopes of each instruction, outermost first."""
    labels: dict[tuple[tuple[int, ...], str], int]


def parse(text: str) -> Kernel:
    """Parses the entry of a module.

    Raises:
        UnsupportedPTXError: there is not exactly one entry, or the code holds a call, an indirect branch or an unknown
            label.
    """
    placed = _INLINE_ASSEMBLY.sub(lambda found: re.sub(r"^\s*\.loc[^\n]*", "", found[0], flags=re.MULTILINE), text)
    code = _COMMENT.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), placed)
    entries = list(_ENTRY.finditer(code))
    if len(entries) != 1:
        raise UnsupportedPTXError(f"The module has {len(entries)} entries; exactly one is supported.")
    name, parameters, directives = entries[0].groups()
    threads = _THREADS.search(directives)
    body = _body(code, entries[0].end(), dict(_FILE.findall(code)))
    return Kernel(
        name,
        {parameter: ".ptr" in kind for kind, parameter in _PARAMETER.findall(parameters)},
        frozenset(_VARIABLE.findall(code)),
        prod(int(size) for size in threads[1].split(",")) if threads else None,
        tuple(body.instructions),
        tuple(_successors(body, index) for index in range(len(body.instructions))),
    )


def operands_of(text: str) -> tuple[str, ...]:
    """Splits at commas outside brackets."""
    parts, depth, begin = [], 0, 0
    for index, letter in enumerate(text):
        depth += (letter in "{[(") - (letter in "}])")
        if letter == "," and depth == 0:
            parts.append(text[begin:index].strip())
            begin = index + 1
    return tuple(part for part in (*parts, text[begin:].strip()) if part)


def _body(code: str, begin: int, files: dict[str, str]) -> _Body:
    newlines = [found.start() for found in re.finditer(r"\n", code)]
    body = _Body([], [], {})
    scope: tuple[int, ...] = (0,)
    opened, source = 0, ""
    for found in _statements(code, begin):
        if found["line"]:
            source = f"{files.get(found['file'], 'file ' + found['file'])}:{found['line']}"
        elif found["scope"] == "{":
            opened += 1
            scope = (*scope, opened)
        elif found["scope"] == "}":
            scope = scope[:-1]
        elif found["label"]:
            body.labels[scope, found["label"]] = len(body.instructions)
        elif not found["text"].startswith("."):
            line = bisect_right(newlines, found.start("text")) + 1
            body.instructions.append(_instruction(found["text"], line, source))
            body.scopes.append(scope)
        if not scope:
            return body
    raise UnsupportedPTXError("The entry is not terminated.")


def _statements(code: str, begin: int) -> Iterator[re.Match[str]]:
    while found := _STATEMENT.match(code, begin):
        yield found
        begin = found.end()


def _instruction(text: str, line: int, source: str) -> Instruction:
    found = _INSTRUCTION.fullmatch(text.strip())
    if found is None:
        raise UnsupportedPTXError(f"Line {line} is not an instruction: {text.strip()}")
    return Instruction(line, source, found["guard"] or "", found["opcode"], operands_of(found["operands"]))


def _successors(body: _Body, index: int) -> tuple[int, ...]:
    instruction = body.instructions[index]
    if instruction.name in _UNSUPPORTED:
        raise UnsupportedPTXError(f"Line {instruction.line}: {instruction.opcode} is not supported.")
    following = (index + 1,) if index + 1 < len(body.instructions) else ()
    if instruction.name in _ENDS:
        return following if instruction.guard else ()
    if instruction.name != "bra":
        return following
    target = _target(body, index)
    return (target, *following) if instruction.guard else (target,)


def _target(body: _Body, index: int) -> int:
    """Target of a branch: its label in the nearest scope, because inline assembly repeats labels."""
    label, scope = body.instructions[index].operands[0], body.scopes[index]
    for depth in range(len(scope), 0, -1):
        if (scope[:depth], label) in body.labels:
            return body.labels[scope[:depth], label]
    raise UnsupportedPTXError(f"Line {body.instructions[index].line}: unknown label {label}.")
