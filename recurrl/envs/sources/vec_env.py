"""Simulators that ``module:function`` makes: Isaac Lab's environments, rsl_rl's ``VecEnv``, and others on tensors."""

import atexit
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch

from recurrl.config.env import VecEnvConfig
from recurrl.config.plugins import import_custom, load
from recurrl.envs.arguments import check_arguments, parameters_of
from recurrl.envs.checks import EnvChecks
from recurrl.envs.source import Source
from recurrl.envs.vec_env import SimulatorEnv
from recurrl.errors import require
from recurrl.runtime.ranks import world

_simulators: list[tuple[VecEnvConfig, SimulatorEnv]] = []
"""The simulator of this process and its options, or none."""


@atexit.register
def release() -> None:
    """Closes the simulator of this process, if there is one."""
    while _simulators:
        _simulators.pop()[1].shut_down()


class SimulatorSource(Source):
    """The simulator that ``env.id=module:function`` makes.

    The function is called with ``num_envs``, ``env.kwargs``, and ``device`` if it has that parameter.
    """

    supported_options: Collection[str] = ("packages", "kwargs")
    is_simulator = True
    options: VecEnvConfig

    def check(self) -> None:
        """Rejects arguments that do not fit, and a single environment."""
        super().check()
        count = self.options.num_envs
        require(count > 1, f"env.num_envs must be at least 2 with env.source={self.options.source} (got {count}).")
        self.check_maker()

    def check_maker(self) -> None:
        """Rejects arguments that do not fit."""
        ours = ("num_envs", "device")
        check_arguments(self._maker(), self.options.kwargs, f"env.id={self.options.id}", "env.kwargs.", ours)

    def _maker(self) -> Any:
        for package in self.options.packages:
            import_custom(package, f"env.packages=[{package}]")
        return load(self.options.id, f"env.id={self.options.id}")

    def device(self) -> str:
        """Where the simulator runs: with ``cuda``, on the GPU of this rank."""
        configured = self.options.device
        return f"cuda:{world().local_rank}" if configured == "cuda" else configured

    def create(self, num_envs: int) -> Any:
        """The simulator, with ``num_envs`` environments."""
        make, options = self._maker(), self.options
        device = {"device": self.device()} if "device" in (parameters_of(make) or ()) else {}
        return make(num_envs=num_envs, **device, **options.kwargs)

    def make(self, num_envs: int) -> SimulatorEnv:
        """The simulator of this process, whose ``env.num_envs`` environments training and evaluation use in turn.

        It is made at the first call. A simulator with other options is closed first.
        """
        if not _simulators or _simulators[0][0] != self.options:
            release()
            _simulators.append((replace(self.options), self._simulator()))
        return _simulators[0][1]

    def _simulator(self) -> SimulatorEnv:
        options = self.options
        created = self.create(options.num_envs)
        with EnvChecks(options.id, options.num_envs).attributed("reset"):
            env = SimulatorEnv(created, options)
        require(
            env.device.type == torch.device(self.device()).type,
            f"env.device must be where env.id={options.id} runs, which is {env.device.type} (got {options.device}). "
            f"Set env.device={env.device.type}, or have it run on its argument device.",
        )
        return env


make = SimulatorSource
