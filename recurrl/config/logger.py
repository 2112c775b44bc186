"""Options of loggers."""

from dataclasses import dataclass

from recurrl.config.options import option


@dataclass
class LoggerConfig:
    """Where metrics go besides ``metrics.csv``, which is always written; a logger with options derives a dataclass."""

    name: str = option("where metrics go besides metrics.csv")


@dataclass
class WandbConfig(LoggerConfig):
    """Weights & Biases."""

    project: str = option("wandb's project")
    mode: str = option("auto is online with a login, else offline", choices=("auto", "online", "offline", "disabled"))
    group: str | None = option("wandb's group; null: a sweep's runs have its folder, other runs none")
    tags: list[str] = option("wandb's tags")
    artifacts: bool = option("record the best checkpoint as an artifact of the wandb run, once the run is complete")
    id: str | None = option("id of a wandb run to continue; null: that of the resumed run, or a new one")
