"""Configurations that runs saved, read as untrusted input: they may be damaged or written by someone else."""

import io
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import yaml  # type: ignore[import-untyped]
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from recurrl.config.composed import plain
from recurrl.config.env import wrapper_and_arguments
from recurrl.config.keys import FREE, WRAPPERS, flat, keys_of
from recurrl.config.plugins import EXTRAS
from recurrl.errors import ConfigError, message_of, naming
from recurrl.runs.own_runs import is_own
from recurrl.runtime.run_directory import CONFIG_FILE, read_text, run_directory_of

MAX_BYTES = 2**20
"""A larger file was not written by a run."""
_NAMES = ("env.name", "logger.group", "logger.tags", "resume", "init_from", "pretrain.folder")
"""Keys whose value is never imported, whatever it looks like."""
_MAX_DEPTH = 32
_GROUPS = (*dict.fromkeys(key.partition(".")[0] for key in keys_of() if "." in key), FREE)
_CODE = re.compile(r"[^\W\d][\w.]*:[^\W\d]")


class SavedConfig(NamedTuple):
    """The configuration that a run saved.

    Attributes:
        config: its values.
        source: its file, or the checkpoint that holds it.
        is_own: a run of this user wrote the file, at this path and with these values; always false for a checkpoint.
    """

    config: DictConfig
    source: Path
    is_own: bool


def saved_config(path: Path) -> SavedConfig:
    """The configuration of the run that a path lies in.

    Raises:
        ConfigError: the file is missing, or is not as a run writes it.
    """
    file = run_directory_of(path) / CONFIG_FILE
    advice = "Correct it; or delete it and use one of the run's checkpoints, which hold the configuration too."
    with _written_by_a_run(str(file), advice):
        config = _config(_parsed(read_text(file, MAX_BYTES)))
    return SavedConfig(config, file, is_own(config, file))


def config_within(settings: Mapping[str, Any], path: Path) -> SavedConfig:
    """The configuration that a checkpoint holds.

    Raises:
        ConfigError: the configuration is not as a run writes it.
    """
    with _written_by_a_run(f"The configuration in the checkpoint {path}", "Use another checkpoint."):
        return SavedConfig(_config(dict(settings)), path, is_own=False)


@contextmanager
def _written_by_a_run(what: str, advice: str) -> Iterator[None]:
    """Turns whatever reading a malformed configuration raises into a ConfigError that names it."""
    try:
        yield
    except (ValueError, TypeError, OSError, yaml.YAMLError, OmegaConfBaseException, RecursionError) as error:
        raise ConfigError(f"{what} was not written by a run: {message_of(error)}. {advice}") from error


def code_named(config: DictConfig, source: object) -> dict[str, set[str]]:
    """The code that a saved configuration would import, by key: what looks like ``module:Name``, and ``env.packages``.

    Packages of recurrl's extras do not count, nor do their wrappers and Gymnasium's, if these have no text arguments.

    Raises:
        ConfigError: ``env.wrappers`` is malformed; the message names the source.
    """
    values = plain(config)
    env = values.get("env", {})
    texts_by_key = {key: set(filter(_CODE.match, _texts(value))) for key, value in flat(values).items()}
    with naming(source):
        texts_by_key[WRAPPERS] = set(_wrappers(env))
    env_id = str(env.get("id"))
    texts_by_key["env.id"] = {env_id} if ":" in env_id else set()
    texts_by_key["env.packages"] = {text for text in map(str, _list(env, "packages")) if not _is_of(text, EXTRAS)}
    return {key: texts for key, texts in texts_by_key.items() if texts and key not in _NAMES}


def _wrappers(env: Mapping[str, Any]) -> Iterator[str]:
    for name, arguments in map(wrapper_and_arguments, _list(env, "wrappers")):
        # Even a wrapper of these packages may write to a path that it gets (RecordVideo): trusted only without text.
        if list(_texts(arguments)) or not _is_of(name, (*EXTRAS, "gymnasium")):
            yield f"{name} with {arguments}" if arguments else name


def _list(env: Mapping[str, Any], key: str) -> list[Any]:
    """The values of a list; none if the value is not a list, which is rejected later, when all types are checked."""
    values = env.get(key)
    return values if isinstance(values, list) else []


def _is_of(name: str, packages: Collection[str]) -> bool:
    return name.partition(":")[0].partition(".")[0] in packages


def check_trusted(saved: SavedConfig, trust_packages: bool) -> None:
    """Rejects a saved configuration that names code to import, unless it is this user's own or trusted.

    Raises:
        ConfigError: the configuration is rejected; the message names the code.
    """
    if not (trust_packages or saved.is_own):
        permission = "add --trust-packages (trust_packages=True in Python)"
        check_code(code_named(saved.config, saved.source), saved.source, permission)


def check_code(named: Mapping[str, set[str]], source: Path, permission: str) -> None:
    """Rejects code named by a configuration that is not this user's own.

    Args:
        named: the code, by key.
        source: where the configuration comes from.
        permission: what to do if the user trusts it.

    Raises:
        ConfigError: there is such code; the message names it.
    """
    if named:
        texts = sorted(set().union(*named.values()))
        raise ConfigError(
            f"{source} names code that would be imported and executed: {', '.join(texts)}. None of your runs "
            f"wrote it, or it was changed or moved since. If you trust it, {permission}."
        )


def _parsed(text: str) -> Any:
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        # Nested aliases let a short text expand to more than memory holds.
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("it contains a YAML alias, which runs never write")
        # The parser takes time quadratic in the depth.
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise ValueError("it is nested too deeply")
    return OmegaConf.to_container(OmegaConf.load(io.StringIO(text)), resolve=False)


def _config(values: Any) -> DictConfig:
    if not isinstance(values, dict) or not values:
        raise ValueError("it is not a mapping of keys to values")
    for text in _texts(values):
        # An interpolation may refer to an environment variable, whose value would be logged.
        if "${" in text:
            raise ValueError(f"it contains the interpolation {text[:60]!r} instead of a value")
    for group in _GROUPS:
        within_group = reduce(lambda within, name: within.get(name, {}), group.split("."), values)
        if not isinstance(within_group, dict):
            raise ValueError(f"{group} is {within_group!r:.60}, which is not a group of settings")
    return OmegaConf.create(values)


def _texts(value: Any) -> Iterator[str]:
    """The strings in nested values."""
    if isinstance(value, Mapping | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)
    elif isinstance(value, str):
        yield value
