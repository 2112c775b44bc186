"""The state of a Gymnasium environment as plain values, to continue it in another process.

Gymnasium has no API for this. The state is the attributes of the environment and its wrappers, if all of them are plain
(numbers, text, arrays, generators, members of enumerations, containers and objects of these). Otherwise, with a
simulator's handle for example, the environment cannot be saved, and the reason names the attribute.
"""

import enum
import random
import sys
from collections import deque
from collections.abc import Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec

from recurrl.errors import UnsavableError

Environment = gymnasium.Env[Any, Any] | gymnasium.vector.VectorEnv[Any, Any, Any]

# Attributes that an episode does not change.
_CONSTANTS: tuple[type, ...] = (gymnasium.Space, EnvSpec, type, np.dtype, torch.dtype, torch.device)
_CONSTANTS += (FunctionType, BuiltinFunctionType, MethodType, ModuleType)
_CONTAINERS: dict[str, Any] = {kind.__name__: kind for kind in (list, tuple, set, frozenset, dict, deque)}
_KINDS = {kind: name for name, kind in _CONTAINERS.items()}
# What several attributes may share, and restoring recreates.
_REBUILT = {"tensor", "array", "generator", "random", *_CONTAINERS}
# Size of an instance in memory: its header, and references to its attributes and to its weak references.
_PLAIN_SIZE = object.__basicsize__ + 2 * tuple.__itemsize__
_GENERATORS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64)
}

MAX_BYTES = 2**28
"""Limit of one environment's state: data sets that an environment reads from do not belong in every checkpoint."""
MAX_DEPTH = 50
_BYTES_OF_ONE = 256  # estimate for an encoded number or name


def state_of(env: Environment) -> dict[str, Any]:
    """The state of an environment and its wrappers, of values that ``torch.load(weights_only=True)`` reads.

    Raises:
        UnsavableError: an attribute is not plain, or too large; the message names it.
    """
    encoder = _StateEncoder()
    _, _, attributes = encoder.encoded(env, type(env).__name__)
    for owner, path in encoder.methods:
        if id(owner) in encoder.rebuilt:
            raise UnsavableError(f"{path} is a method of {encoder.rebuilt[id(owner)][1]}")
    return attributes


def restore(env: Environment, state: Mapping[str, Any]) -> None:
    """Restores the state that :func:`state_of` returned in an environment constructed the same way.

    Raises:
        UnsavableError: the environment was constructed differently from the saved one.
    """
    _restore_attributes(env, state, type(env).__name__, [])


class _StateEncoder:
    """Encodes an environment's attributes if they are plain and not too large.

    Attributes:
        bytes: how many bytes may still be encoded.
        paths: where each object was found, by its id.
        rebuilt: by its id, what :func:`restore` recreates: its number, where it was found, and the value itself, so
            that no other gets its id.
        methods: the objects whose methods were found, and where.
        owners: by what owns its memory, the first array or tensor found that can write there, and where it was found.
    """

    def __init__(self) -> None:
        self.bytes = MAX_BYTES
        self.paths, self.rebuilt = dict[int, str](), dict[int, tuple[int, str, object]]()
        self.methods, self.owners = list[tuple[object, str]](), dict[int, tuple[Any, str]]()

    def attributes(self, owner: object, path: str) -> dict[str, Any]:
        encoded = {name: self.encoded(value, f"{path}.{name}") for name, value in list(vars(owner).items())}
        return {name: value for name, value in encoded.items() if value is not _CONSTANT}

    def encoded(self, value: Any, path: str) -> Any:
        try:
            return self._encoded(value, path)
        except UnsavableError:
            raise
        except Exception as error:  # reading the attributes of a foreign object may raise anything
            raise UnsavableError(f"reading {path} raised {type(error).__name__}") from error

    def _encoded(self, value: Any, path: str) -> Any:
        # By type(), because __class__ may lie.
        if issubclass(type(value), _CONSTANTS):
            if issubclass(type(value), (MethodType, BuiltinFunctionType)):
                self.methods.append((value.__self__, path))
            return _CONSTANT
        if id(value) in self.rebuilt:
            return ("same", self.rebuilt[id(value)][0])
        if path.count(".") + path.count("[") > MAX_DEPTH:
            raise UnsavableError(f"{path[:100]}… refers to itself, or is nested more than {MAX_DEPTH} deep")
        self._spend(_BYTES_OF_ONE, path)
        for encode in (self._data, self._generator, self._container, self._object):
            encoded = encode(value, path)
            if encoded is not None:
                # After its contents, in the order in which _decoded makes them.
                if encoded is not _CONSTANT and encoded[0] in _REBUILT:
                    self.rebuilt[id(value)] = len(self.rebuilt), path, value
                return encoded
        raise UnsavableError(f"{path} is a {_name_of(type(value))}, which is not a plain value")

    def _data(self, value: Any, path: str) -> Any:
        if value is None or type(value) in (bool, int, float, str):
            return ("value", value)
        if issubclass(type(value), enum.Enum):
            name = (type(value).__module__, type(value).__qualname__, value.name)
            if _member(*name) is not value:
                raise UnsavableError(f"{path} is {'.'.join(name)}, which cannot be imported")
            return ("enum", *name)
        if issubclass(type(value), torch.Tensor):
            self._spend(value.nbytes, path)
            self._claim(value.untyped_storage().data_ptr(), value.detach(), path)
            return ("tensor", value.detach().clone())
        # Subclasses of arrays have more than their numbers.
        is_array = type(value) is np.ndarray
        if (is_array or issubclass(type(value), np.generic)) and value.dtype.kind in "biufUS":
            self._spend(value.nbytes, path)
            if is_array and value.flags.writeable:
                self._claim(id(value if value.base is None else value.base), value, path)
            kind = "array" if is_array else "scalar"
            # torch has no dtype for text.
            numbers = value.dtype.kind in "biuf"
            return (kind, torch.from_numpy(np.array(value)) if numbers else value.tolist(), value.dtype.str)
        return None

    def _generator(self, value: Any, path: str) -> Any:
        if issubclass(type(value), np.random.Generator) and type(value.bit_generator).__name__ in _GENERATORS:
            state = self.encoded(value.bit_generator.state, path)
            return ("generator", type(value.bit_generator).__name__, state)
        if issubclass(type(value), random.Random):
            return ("random", value.getstate())
        return None

    def _claim(self, owner: int, value: Any, path: str) -> None:
        first, place = self.owners.setdefault(owner, (value, path))
        if first is not value and np.may_share_memory(first, value):
            raise UnsavableError(f"{path} shares memory with {place}")

    def _container(self, value: Any, path: str) -> Any:
        kind = _KINDS.get(type(value))
        if kind is None:
            return None
        # Spent before the list of items is made, which may not fit.
        self._spend(len(value) * _BYTES_OF_ONE, path)
        items = [item for pair in value.items() for item in pair] if kind == "dict" else list(value)
        encoded = [self.encoded(item, f"{path}[…]") for item in items]
        values = encoded[1::2] if kind == "dict" else encoded
        if values and all(item is _CONSTANT for item in values):
            return _CONSTANT
        for item, what in zip(items, encoded, strict=True):
            # Contents are rebuilt, and neither a constant nor an object can be rebuilt from plain values.
            if what is _CONSTANT or what[0] == "object":
                raise UnsavableError(f"{path} holds a {type(item).__qualname__}, which is not a plain value")
        return (kind, encoded, getattr(value, "maxlen", None))

    def _object(self, value: Any, path: str) -> Any:
        # A larger instance has state beyond its attributes: slots, or fields of C code.
        if hasattr(value, "__dict__") and type(value).__basicsize__ <= _PLAIN_SIZE:
            # Objects are restored in place, which cannot restore which attributes are the same object.
            if self.paths.setdefault(id(value), path) != path:
                raise UnsavableError(f"{path} is the same object as {self.paths[id(value)]}")
            return ("object", type(value).__qualname__, self.attributes(value, path))
        return None

    def _spend(self, count: int, path: str) -> None:
        self.bytes -= count
        if self.bytes < 0:
            raise UnsavableError(f"with {path}, the state of one environment exceeds {MAX_BYTES >> 20} MiB")


_CONSTANT = object()


def _name_of(kind: type) -> str:
    # Classes made in C need not have a module.
    module = getattr(kind, "__module__", None)
    return f"{module}.{kind.__qualname__}" if isinstance(module, str) else kind.__qualname__


def _restore_attributes(owner: object, state: Mapping[str, Any], path: str, known: list[Any]) -> None:
    # ``known`` are the values made so far, by their numbers: several attributes may share one.
    for name, encoded in state.items():
        place = f"{path}.{name}"
        if encoded[0] == "object":
            value = getattr(owner, name, None)
            if type(value).__qualname__ != encoded[1]:
                raise UnsavableError(f"{place} was a {encoded[1]}, and is a {type(value).__qualname__} here")
            _restore_attributes(value, encoded[2], place, known)
        else:
            # Bypasses __setattr__ and properties, so that exactly the saved value is set.
            vars(owner)[name] = _decoded(encoded, known)
    for name in _StateEncoder().attributes(owner, path).keys() - state.keys():
        del vars(owner)[name]


def _member(module: str, kind: str, name: str) -> enum.Enum | None:
    """A member of an enumeration in a module that is already imported."""
    value: Any = sys.modules.get(module)
    for part in (*kind.split("."), name):
        value = getattr(value, part, None)
    return value if isinstance(value, enum.Enum) else None


def _decoded(encoded: Any, known: list[Any]) -> Any:
    kind, value, *rest = encoded
    if kind == "value":
        return value
    if kind == "same":
        return known[value]
    if kind == "enum":
        member = _member(value, *rest)
        if member is None:
            raise UnsavableError(f"there is no {'.'.join(encoded[1:])} here")
        return member
    if kind in ("array", "scalar"):
        decoded: Any = np.array(value.numpy() if isinstance(value, torch.Tensor) else value, dtype=rest[0])
        if kind == "scalar":
            return decoded[()]
    elif kind == "tensor":
        decoded = value.clone()
    elif kind == "generator":
        bits = _GENERATORS[value]()
        bits.state = _decoded(rest[0], known)
        decoded = np.random.Generator(bits)
    elif kind == "random":
        decoded = random.Random()
        decoded.setstate(value)
    else:
        items = (_decoded(each, known) for each in value)
        pairs = zip(items, items, strict=True) if kind == "dict" else items
        decoded = deque(pairs, rest[0]) if kind == "deque" else _CONTAINERS[kind](pairs)
    known.append(decoded)
    return decoded
