"""The tensor operations of a function, recorded once and then repeated: the same numbers without its Python."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten
# Without autograd they return what they are given.
_SAME = (aten.detach.default, aten.alias.default, aten.lift_fresh.default)
# What the source of a call may name.
_NAMES = {"torch": torch, "device": torch.device, "inf": math.inf, "nan": math.nan}


class Recording:
    """The operations of a function, forward and backward pass alike, to run again on other tensors.

    They are the same operations in the same order, so results are equal bit for bit. What else the function does is not
    repeated, and what it read from Python keeps its value.

    Args:
        run: from inputs to results.
        layouts: of the inputs, by :func:`_layout`.
    """

    def __init__(self, run: Callable[..., tuple[Tensor, ...]], layouts: list[Any]) -> None:
        self._run, self._layouts = run, layouts

    def fits(self, inputs: Iterable[Tensor]) -> bool:
        """True if inputs have the shapes, strides and types of those recorded."""
        return list(map(_layout, inputs)) == self._layouts

    def __call__(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The results for other inputs, without gradient."""
        with torch.inference_mode():
            return self._run(*inputs)


def record(
    function: Callable[[], Sequence[Tensor]], inputs: Sequence[Tensor], constants: Iterable[Tensor]
) -> tuple[Sequence[Tensor], Recording | str]:
    """Calls a function, and records its operations on a CPU.

    Args:
        function: returns tensors that it computes from the others.
        inputs: the tensors that differ from call to call.
        constants: the others that it may read or write. What it makes of Python's numbers counts as one too, but not
            indices, because those are usually of the inputs.

    Returns:
        The function's results and the recording. If an operation is random, turns a tensor into a Python value, or
        reads any other tensor, a message that says so takes the recording's place.
    """
    recorder = _Recorder(inputs, constants)
    with recorder:
        results = function()
    source = recorder.source(results)
    if recorder.refusal is not None:
        return results, recorder.refusal
    exec(source, recorder.names)
    return results, Recording(recorder.names["run"], list(map(_layout, inputs)))


class _Name(str):
    """A tensor's name, as it appears in the source of a call."""

    __repr__ = str.__str__
    __slots__ = ()


class _Call(NamedTuple):
    """A recorded operation.

    Attributes:
        source: the expression.
        reads: names of its operands.
        writes: names of its results, in their order.
        is_needed: it changes an operand, so that it must run even if nothing reads its results.
    """

    source: str
    reads: list[_Name]
    writes: list[_Name]
    is_needed: bool


class _Recorder(TorchDispatchMode):
    """Records the operations that run while it is entered.

    Attributes:
        names: what the source names besides the inputs and results of calls.
        refusal: why the operations cannot be repeated; None if they can.
    """

    def __init__(self, inputs: Sequence[Tensor], constants: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: dict[str, Any] = dict(_NAMES)
        self.refusal: str | None = None
        self._inputs = [_Name(f"input_{k}") for k in range(len(inputs))]
        self._name_of = {id(tensor): name for tensor, name in zip(inputs, self._inputs, strict=True)}
        self._constants = {id(tensor): tensor for tensor in constants}
        self._calls: list[_Call] = []
        # An id is that of one tensor only as long as the tensor lives.
        self._alive: list[Any] = [inputs]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation, and records it."""
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        self._alive += args, kwargs, found
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.refusal = f"{func} is random"
        if func is aten.lift_fresh.default and (args[0].ndim == 0 or args[0].is_floating_point()):
            self._constants[id(args[0])] = args[0]
        if func in _SAME:
            self._name_of[id(found)] = self._name(args[0])
        elif func.is_view and all(id(tensor) in self._constants for tensor in _tensors((args, kwargs))):
            self._constants |= {id(tensor): tensor for tensor in _tensors(found)}
        else:
            self._add(func, args, kwargs, found)
        return found

    def _add(self, func: Any, args: Any, kwargs: Any, found: Any) -> None:
        results = list(found) if isinstance(found, list | tuple) else [found]
        if not all(isinstance(result, Tensor | None) for result in results):
            self.refusal = f"{func} makes a Python value of a tensor"
        given = tree_map(lambda value: self._name(value) if isinstance(value, Tensor) else value, (args, kwargs))
        call = f"call_{len(self._calls)}"
        # An OpOverload is called through Python, which takes as long as a small operation.
        self.names[call] = func._op
        source = ", ".join([*map(repr, given[0]), *(f"{key}={value!r}" for key, value in given[1].items())])
        writes = [_Name(f"{call}_{k}") for k in range(len(results))]
        reads = [name for name in tree_leaves(given) if isinstance(name, _Name)]
        unpacked = "," if isinstance(found, list | tuple) else ""
        self._calls.append(_Call(f"{unpacked} = {call}({source})", reads, writes, func._schema.is_mutable))
        for result, name in zip(results, writes, strict=True):
            # An operation in place returns what it is given.
            self._name_of.setdefault(id(result), name)

    def _name(self, tensor: Tensor) -> _Name:
        key = id(tensor)
        if key not in self._name_of:
            if key not in self._constants:
                self.refusal = f"a tensor of shape {tuple(tensor.shape)} comes from elsewhere"
            name = self._name_of[key] = _Name(f"constant_{len(self.names)}")
            self.names[name] = tensor
        return self._name_of[key]

    def source(self, results: Sequence[Tensor]) -> str:
        """The source of a function ``run`` from inputs to results, without calls that these do not need."""
        returned = list(map(self._name, results))
        needed, kept = set(returned), {*self._inputs, *self.names}
        lines = [f"return ({', '.join(returned)},)"]
        for call in reversed(self._calls):
            if call.is_needed or needed.intersection(call.writes):
                over = set(call.reads) - needed - kept
                targets = [name if name in needed else "_" for name in call.writes]
                lines += [f"del {', '.join(sorted(over))}"] if over else []
                lines.append(f"{', '.join(targets)}{call.source}")
                needed.update(call.reads)
        return "\n ".join([f"def run({', '.join(self._inputs)}):", *reversed(lines)])


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device
