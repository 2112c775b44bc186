"""The environments of EnvPool, by their names."""

from typing import Any

from recurrl.config.plugins import import_custom
from recurrl.envs.sources.vec_env import SimulatorSource
from recurrl.errors import require


class EnvPoolSource(SimulatorSource):
    """Environments of EnvPool, stepped in C++. ``env.kwargs`` are further arguments of ``envpool.make_gymnasium``."""

    supported_options = ("kwargs",)

    def check_maker(self) -> None:
        """Rejects a name that EnvPool does not have."""
        options, package = self.options, self._package()
        require(
            options.id in package.list_all_envs(),
            f"env.id={options.id} is not an environment of EnvPool {package.__version__}. Look at "
            "envpool.list_all_envs().",
        )

    def _package(self) -> Any:
        return import_custom("envpool", f"env={self.options.name}")

    def create(self, num_envs: int) -> Any:
        """The environments, with Gymnasium's interface."""
        return self._package().make_gymnasium(self.options.id, num_envs=num_envs, **self.options.kwargs)


make = EnvPoolSource
