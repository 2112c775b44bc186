"""The overrides of a command line: those that were given, and refusals of what is not one."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import OverrideParseException
from omegaconf import OmegaConf

from recurrl.config.keys import FREE, check_key, packaged_keys
from recurrl.config.plugins import GROUPS, ROOMS, is_own
from recurrl.errors import ConfigError

TRUST = "import the packages that the run's configuration names, which runs their code"
"""The help of ``--trust-packages``."""

BASES = {"cell": "gru", "collector": "single", "env": "gym"}
"""The yaml whose values a choice of a user's own has if it is named without a yaml."""

RENAMED_CHOICES = {
    ("env", "cartpole_novel"): "cartpole_no_velocity",
    ("env", "pendulum_novel"): "pendulum_no_velocity",
    ("env", "mountaincar_continuous_novel"): "mountaincar_continuous_no_velocity",
    ("experiment", "pendulum_novel"): "pendulum_no_velocity",
}
"""Choices that have another name now."""


def asks_for_keys(arguments: Sequence[str]) -> bool:
    """True for a command line that asks for the help or the configuration of a run, not for the run."""
    known, _ = get_args_parser().parse_known_args(list(arguments))
    return bool(known.help or (known.cfg == "job" and known.package is None))


def prepared(arguments: Sequence[str]) -> list[str]:
    """A command line as Hydra takes it.

    ``group=package.module:Name`` becomes a choice of the group, without a yaml. Keys that a yaml need not have, an
    environment's arguments and the options of a user's own choices, are added where Hydra would refuse them.
    """
    known = packaged_keys()
    overrides = get_args_parser().parse_known_args(list(arguments))[0].overrides
    result = list(arguments)
    for text, override in zip(overrides, OverridesParser.create().parse_overrides(overrides), strict=True):
        group = override.key_or_group.removeprefix("/")
        if group in ROOMS and not override.is_delete():
            for name in _values(override):
                _register(group, name)
        free = group.startswith(f"{FREE}.") or (
            group.partition(".")[0] in ROOMS and "." in group and group not in known
        )
        plain = not (override.is_delete() or override.is_add() or override.is_force_add())
        if free and plain:
            result[result.index(text)] = f"++{text}"
    return result


def _values(override: Override) -> list[str]:
    return [
        str(value)
        for value in (override.sweep_string_iterator() if override.is_sweep_override() else [override.value()])
    ]


def _register(group: str, name: str) -> None:
    """Makes a factory of a user's own a choice of its group."""
    if is_own(name):
        base = [BASES[group], "_self_"] if group in BASES else ["_self_"]
        node = {"defaults": base, "name": name}
        if group == "env":
            node |= {"source": name, "id": name.rpartition(":")[2]}
        ConfigStore.instance().store(group=group, name=name, node=node, provider="recurrl")


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
    # Yamls of a user's own may choose what has keys of its own.
    only_ours = known.config_dir is None and not any("searchpath" in text or ":" in text for text in known.overrides)
    for override in overrides:
        _check(override, packaged_keys(), only_ours)


def _check(override: Override, known: Collection[str], only_ours: bool) -> None:
    key = override.key_or_group
    if key.startswith("hydra") or "/" in key:
        return
    if override.is_delete():
        values = []
    elif override.value() is None and key in ("experiment", *GROUPS):
        raise ConfigError(f"{key}=null is not a valid choice. Leave it out, or give one of its options.")
    else:
        values = _values(override)
    for name in values:
        if (key, name) in RENAMED_CHOICES:
            now = RENAMED_CHOICES[key, name]
            raise ConfigError(f"{key}={name} is now {key}={now}. Give {key}={now}.")
    if key != "experiment" and (only_ours or key.partition(".")[0] not in ROOMS):
        check_key(key, known)


def given_overrides() -> list[str]:
    """The job's overrides as they were given: an interpolation in one is about the run's configuration, not Hydra's."""
    given = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
    assert isinstance(given, list)
    return [str(override) for override in given]
