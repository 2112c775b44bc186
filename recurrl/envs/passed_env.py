"""Environments that are passed to ``recurrl.train`` as objects instead of being named by ``env.id``."""

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import gymnasium
from torchrl.envs import EnvBase

from recurrl.config import EnvConfig
from recurrl.config.options import option
from recurrl.errors import require

_ENVIRONMENTS = (gymnasium.Env, gymnasium.vector.VectorEnv, EnvBase)


@dataclass
class PassedEnv(EnvConfig):
    """Options of an environment whose class or function cannot be imported by a name, such as a lambda."""

    maker: Callable[..., Any] = option("makes the environment", default=None)


def id_of(env: Any) -> str:
    """The value of ``env.id`` for an environment that was passed as an object.

    It is ``module:Name`` if that can be imported, as in a configuration. A lambda, or a class that ``__main__`` or a
    function defines, is ``<Name>``: no run can save it, so it must be passed again to resume or load the run.

    Args:
        env: a class or function that makes environments; or an id, which stays as it is.

    Raises:
        ConfigError: ``env`` is something else, such as an environment.
    """
    if isinstance(env, str):
        return env
    got = f"the environment {type(env).__name__}" if isinstance(env, _ENVIRONMENTS) else f"a {type(env).__name__}"
    require(
        callable(env) and not isinstance(env, _ENVIRONMENTS),
        f"env must be a class or function that makes environments, or an id (got {got}). A run makes several "
        "environments: pass a class, or a function that returns a new one at each call.",
    )
    module, name = str(getattr(env, "__module__", "")), getattr(env, "__qualname__", type(env).__name__)
    if module != "__main__" and "<" not in name:
        with suppress(KeyError, AttributeError):  # an object that is not importable, such as a partial function
            if attrgetter(name)(sys.modules[module]) is env:
                return f"{module}:{name}"
    name = getattr(env.func, "__qualname__", name) if isinstance(env, partial) else name
    return f"<{name.rpartition('.')[2].strip('<>')}>"


def with_maker(config: EnvConfig, env: Any) -> EnvConfig:
    """The options; they include ``env`` if it was passed and cannot be imported by a name."""
    if env is None or not config.id.startswith("<"):
        return config
    require(
        config.source == "gymnasium",
        f"env={config.name} must have env.id=module:Name (got {config.id}, an object). Put it into a module.",
    )
    return PassedEnv(**{**vars(config), "maker": env})
