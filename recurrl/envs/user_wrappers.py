"""The Gymnasium wrappers that ``env.wrappers`` names."""

import inspect
from collections.abc import Sequence
from typing import Any

import gymnasium

from recurrl.config.env import EnvConfig, wrapper_and_arguments
from recurrl.config.plugins import load
from recurrl.envs.arguments import check_arguments
from recurrl.envs.faults import making
from recurrl.errors import ConfigError

Env = gymnasium.Env[Any, Any]


def load_wrappers(
    entries: Sequence[Any],
) -> list[tuple[str, type[gymnasium.Wrapper[Any, Any, Any, Any]], dict[str, Any]]]:
    """The name, class and arguments of each entry of ``env.wrappers``.

    Raises:
        ConfigError: an entry does not name a wrapper of Gymnasium, or its arguments do not fit.
    """
    found = []
    for entry in entries:
        name, arguments = wrapper_and_arguments(entry)
        asked = f"env.wrappers={name}"
        wrapper = load(name, asked)
        if not (inspect.isclass(wrapper) and issubclass(wrapper, gymnasium.Wrapper)):
            raise ConfigError(
                f"{asked} is not a wrapper of single environments. Give a class derived from gymnasium.Wrapper."
            )
        check_arguments(wrapper, ["env", *arguments], asked)
        found.append((name, wrapper, arguments))
    return found


def wrapped(env: Env, config: EnvConfig) -> Env:
    """The environment within the wrappers of ``env.wrappers``, the last one outermost.

    Raises:
        ConfigError: a wrapper needs a package that is not installed.
        EnvironmentFaultError: a wrapper's constructor raised.
    """
    for name, wrapper, arguments in load_wrappers(config.wrappers):
        with making(f"env.wrappers={name} around env.id={config.id}"):
            env = wrapper(env, **arguments)
    return env
