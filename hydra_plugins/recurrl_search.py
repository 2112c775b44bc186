"""``hydra/sweeper=optuna``. Hydra takes sweepers from this namespace only, and imports all of it whenever it starts."""

from typing import Any

from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from recurrl.config.plugins import load


class OptunaSweeper(Sweeper):
    """Runs trials with the values that Optuna proposes: see :mod:`recurrl.cli.search`."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Called before :meth:`sweep`."""
        launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )
        self.started_with = config, launcher, hydra_context.config_loader

    def sweep(self, arguments: list[str]) -> None:
        """Runs the trials; the arguments are those of the command line."""
        load("recurrl.cli.search:search", "hydra/sweeper=optuna")(self.options, arguments, *self.started_with)
