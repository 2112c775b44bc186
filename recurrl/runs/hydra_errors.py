"""Turns errors of Hydra and OmegaConf into messages that help more than theirs."""

from collections.abc import Iterator
from contextlib import contextmanager

import yaml  # type: ignore[import-untyped]
from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import OmegaConfBaseException

from recurrl.config.plugins import GROUPS, choice_names, is_custom, key_of, unknown_choice
from recurrl.errors import ConfigError


@contextmanager
def hydra_errors_as_config_errors() -> Iterator[None]:
    """Raises errors of Hydra and OmegaConf within the block as errors that are addressed to the user.

    Raises:
        ConfigError: Hydra or OmegaConf rejected the configuration.
    """
    try:
        yield
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        raise ConfigError(message(error)) from error


def message(error: Exception) -> str:
    """The text to print for an error of Hydra or OmegaConf."""
    if isinstance(error, MissingConfigException) and "/" in (error.missing_cfg_file or ""):
        return _missing_choice(str(error.missing_cfg_file), sorted(error.options or ()))
    # OmegaConf adds lines about its types.
    return str(error).partition("\n    full_key: ")[0]


def _missing_choice(choice: str, known: list[str]) -> str:
    group, _, name = choice.rpartition("/")
    if group == "hydra/launcher" and (extra := name.partition("_")[0]) in ("joblib", "submitit"):
        return f"{group}={name} is not installed. Install it with: pip install 'recurrl[{extra}]'"
    if is_custom(name) and group in GROUPS:
        return (
            f"{group}={name} can be given only on the command line. In the defaults of a yaml, name a yaml in the "
            f"folder {group} with the line '{key_of(group).partition('.')[2]}: {name}'."
        )
    return str(unknown_choice(group, group, name, known or (choice_names(group) if group in GROUPS else ())))
