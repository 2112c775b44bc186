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
    mode: str = option(
        "auto (online with a login, else offline), online or offline", choices=("auto", "online", "offline")
    )
    id: str | None = option("id of a wandb run to continue; null: that of the resumed run, or a new one")
