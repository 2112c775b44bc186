"""The overrides of a command line: what they compose, which keys they set, and errors for those that are wrong."""

import re
from argparse import Namespace
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from pathlib import Path
from typing import Any, cast

import hydra
import yaml  # type: ignore[import-untyped]
from hydra._internal.utils import get_args_parser  # the only list of the options that Hydra takes before the overrides
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override, Quote, QuotedString
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, ListConfig, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from recurrl.config import plugins
from recurrl.config.composed import plain, value_of
from recurrl.config.keys import check_key, flat, keys_of, packaged_keys
from recurrl.config.plugins import GROUPS, PRESETS, choice_names, inherited_choice, is_custom, yaml_names
from recurrl.errors import ConfigError, require

SEVERAL = "logger"
"""The only group that takes several choices, as a list."""
_PLAIN = re.compile(r"[A-Za-z_/][\w./:-]*", re.ASCII)
_WORDS = ("null", "true", "false", "nan", "inf")
"""Words that are values of another type unless they are quoted."""


def arguments_of(command_line: Sequence[str]) -> Namespace:
    """The options and overrides of a command line of ``recurrl-train``.

    Raises:
        ConfigError: it has an option that does not exist, or an option after an override.
    """
    known, unknown = get_args_parser().parse_known_args(list(command_line))
    for argument in unknown:
        if not argument.startswith("-"):
            raise ConfigError(f"{argument} follows an option. Put options such as -m before the overrides.")
        raise ConfigError(
            f"Unknown option {argument}. Write keys and groups without dashes, as "
            f"{argument.lstrip('-').partition('=')[0]}=...; recurrl-train --help lists them, and recurrl-train "
            "--hydra-help the options."
        )
    return known


def parsed(overrides: Sequence[str]) -> list[Override]:
    """Overrides as Hydra parses them.

    Raises:
        ConfigError: one of them is not an override.
    """
    try:
        return OverridesParser.create().parse_overrides(list(overrides))
    except OverrideParseException as error:
        raise ConfigError(
            f"{error.override} is not an override. Write key=value or group=choice; quote values that contain any of "
            "=,:()[]{} or spaces, for the shell and for Hydra: 'key=\"a=b\"'."
        ) from error


def prepared(command_line: Sequence[str], is_run: bool = True) -> list[str]:
    """A command line as Hydra takes it, checked for keys that do not exist: Hydra would not suggest the nearest ones.

    ``group=package.module:Name`` becomes a choice of the group, without a yaml. Keys that not every choice or yaml has
    (options of some, an environment's arguments) get the prefix ``++``, because Hydra would reject them; the schema
    checks them later.

    Args:
        command_line: options of Hydra and overrides.
        is_run: the configuration is run, not only shown.

    Raises:
        ConfigError: an option, a key or a choice does not exist.
    """
    arguments, known, common, result = arguments_of(command_line), packaged_keys(), keys_of(), list(command_line)
    texts = arguments.overrides
    # What a yaml of the user or a resumed run chooses may have further keys.
    only_packaged = arguments.config_dir is None and not re.search(r"searchpath|:|^resume=", "\n".join(texts), re.M)
    for text, override in zip(texts, parsed(texts), strict=True):
        key = override.key_or_group.removeprefix("/")
        _check(override, known, common, only_packaged)
        require(
            arguments.multirun or not override.is_sweep_override(),
            f"{text} has several values. Add -m before it to run each; in Python, call train for each. A list is "
            "written as [a,b], and a text with commas as '\"a,b\"'.",
        )
        require(
            _has_values(override, only_packaged),
            f"{key} must have at least one value in a sweep (got {text.partition('=')[2]}). Give it one, or leave it "
            "out.",
        )
        if is_run and text.startswith("hparams_search="):
            fits = arguments.multirun and not override.is_sweep_override()
            require(fits, f"{text} must be one search over many runs. Add -m to recurrl-train, or leave it out.")
        if key in GROUPS and not override.is_delete():
            for name in filter(is_custom, _names(override.value())):
                ConfigStore.instance().store(
                    group=key, name=name, node=plugins.custom_values(key, name), provider="recurrl"
                )
        changes = not (override.is_delete() or override.is_add() or override.is_force_add())
        if changes and "." in key and key.partition(".")[0] in GROUPS and not (only_packaged and key in common):
            result[result.index(text)] = f"++{text}"
    return result


def _has_values(override: Override, only_packaged: bool) -> bool:
    """False for a sweep over an empty range, or over a pattern that none of the package's choices matches."""
    key, value = override.key_or_group, cast(Any, override.value())
    if isinstance(value, Glob):
        return not only_packaged or key not in (*PRESETS, *GROUPS) or bool(value.filter(list(yaml_names(key))))
    return not override.is_discrete_sweep() or any(True for _ in override.sweep_iterator())


def _names(value: Any) -> list[str]:
    inner = value.list if isinstance(value, ChoiceSweep) else value if isinstance(value, list) else None
    return [str(getattr(value, "text", value))] if inner is None else [name for each in inner for name in _names(each)]


def _check(override: Override, known: Collection[str], common: Collection[str], only_packaged: bool) -> None:
    key, value = override.key_or_group.removeprefix("/"), override.value()
    if key != SEVERAL and (key in (*PRESETS, *GROUPS) or "/" in key) and "[" in str(override.input_line):
        names = ",".join(_names(value))
        raise ConfigError(
            f"{key} must be one of its choices (got a list). Choose one; -m {key}={names} starts a run for each."
        )
    if key == "hydra.searchpath":
        for place in _names(value):
            folder = place.removeprefix("file://")
            fits = ":" in folder or Path(folder).is_dir()
            require(fits, f"hydra.searchpath must hold folders that exist (got {place}). Correct it, or leave it out.")
    if key.startswith("hydra") or "/" in key:
        return
    if key in (*PRESETS, *GROUPS) and not override.is_delete() and value is None:
        raise ConfigError(f"{key} must be one of its choices (got null). Leave it out, or choose one.")
    if key not in PRESETS and (only_packaged or key.partition(".")[0] not in GROUPS):
        check_key(key, known, common)


@contextmanager
def hydra_errors_as_config_errors() -> Iterator[None]:
    """Raises errors of Hydra and OmegaConf within the block as errors that are addressed to the user.

    Raises:
        ConfigError: Hydra or OmegaConf rejected the configuration.
    """
    try:
        yield
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        if isinstance(error, MissingConfigException) and "/" in (error.missing_cfg_file or ""):
            raise _missing_choice(str(error.missing_cfg_file), sorted(error.options or ())) from error
        # OmegaConf adds lines about its types.
        raise ConfigError(str(error).partition("\n    full_key: ")[0]) from error


def _missing_choice(choice: str, known: list[str]) -> ConfigError:
    group, _, name = choice.rpartition("/")
    if group == "hydra/launcher" and (extra := name.partition("_")[0]) in ("joblib", "submitit"):
        return ConfigError(f"{group}={name} is not installed. Install it with: pip install 'recurrl[{extra}]'")
    if is_custom(name) and group in GROUPS:
        return ConfigError(
            f"{group}={name} can be given only on the command line. In the defaults of a yaml, name a yaml in the "
            f"folder {group} with the line '{plugins.key_of(group).partition('.')[2]}: {name}'."
        )
    return plugins.unknown_choice(group, group, name, known or (choice_names(group) if group in GROUPS else ()))


def compose(overrides: Sequence[str], config_dir: str | Path | None = None, is_run: bool = True) -> DictConfig:
    """The configuration that the overrides of a command line compose. Also sets ``HydraConfig``.

    Args:
        overrides: as for ``recurrl-train``.
        config_dir: a folder with YAML files of the user.
        is_run: the configuration is run, not only shown.

    Raises:
        ConfigError: an override is wrong.
    """
    if options := " ".join(text for text in overrides if text.startswith("-")):
        raise ConfigError(
            f"Options are for recurrl-train only (got {options}). From Python, call train with overrides; instead of a "
            "sweep, once for each value."
        )
    search = [] if config_dir is None else [f"hydra.searchpath=[{text_of(f'file://{Path(config_dir).resolve()}')}]"]
    with hydra_errors_as_config_errors(), hydra.initialize_config_module("recurrl.configs", version_base="1.3"):
        composed = hydra.compose("train", prepared([*overrides, *search], is_run), return_hydra_config=True)
        HydraConfig.instance().set_config(composed)
        with read_write(composed), open_dict(composed):
            del composed["hydra"]
        check_choices(composed)
    return composed


def check_choices(composed: DictConfig) -> None:
    """Checks that each group has one choice, and that a new run's environment is one that its choice is made for.

    A list of loggers becomes the logger's name, because Hydra merges the values of a list's choices.

    Raises:
        ConfigError: either does not hold; the message says what to choose instead.
    """
    choices, overrides = HydraConfig.get().runtime.choices, parsed([*job_overrides(), *job_overrides("hydra")])
    for group in (group for group in GROUPS if group in composed and group not in choices):
        names = [name for each in overrides if each.key_or_group == group for name in _names(each.value())]
        require(
            group == SEVERAL and bool(names),
            f"{group} must be one of its choices (got a list in a yaml). Choose one; the command line takes several "
            "loggers.",
        )
        composed.logger.name = [
            each if is_custom(each) else _declared(group, each, overrides)["name"] for each in names
        ]
    choice, env_id = choices.get("env"), value_of(composed, "env.id")
    if choice and not is_custom(choice) and isinstance(env_id, str) and value_of(composed, "resume") is None:
        declared, source = _declared("env", choice, overrides), value_of(composed, "env.source")
        its_own = " or ".join([str(declared.get("id")), *declared.get("ids", ())])
        if not plugins.is_declared_for(env_id, declared):
            raise ConfigError(
                f"env.id must be {its_own} with env={choice} (got {env_id}), because the other settings of "
                f"env={choice} are for that environment. Use "
                f"env={plugins.choice_for(env_id)}{'' if source == 'gymnasium' else f' env.source={source}'} "
                f"env.id={env_id}."
            )


def _declared(group: str, choice: str, overrides: Sequence[Override]) -> dict[str, Any]:
    """The values of a choice of a group, whatever else the command line sets."""
    if choice in plugins.yaml_names(group):
        return plugins.yaml_values(group, choice)
    search = [str(each.input_line) for each in overrides if each.key_or_group == "hydra.searchpath"]
    return plain(hydra.compose("train", [f"{group}={choice}", *search])[group], resolve=False)


def job_overrides(of: str = "task") -> list[str]:
    """The job's overrides as typed: an interpolation in one refers to the run's configuration, not to Hydra's.

    Args:
        of: ``task`` for keys of the run, ``hydra`` for Hydra's own.
    """
    hydra_config: Any = HydraConfig.get()
    return list(plain(hydra_config.overrides, resolve=False)[of])


def keys_set(override: Override) -> list[str]:
    """The keys that an override sets; of a dictionary those within it, because Hydra leaves the others as they are."""
    return list(flat({override.key_or_group.removeprefix("/"): override.value()}))


def overridden_keys(overrides: Sequence[str]) -> set[str]:
    """The keys that a command line sets; a choice of a group counts as a value of its key, such as ``cell.name``."""
    keys = {key for each in parsed(overrides) if not each.is_delete() for key in keys_set(each)}
    return {plugins.key_of(key) if key in GROUPS else key for key in keys}


def text_of(value: Any) -> str:
    """A value in the grammar of overrides.

    Raises:
        ConfigError: the value has no form on a command line.
    """
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{text_of(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple | ListConfig):
        return "[" + ",".join(map(text_of, value)) + "]"
    if value is None or isinstance(value, Real):
        return "null" if value is None else str(value).lower()
    if not isinstance(value, str | Path):
        raise ConfigError(f"{value!r} cannot be a value of a configuration. Use numbers, strings, lists or mappings.")
    if _PLAIN.fullmatch(text := str(value)) and text.lower() not in _WORDS:
        return text
    return QuotedString(text, Quote.single).with_quotes()


def overrides_of(config: Mapping[str, Any]) -> list[str]:
    """A configuration as overrides: choices of groups first, then values.

    Raises:
        ConfigError: a value has no form on a command line.
    """
    choices, values = [], []
    for key, value in config.items():
        if key in (*PRESETS, *GROUPS) and isinstance(value, str):
            choices.append(f"{key}={value}")
        elif isinstance(value, Mapping):
            name = value.get("name")
            if key == "env" and "source" in value and isinstance(name, str) and name not in yaml_names(key):
                # The name of a user's yaml, whose values are all here.
                name = source if is_custom(source := str(value["source"])) else inherited_choice(key)
            names = name if isinstance(name, list) else [name]
            if key in GROUPS and all(
                isinstance(each, str) and (is_custom(each) or each in yaml_names(key)) for each in names
            ):
                choices.append(f"{key}={name if isinstance(name, str) else text_of(name)}")
            parts = dict(value)
            if key == "env" and {"source", "kwargs"} <= value.keys():
                # Whole: arguments of the preset that the run did without would return if both were merged.
                values += ["~env.kwargs", f"+env.kwargs={text_of(parts.pop('kwargs'))}"]
            values += [f"{key}.{path}={text_of(inner)}" for path, inner in flat(parts).items()]
        else:
            values.append(f"{key}={text_of(value)}")
    return choices + values
