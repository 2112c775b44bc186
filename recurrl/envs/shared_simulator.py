"""The simulator of this process, which training, checks and evaluation use in turn."""

import atexit
from dataclasses import replace
from typing import cast

from recurrl.config import EnvConfig
from recurrl.envs.source import Source
from recurrl.envs.vec_env import SimulatorEnv

_simulators: list[tuple[EnvConfig, SimulatorEnv]] = []


def simulator(source: Source) -> SimulatorEnv:
    """The simulator of a source, made at the first call. A simulator with other options is closed first.

    Raises:
        ConfigError: the simulator cannot be made as configured.
    """
    options = source.options
    if not _simulators or _simulators[0][0] != options:
        release()
        _simulators.append((replace(options), cast(SimulatorEnv, source.make(options.num_envs))))
    return _simulators[0][1]


def release() -> None:
    """Closes the simulator, if there is one."""
    while _simulators:
        _simulators.pop()[1].shut_down()


atexit.register(release)
