"""The overrides of a command line: those that were given, and refusals of what is not one."""

from collections.abc import Collection, Sequence
from pathlib import Path

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf

from recurrl.cli.messages import message
from recurrl.config.composed import chosen_options, plain, value_of, with_defaults
from recurrl.config.keys import check_key, differences, packaged_keys
from recurrl.config.plugins import GROUPS, PRESETS, ROOMS, is_own, key_of, own_values, top_values, values, yaml_names
from recurrl.errors import ConfigError

TRUST = "import the packages that the run's configuration names, which runs their code"
"""The help of ``--trust-packages``."""


def asks_for_keys(arguments: Sequence[str]) -> bool:
    """True for a command line that asks for the help or the configuration of a run, not for the run."""
    known, _ = get_args_parser().parse_known_args(list(arguments))
    return bool(known.help or (known.cfg == "job" and known.package is None))


def prepared(arguments: Sequence[str]) -> list[str]:
    """A command line as Hydra takes it.

    ``group=package.module:Name`` becomes a choice of the group, without a yaml. Keys that a yaml need not have (an
    environment's arguments, the options of a user's own choices) are added where Hydra would reject them.

    Raises:
        ConfigError: there is no such choice.
    """
    known = packaged_keys()
    overrides = get_args_parser().parse_known_args(list(arguments))[0].overrides
    result = list(arguments)
    for text, override in zip(overrides, OverridesParser.create().parse_overrides(overrides), strict=True):
        key = override.key_or_group.removeprefix("/")
        if key in ROOMS and not override.is_delete():
            for name in filter(is_own, _values(override)):
                # A factory of a user's own becomes a choice of its group.
                ConfigStore.instance().store(group=key, name=name, node=own_values(key, name), provider="recurrl")
        plain = not (override.is_delete() or override.is_add() or override.is_force_add())
        if plain and "." in key and key.partition(".")[0] in ROOMS and key not in known:
            result[result.index(text)] = f"++{text}"
    return result


def _values(override: Override) -> list[str]:
    value = override.value()
    return [str(getattr(each, "text", each)) for each in (value.list if isinstance(value, ChoiceSweep) else [value])]


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
    is_run = not (known.multirun or known.help or known.cfg)
    searches = [override.value() for override in overrides if override.key_or_group == "hparams_search"]
    if is_run and searches and (searches[-1] in yaml_names("hparams_search") or not only_ours):
        raise ConfigError("hparams_search= searches over many runs. Add -m before it, or leave it out.")


def _check(override: Override, known: Collection[str], only_ours: bool) -> None:
    key = override.key_or_group
    if key.startswith("hydra") or "/" in key:
        return
    if key in (*PRESETS, *GROUPS) and not override.is_delete() and override.value() is None:
        raise ConfigError(f"{key}=null is not a valid choice. Leave it out, or give one of its options.")
    if key not in PRESETS and (only_ours or key.partition(".")[0] not in ROOMS):
        check_key(key, known)


def compose(overrides: Sequence[str], config_dir: str | Path | None = None, with_hydra: bool = False) -> DictConfig:
    """The configuration that the command line ``overrides`` composes.

    Args:
        overrides: as for ``recurrl-train``.
        config_dir: a folder with yamls of the user's own.
        with_hydra: with Hydra's own settings.

    Raises:
        ConfigError: an override is wrong.
    """
    search = [] if config_dir is None else [f"hydra.searchpath=[file://{Path(config_dir).resolve()}]"]
    try:
        with hydra.initialize_config_module("recurrl.configs", version_base="1.3"):
            return hydra.compose("train", [*prepared(overrides), *search], return_hydra_config=with_hydra)
    except HydraException as error:
        raise ConfigError(message(error)) from error


def given_overrides() -> list[str]:
    """The job's overrides as they were given: an interpolation in one is about the run's configuration, not Hydra's."""
    given = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
    assert isinstance(given, list)
    return [str(override) for override in given]


def given_keys(composed: DictConfig, overrides: Sequence[str]) -> set[str]:
    """The keys whose values the user gave: on the command line, or in a yaml of their own.

    Of the latter, those whose values differ from the package's: a yaml may repeat all of them.

    Args:
        composed: what Hydra made of the yamls and the command line.
        overrides: the command line.
    """
    chosen = chosen_options(composed)
    theirs, ours = (
        plain(with_defaults(each, chosen), resolve=False) for each in (_without_yamls(composed, overrides), composed)
    )
    return overridden_keys(overrides) | differences(theirs, ours).keys()


def overridden_keys(overrides: Sequence[str]) -> set[str]:
    """The keys whose values a command line gives; for a group, that of its name."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    keys = {override.key_or_group.removeprefix("/") for override in parsed if not override.is_delete()}
    return {key_of(key) if key in GROUPS else key for key in keys}


def _without_yamls(composed: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """The values that the package's yamls have for the choices of a configuration."""
    names = {group: str(value_of(composed, key_of(group))) for group in GROUPS}
    if not is_own(names["env"]):
        names["env"] = name if (name := value_of(composed, "env.name")) in yaml_names("env") else "gym"
    found = {group: own_values(group, name) if is_own(name) else values(group, name) for group, name in names.items()}
    experiments = [text.partition("=")[2] for text in overrides if text.partition("=")[0].strip("+/") == "experiment"]
    tuned = [top_values(f"experiment/{name}") for name in experiments if name in yaml_names("experiment")]
    found["env"] |= {"name": value_of(composed, "env.name")}  # only yamls give it
    merged = OmegaConf.merge(top_values("train"), found, *tuned)
    assert isinstance(merged, DictConfig)
    return merged
