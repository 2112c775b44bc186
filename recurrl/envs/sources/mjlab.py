"""The tasks of mjlab, by their names in its registry."""

from collections.abc import Mapping
from typing import Any

from recurrl.config.env import DISABLED
from recurrl.config.plugins import import_custom
from recurrl.envs.sources.vec_env import SimulatorSource
from recurrl.errors import require


class MjlabSource(SimulatorSource):
    """A task of mjlab. ``env.kwargs`` replaces values of its configuration: ``env.kwargs.episode_length_s=10``."""

    def check_maker(self) -> None:
        """Rejects a task that does not exist, and values that its configuration does not have."""
        self._configuration()

    def _configuration(self) -> Any:
        options = self.options
        for package in ("mjlab.tasks", *options.packages):
            import_custom(package, f"env={options.name}")
        registry = import_custom("mjlab.tasks.registry", f"env={options.name}")
        tasks = registry.list_tasks()
        require(options.id in tasks, f"env.id={options.id} is not a task of mjlab. Choose one of: {', '.join(tasks)}.")
        configuration = registry.load_env_cfg(options.id)
        _replace(configuration, options.kwargs, "env.kwargs")
        return configuration

    def create(self, num_envs: int) -> Any:
        """The task, with ``num_envs`` environments."""
        configuration = self._configuration()
        configuration.scene.num_envs, configuration.auto_reset = num_envs, self.options.resets != DISABLED
        envs = import_custom("mjlab.envs", f"env={self.options.name}")
        return envs.ManagerBasedRlEnv(configuration, device=self.device())


def _replace(target: Any, values: Mapping[str, Any], key: str) -> None:
    """Replaces values of nested dataclasses and dicts."""
    for name, value in values.items():
        present = target if isinstance(target, dict) else vars(target)
        require(name in present, f"{key} has no {name} to replace. It has: {', '.join(present)}.")
        if isinstance(value, Mapping):
            _replace(present[name], value, f"{key}.{name}")
        elif isinstance(target, dict):
            target[name] = value
        else:
            setattr(target, name, value)


make = MjlabSource
