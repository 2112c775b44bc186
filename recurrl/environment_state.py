"""The state of a Gymnasium environment as plain values, to go on with it in another process.

Gymnasium has no way to ask for it. What an environment knows is in its attributes and those of its wrappers; where all
of these are plain (numbers, text, arrays, generators, containers and objects of these), they are the state. Where one
is not, a simulator's handle say, the environment cannot be saved, and the reason names the attribute.
"""

from __future__ import annotations

import enum
import random
from collections import deque
from collections.abc import Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec

Environment = gymnasium.Env[Any, Any] | gymnasium.vector.VectorEnv[Any, Any, Any]

# What an episode does not change.
_CONSTANTS = (
    gymnasium.Space,
    EnvSpec,
    enum.Enum,
    type,
    np.dtype,
    torch.dtype,
    torch.device,
    FunctionType,
    BuiltinFunctionType,
    MethodType,
    ModuleType,
)
_SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_KINDS = {kind: name for name, kind in _SEQUENCES.items()}
# Of an instance in memory: its header, and references to its attributes and to weak references of it.
_PLAIN_SIZE = object.__basicsize__ + 2 * tuple.__itemsize__
_GENERATORS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64)
}


class UnsavableError(ValueError):
    """An environment's state is not made of plain values."""


def state_of(env: Environment) -> dict[str, Any]:
    """The state of an environment and its wrappers, of values that ``torch.load(weights_only=True)`` reads.

    Raises:
        UnsavableError: an attribute is not plain; the sentence names it.
    """
    return _attributes(env, type(env).__name__, ())


def restore(env: Environment, state: Mapping[str, Any]) -> None:
    """Gives an environment that was made alike the state that :func:`state_of` returned.

    Raises:
        UnsavableError: the environment is not made like the one that was saved.
    """
    _restore_attributes(env, state, type(env).__name__)


def _attributes(owner: object, path: str, within: tuple[int, ...]) -> dict[str, Any]:
    if id(owner) in within:
        raise UnsavableError(f"{path} refers back to what holds it")
    found = {name: _encoded(value, f"{path}.{name}", (*within, id(owner))) for name, value in vars(owner).items()}
    return {name: value for name, value in found.items() if value is not _CONSTANT}


_CONSTANT = object()


def _encoded(value: Any, path: str, within: tuple[int, ...]) -> Any:
    if isinstance(value, _CONSTANTS):
        return _CONSTANT
    for encode in (_encoded_data, _encoded_generator, _encoded_container, _encoded_object):
        encoded = encode(value, path, within)
        if encoded is not None:
            return encoded
    raise UnsavableError(f"{path} is a {type(value).__module__}.{type(value).__qualname__}, which is not a plain value")


def _encoded_data(value: Any, path: str, within: tuple[int, ...]) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return ("value", value)
    if isinstance(value, torch.Tensor):
        return ("tensor", value.detach().clone())
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufUS":
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        # torch has no text.
        numbers = value.dtype.kind in "biuf"
        return (kind, torch.from_numpy(np.array(value)) if numbers else value.tolist(), value.dtype.str)
    return None


def _encoded_generator(value: Any, path: str, within: tuple[int, ...]) -> Any:
    if isinstance(value, np.random.Generator) and type(value.bit_generator).__name__ in _GENERATORS:
        return ("generator", type(value.bit_generator).__name__, _encoded(value.bit_generator.state, path, within))
    if isinstance(value, random.Random):
        return ("random", value.getstate())
    return None


def _encoded_container(value: Any, path: str, within: tuple[int, ...]) -> Any:
    kind = "dict" if type(value) is dict else "deque" if type(value) is deque else _KINDS.get(type(value))
    if kind is None:
        return None
    items = [item for pair in value.items() for item in pair] if kind == "dict" else list(value)
    encoded = [_encoded(item, f"{path}[…]", within) for item in items]
    values = encoded[1::2] if kind == "dict" else encoded
    if values and all(item is _CONSTANT for item in values):
        return _CONSTANT
    for item, what in zip(items, encoded, strict=True):
        # What is held is made anew, and neither a constant nor an object can be made of plain values.
        if what is _CONSTANT or what[0] == "object":
            raise UnsavableError(f"{path} holds a {type(item).__qualname__}, which is not a plain value")
    return (kind, encoded, value.maxlen if kind == "deque" else None)


def _encoded_object(value: Any, path: str, within: tuple[int, ...]) -> Any:
    # A larger instance holds something beside its attributes: slots, or what its C code knows.
    if hasattr(value, "__dict__") and type(value).__basicsize__ <= _PLAIN_SIZE:
        return ("object", type(value).__qualname__, _attributes(value, path, within))
    return None


def _restore_attributes(owner: object, state: Mapping[str, Any], path: str) -> None:
    for name, encoded in state.items():
        place = f"{path}.{name}"
        if encoded[0] == "object":
            held = getattr(owner, name, None)
            if type(held).__qualname__ != encoded[1]:
                raise UnsavableError(f"{place} was a {encoded[1]}, and is a {type(held).__qualname__} here")
            _restore_attributes(held, encoded[2], place)
        else:
            # Past what classes make of an assignment: what is set is what was read.
            vars(owner)[name] = _decoded(encoded)
    for name in _attributes(owner, path, ()).keys() - state.keys():
        del vars(owner)[name]


def _decoded(encoded: Any) -> Any:
    kind, value, *rest = encoded
    if kind == "value":
        return value
    if kind == "tensor":
        return value.clone()
    if kind in ("array", "scalar"):
        array = np.array(value.numpy() if isinstance(value, torch.Tensor) else value, dtype=rest[0])
        return array if kind == "array" else array[()]
    if kind == "generator":
        bits = _GENERATORS[value]()
        bits.state = _decoded(rest[0])
        return np.random.Generator(bits)
    if kind == "random":
        generator = random.Random()
        generator.setstate(value)
        return generator
    if kind == "dict":
        items = [_decoded(item) for item in value]
        return dict(zip(items[::2], items[1::2], strict=True))
    if kind == "deque":
        return deque(map(_decoded, value), rest[0])
    return _SEQUENCES[kind](map(_decoded, value))
