"""Converts the configuration that Hydra composed to plain dataclasses, which all code behind the command line uses.

Invalid configurations raise a :class:`ConfigError`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from recurrl.config.keys import WRAPPERS, check_key, key_paths, paths_of, typed_value
from recurrl.config.plugins import GROUPS, default_name, key_of, options_class
from recurrl.config.plugins import values as values_of_choice
from recurrl.config.run import AUTO_DEVICE, AUTO_PRECISION, TrainConfig
from recurrl.errors import ConfigError


def typed(config: DictConfig) -> TrainConfig:
    """The dataclasses of a composed configuration, with ``device=auto`` and ``precision=auto`` resolved.

    Raises:
        ConfigError: a key that does not exist, a value of the wrong type, or a missing value; or the environment
            variable that ``precision=auto`` reads has an unknown one.
    """
    result = as_schema(config)
    if result.device == AUTO_DEVICE:
        import torch  # only here, so that typos are reported without waiting for it

        result.device = "cuda" if torch.cuda.is_available() else "cpu"
    if result.precision.name == AUTO_PRECISION:
        from recurrl.recurrent import precision  # likewise

        result.precision.name = precision.auto_mode()
    return result


def as_schema(config: DictConfig) -> TrainConfig:
    """The same, with ``device=auto`` and ``precision=auto`` left as they are.

    Raises:
        ConfigError: likewise.
    """
    chosen = chosen_options(config)
    merged = with_defaults(config, chosen)
    try:
        _check_groups(merged)
        result = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        raise ConfigError(_untypable(error, config)) from error
    assert isinstance(result, TrainConfig)
    _check_lists(result, key_paths(chosen=chosen))
    return result


def with_defaults(config: DictConfig, chosen: Mapping[str, type]) -> DictConfig:
    """A composed configuration with its types, and with the defaults of a user's own options.

    Raises:
        ConfigError: a key that does not exist, or a value of the wrong type.
    """
    known = set(key_paths(chosen=chosen))
    for path in paths_of(plain(config, resolve=False), known):
        check_key(path, known)
    schema = OmegaConf.structured(TrainConfig)
    for group, options in chosen.items():
        try:
            schema[group] = OmegaConf.structured(options)
        except (OmegaConfBaseException, ValueError) as error:
            raise ConfigError(
                f"The options of {group}={value_of(config, key_of(group))}, {options.__name__}, cannot be keys of a "
                f"configuration: {str(error).splitlines()[0].rstrip('.')}. Use numbers, strings, lists and "
                "dictionaries."
            ) from error
    try:
        merged = OmegaConf.merge(schema, config)
    except OmegaConfBaseException as error:
        raise ConfigError(_untypable(error, config)) from error
    assert isinstance(merged, DictConfig)
    return merged


def chosen_options(config: DictConfig) -> dict[str, type]:
    """The options of each group's choice.

    Raises:
        ConfigError: a choice does not exist.
    """
    chosen = {}
    for group in GROUPS:
        name, values = value_of(config, key_of(group)), value_of(config, group)
        if isinstance(name, str) and name != "???" and isinstance(values, DictConfig):
            chosen[group] = options_class(group, name)
    return chosen


def _check_groups(merged: Any) -> None:
    """Rejects a group that is missing, in a run of an older version, or that lacks several values: a user's yaml that
    does not inherit from one of ours.
    """
    missing = sorted(OmegaConf.missing_keys(merged))
    for group in (key for key in missing if key in GROUPS):
        raise ConfigError(
            f"The configuration has no group {group!r}; runs of older versions may lack it. Add "
            f"{group}={default_name(group)}, the default, to the command line, or "
            f"'{group}: {values_of_choice(group, default_name(group))}' to the configuration that the run saved."
        )
    for group in dict.fromkeys(key.partition(".")[0] for key in missing):
        lacking = [key.removeprefix(f"{group}.") for key in missing if key.startswith(f"{group}.")]
        if len(lacking) > 1:
            base = "gym" if group == "env" else "one of its choices"
            raise ConfigError(
                f"The configuration group {group!r} lacks {', '.join(lacking)}. A yaml of your own must inherit the "
                f"rest: begin it with the line 'defaults: [{base}, _self_]'."
            )


def plain(config: DictConfig, resolve: bool = True) -> dict[str, Any]:
    """A configuration as plain values.

    Args:
        config: of any kind.
        resolve: replace interpolations by what they refer to.
    """
    values = OmegaConf.to_container(config, resolve=resolve)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def value_of(config: DictConfig, key: str) -> Any:
    """One value of a composed configuration; None if it is not given.

    Raises:
        ConfigError: it refers to a key that does not exist.
    """
    try:
        return OmegaConf.select(config, key)
    except OmegaConfBaseException as error:
        raise ConfigError(_untypable(error, config)) from error


def _check_lists(config: TrainConfig, keys: Iterable[str]) -> None:
    """Rejects nested values in lists, which OmegaConf accepts. Those of ``env.wrappers`` have their own check."""
    for key in keys:
        if key == WRAPPERS:
            continue
        value = typed_value(config, key)
        nested = [item for item in value if isinstance(item, list | dict)] if isinstance(value, list) else []
        if nested:
            raise ConfigError(
                f"The configuration key {key!r} takes a list of plain values, and {nested[0]} is not one. Give "
                f"{key}=[...], with commas between its values."
            )


def _untypable(error: OmegaConfBaseException, config: DictConfig) -> str:
    key = getattr(error, "full_key", None)
    reason = str(error).splitlines()[0].rstrip(".")
    if "missing mandatory" in reason:
        return f"The configuration key {key!r} is required and has no default. Add {key}=... to the command line."
    if "is not a ListConfig" in reason:
        return f"The configuration key {key!r} must be a list. Give {key}=[...], with commas between its values."
    if "could not be converted to Integer" in reason:
        # A list is given as a whole, so the advice shows all of it.
        whole_key, place, _ = str(key).partition("[")
        value = OmegaConf.select(config, whole_key)
        whole = _as_integers(value) if isinstance(value, ListConfig) == bool(place) else None
        if whole is not None:
            return (
                f"The configuration key {whole_key!r} takes integers, without a decimal point or exponent. Give "
                f"{whole_key}={whole}."
            )
    return f"The configuration key {key!r}: {reason}. Give a value of that type."


def _as_integers(value: Any) -> str | None:
    """A number or a list of numbers written as integers; None if that would change a value."""
    if isinstance(value, ListConfig):
        items = [_as_integers(item) for item in value]
        return None if None in items else f"[{','.join(map(str, items))}]"
    if isinstance(value, float) and not value.is_integer():
        return None
    return f"{int(value):_}" if isinstance(value, int | float) and not isinstance(value, bool) else None
