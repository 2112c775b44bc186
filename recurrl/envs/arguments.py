"""Checks the arguments that a configuration gives to a constructor."""

import inspect
from collections.abc import Callable, Collection
from typing import Any

from recurrl.errors import ConfigError


def check_arguments(
    make: Callable[..., Any], names: Collection[str], what: str, prefix: str = "", ours: Collection[str] = ()
) -> None:
    """Rejects arguments that a constructor does not take, and missing ones that it requires.

    Args:
        make: the constructor.
        names: the names of the configured arguments.
        what: the constructor's description, for errors.
        prefix: what precedes a name in the configuration's keys.
        ours: the names of arguments that recurrl passes itself.

    Raises:
        ConfigError: the message lists the arguments that the constructor takes.
    """
    parameters = parameters_of(make)
    if parameters is None:
        return
    named = {
        each.name: each
        for each in parameters.values()
        if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY) and each.name not in ours
    }
    takes = f"It takes: {', '.join(named) or 'none'}."
    unknown = [name for name in names if name not in named]
    if unknown and not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        raise ConfigError(f"{what} does not take {prefix}{unknown[0]}. {takes}")
    missing = [name for name, each in named.items() if each.default is each.empty and name not in names]
    if missing:
        raise ConfigError(f"{what} requires {prefix}{missing[0]}, which is not given. {takes}")


def parameters_of(make: Callable[..., Any]) -> dict[str, inspect.Parameter] | None:
    """The parameters of a constructor by name; None if they are unknown."""
    # Not the class itself: inspect gives TorchRL's classes the signature of their metaclass, which takes anything.
    function: Any = make.__init__ if inspect.isclass(make) else make
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # functions in C need not have a signature
        return None
    return dict(list(parameters.items())[inspect.isclass(make) :])
