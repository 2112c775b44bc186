"""Converts a configuration composed by Hydra to plain dataclasses, which all code behind the command line uses."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_args

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException, ValidationError

from recurrl.config import plugins
from recurrl.config.keys import WRAPPERS, check_key, keys_of
from recurrl.config.options import Meaning, meaning_of, words_of
from recurrl.config.plugins import GROUPS
from recurrl.config.run import AUTO_DEVICE, AUTO_PRECISION, TrainConfig
from recurrl.errors import ConfigError, require


def typed(config: DictConfig) -> TrainConfig:
    """The dataclasses of a composed configuration, with ``device=auto`` and ``precision=auto`` resolved.

    Raises:
        ConfigError: as :func:`as_schema`; or the environment variable that ``precision=auto`` reads has an unknown
            value.
    """
    return resolved(as_schema(config))


def resolved(config: TrainConfig) -> TrainConfig:
    """Replaces ``device=auto`` and ``precision=auto`` in ``config`` by what they stand for, and returns it.

    Raises:
        ConfigError: the environment variable that ``precision=auto`` reads has an unknown value.
    """
    import torch  # only here: it takes seconds, and errors about typos should not wait for it

    from recurrl.recurrent import precision

    if config.device == AUTO_DEVICE:
        config.device = "cuda" if torch.cuda.is_available() else "cpu"
    if config.precision == AUTO_PRECISION:
        config.precision = precision.auto_mode()
    return config


def as_schema(config: DictConfig) -> TrainConfig:
    """The dataclasses of a composed configuration.

    Raises:
        ConfigError: a key that does not exist, a value of the wrong type or out of its range, or a missing value.
    """
    merged = with_defaults(config)
    try:
        result = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        raise _error(error, config) from error
    assert isinstance(result, TrainConfig)
    check_values(result)
    return result


def check_values(options: Any, prefix: str = "") -> None:
    """Rejects values out of range, and names that are not among a key's choices.

    Args:
        options: a dataclass; dataclasses nested in it are checked too.
        prefix: the prefix of its keys, with a dot at its end.

    Raises:
        ConfigError: a value is rejected; the message says which values the key takes.
    """
    for key, value, meaning in values_in(options, prefix):
        if isinstance(value, str) and meaning.choices:
            require(value in meaning.choices, f"{key} must be one of {', '.join(meaning.choices)} (got {value}).")
        items = {f"{key}[{place}]": item for place, item in enumerate(value)} if isinstance(value, list) else {}
        for name, item in (items or {key: value}).items():
            # OmegaConf accepts nested values in any list.
            is_plain = not isinstance(item, list | dict) or key == WRAPPERS or not items
            require(is_plain, f"{name} must be a plain value (got {item}).")
            if meaning.range is not None and isinstance(item, int | float):
                require(meaning.range.holds(item), f"{name} must be {meaning.range.words} (got {item}).")


def values_in(options: Any, prefix: str = "") -> Iterator[tuple[str, Any, Meaning]]:
    """The dotted keys of a dataclass of options, nested ones included, with their values and meanings."""
    for field in fields(options):
        key, value = prefix + field.name, getattr(options, field.name)
        if is_dataclass(value):
            yield from values_in(value, f"{key}.")
        else:
            yield key, value, meaning_of(field)


def with_defaults(config: DictConfig) -> DictConfig:
    """A composed configuration with the schema's types, and with the values that custom choices' YAML files omit.

    Raises:
        ConfigError: a key that does not exist, or a value of the wrong type.
    """
    chosen, values = chosen_options(config), plain(config, resolve=False)
    schema = OmegaConf.structured(TrainConfig)
    try:
        for group, options in chosen.items():
            schema[group] = OmegaConf.structured(options)
            name = value_of(config, plugins.key_of(group))
            names = name if isinstance(name, ListConfig) else [name]
            for each in filter(plugins.is_custom, reversed(names)):  # of several, the last one's values, as in Hydra
                values[group] = plugins.custom_values(group, each) | values[group]
    except (OmegaConfBaseException, ValueError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ConfigError(
            f"{group}: the options of {options.__name__} must be numbers, strings, lists or dictionaries ({reason})."
        ) from error
    keys = keys_of(chosen=chosen)
    try:
        merged = OmegaConf.merge(schema, _converted(values, "", keys))
    except OmegaConfBaseException as error:
        if isinstance(error, ConfigKeyError):
            check_key(str(error.full_key), keys)
        raise _error(error, OmegaConf.create(values)) from error
    assert isinstance(merged, DictConfig)
    return merged


def chosen_options(config: DictConfig) -> dict[str, type]:
    """The dataclass of options of each group's choice.

    Raises:
        ConfigError: a choice does not exist.
    """
    chosen = {}
    for group in GROUPS:
        name, values = value_of(config, plugins.key_of(group)), value_of(config, group)
        names = name if isinstance(name, ListConfig) else [name]
        if all(isinstance(each, str) and each != "???" for each in names) and isinstance(values, DictConfig):
            chosen[group] = plugins.merged_options([plugins.options_class(group, each) for each in names])
    return chosen


def plain(config: DictConfig, resolve: bool = True) -> dict[str, Any]:
    """A configuration as plain values.

    Args:
        config: any OmegaConf mapping.
        resolve: replace interpolations by what they refer to.
    """
    values = OmegaConf.to_container(config, resolve=resolve)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def value_of(config: DictConfig, key: str) -> Any:
    """One value of a composed configuration; None if there is none.

    Raises:
        ConfigError: the value refers to a key that does not exist.
    """
    try:
        return OmegaConf.select(config, key)
    except OmegaConfBaseException as error:
        raise _error(error, config) from error


def _converted(value: Any, key: str, keys: Mapping[str, tuple[Any, Meaning]]) -> Any:
    """Nested values in which whole numbers such as 1e6 are integers where the schema wants integers."""
    if isinstance(value, dict):
        return {name: _converted(inner, f"{key}.{name}".lstrip("."), keys) for name, inner in value.items()}
    if isinstance(value, list):
        return [_converted(item, key, keys) for item in value]
    kind = keys[key][0] if key in keys else None
    kinds = (kind, *get_args(kind))
    if bool in kinds and type(value) in (int, float):
        return f"the number {value}"  # OmegaConf would convert the number itself to true or false
    return int(value) if int in kinds and isinstance(value, float) and value.is_integer() else value


def _error(error: OmegaConfBaseException, config: DictConfig) -> ConfigError:
    key, reason = str(getattr(error, "full_key", None)), str(error).splitlines()[0].rstrip(".")
    if isinstance(error, ValidationError):
        keys, name = keys_of(chosen=chosen_options(config)), key.partition("[")[0]
        if name in keys:  # else within a dictionary
            value = OmegaConf.select(OmegaConf.create(plain(config, resolve=False)), name)
            words = words_of(*keys[name])
            is_one = words.startswith("a list") and not isinstance(value, ListConfig)
            hint = f" Use {name}=[...], with commas between its values." * is_one
            return ConfigError(f"{name} must be {words} (got {'null' if value is None else value}).{hint}")
    if "missing mandatory" not in reason:
        return ConfigError(f"{key} has a value that cannot be used ({reason}). Correct it.")
    group = key.partition(".")[0]
    base = f"defaults: [{plugins.inherited_choice(group)}, _self_]" if group in GROUPS else ""
    advice = f" A custom yaml inherits the values of another one with a line such as '{base}'." * bool(base)
    if base and plugins.is_custom(str(value_of(config, plugins.key_of(group)))):
        advice = " Or give it a default where it is declared: option(..., default=...)."
    return ConfigError(f"{key} is required and has no value. Add {key}=... to the command line.{advice}")
