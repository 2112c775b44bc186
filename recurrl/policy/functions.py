"""Modules as plain functions, for many small calls in a row."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.module import _has_any_global_hook


def as_function(module: nn.Module) -> Callable[..., Any]:
    """A function that computes the same as ``module`` does with its current parameters.

    ``Module.__call__`` takes as long as a small module's own computation. A module with hooks is called as it is; one
    with a method ``as_function`` gives its own.
    """
    if has_hooks(module):
        return module
    own: Any = getattr(module, "as_function", None)
    if own is not None:
        return own()
    # Exact types, because a subclass may compute something else.
    if type(module) is nn.Linear:
        return _linear(module)
    if type(module) is nn.Tanh:
        return torch.tanh
    if type(module) is nn.Sequential:
        return chain(module)
    return module.forward


def chain(modules: Iterable[nn.Module]) -> Callable[[Any], Any]:
    """A function that calls the modules one after the other, each on the output of the one before."""
    # Not those that return their input.
    calls = [as_function(module) for module in modules if type(module) is not nn.Identity or has_hooks(module)]

    def run(value: Any) -> Any:
        for call in calls:
            value = call(value)
        return value

    return run


def has_hooks(module: nn.Module) -> bool:
    """True for hooks, and for whatever else makes a call differ from the class's ``forward``."""
    own = (
        module._forward_pre_hooks,
        module._forward_hooks,
        module._backward_pre_hooks,
        module._backward_hooks,
        module._compiled_call_impl,
        "forward" in vars(module),
        type(module).__call__ is not nn.Module.__call__,
    )
    return any(own) or bool(_has_any_global_hook())


def _linear(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    """With the weight transposed once."""
    weight, transposed, bias = layer.weight, layer.weight.t(), layer.bias

    def run(value: Tensor) -> Tensor:
        if bias is None or value.ndim != 2:
            return functional.linear(value, weight, bias)
        return torch.addmm(bias, value, transposed)

    return run
