"""The overrides of a command line: those that were given, and refusals of what is not one."""

from __future__ import annotations

from collections.abc import Sequence

from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import OverrideParseException
from omegaconf import OmegaConf

from recurrl.config import TrainConfig
from recurrl.config.keys import check_key, key_paths
from recurrl.errors import ConfigError

TRUST = "import the packages that the run's configuration names, which runs their code"
"""The help of ``--trust-packages``."""

GROUPS = ("experiment", *(key.partition(".")[0] for key in key_paths(TrainConfig) if key.endswith(".name")))


def check_overrides(arguments: Sequence[str]) -> None:
    """Rejects overrides of keys that do not exist, before Hydra does, which cannot name the nearest ones."""
    known, unknown = get_args_parser().parse_known_args(list(arguments))
    for argument in unknown:
        if not argument.startswith("-"):
            raise ConfigError(f"{argument} follows an option. Put options such as -m before the overrides.")
        raise ConfigError(
            f"Unknown option {argument}. Give keys and groups without dashes, as "
            f"{argument.lstrip('-').partition('=')[0]}=...; recurrl-train --help lists them, and recurrl-train "
            "--hydra-help the options."
        )
    try:
        overrides = OverridesParser.create().parse_overrides(known.overrides)
    except OverrideParseException as error:
        raise ConfigError(
            f"{error.override} is not an override. Give key=value or group=choice; quote values that contain any of "
            "=,:()[]{} or spaces, for the shell and for Hydra: 'key=\"a=b\"'."
        ) from error
    for override in overrides:
        key = override.key_or_group
        if key.startswith("hydra") or "/" in key:
            continue
        if key != "experiment":
            check_key(key)
        if key in GROUPS and not override.is_delete() and override.value() is None:
            raise ConfigError(f"{key}=null is not a valid choice. Leave it out, or give one of its options.")


def given_overrides() -> list[str]:
    """The job's overrides as they were given: an interpolation in one is about the run's configuration, not Hydra's."""
    given = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
    assert isinstance(given, list)
    return [str(override) for override in given]
