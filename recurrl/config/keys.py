"""The dotted keys of a configuration: their names, suggestions for unknown ones, and differences between two."""

from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_type_hints

import yaml  # type: ignore[import-untyped]

from recurrl.config.options import Meaning, meaning_of
from recurrl.config.plugins import GROUPS, PACKAGED_OPTIONS, key_of, nearest
from recurrl.config.run import TrainConfig
from recurrl.errors import ConfigError, require

FREE = "env.kwargs"
"""Below this key are an environment's arguments, which are not in the schema."""

WRAPPERS = "env.wrappers"
"""The only list whose entries may be mappings."""

OTHER_NAMES: dict[str, str] = yaml.safe_load(Path(__file__).with_name("other_names.yaml").read_text("utf-8"))
"""Other libraries' names for each of our keys; in a key, ``{}`` stands for the other library's name."""

SYNONYMS = {theirs: ours.format(theirs) for ours, names in OTHER_NAMES.items() for theirs in names.split()}


def keys_of(
    schema: type = TrainConfig, prefix: str = "", chosen: Mapping[str, type] = MappingProxyType({})
) -> dict[str, tuple[Any, Meaning]]:
    """The type and the meaning of each key of a schema, by its dotted path; includes groups and the keys within them.

    Args:
        schema: a dataclass.
        prefix: the prefix of its keys, with a dot at its end.
        chosen: the dataclass of options of each group whose choice is known; other groups have only the options that
            are common to all their choices.
    """
    hints, keys = {**get_type_hints(schema), **chosen}, dict[str, tuple[Any, Meaning]]()
    for field in fields(schema):
        path, kind = prefix + field.name, hints[field.name]
        keys[path] = kind, meaning_of(field)
        if is_dataclass(kind):
            keys |= keys_of(kind, f"{path}.")  # type: ignore[arg-type]
    return keys


def packaged_keys() -> set[str]:
    """The dotted paths of all keys of all choices of the package."""
    choices = ((f"{group}.", options) for group in GROUPS for options in PACKAGED_OPTIONS[group].values())
    return {*keys_of()}.union(*(keys_of(options, prefix) for prefix, options in choices))


def check_key(path: str, known: Collection[str], common: Collection[str] | None = None) -> None:
    """Rejects a dotted key that is not among the known ones, and suggests the nearest of them.

    Args:
        path: the key.
        known: all keys of the run's choices; if the choices are not known, of all choices.
        common: the keys that every run has, if its choices are not known.

    Raises:
        ConfigError: the key is unknown.
    """
    if path in known or path.startswith(f"{FREE}."):
        return
    group, _, last = path.rpartition(".")
    choices = PACKAGED_OPTIONS[group].items() if group in GROUPS else ()
    if owners := " or ".join(name for name, options in choices if path in keys_of(options, f"{group}.")):
        raise ConfigError(
            f"{path} is an option of {group}={owners}, but this run has another {group}. Leave it out, or choose "
            f"{group}={owners}. If you did not set it yourself, either the defaults of a yaml did (remove them), "
            f"or {key_of(group)}=... did, which keeps the options of the previous choice (write {group}=... instead)."
        )
    require(path != "callbacks", "callbacks are passed to recurrl.train, in Python, and have no key.")
    if last in SYNONYMS:
        raise ConfigError(f"Unknown configuration key {path!r}. Did you mean {SYNONYMS[last]}?")
    raise ConfigError(f"Unknown configuration key {path!r}. {_advice(path, known, common)}")


def _advice(path: str, known: Collection[str], common: Collection[str] | None) -> str:
    group, _, last = path.rpartition(".")
    # Without a group, "name" could be the name of any group.
    names = {key: key.rpartition(".")[2] for key in sorted(known) if group or not key.endswith(".name")}
    name = nearest(last, list(names.values()))
    # A key in another group is suggested only if its name is the same: a similar name there means something else.
    near = [key for key in names if names[key] == name and (name == last or not group or key == f"{group}.{name}")]
    if near:
        return f"Did you mean {' or '.join(near)}?"
    inside = [key.removeprefix(f"{group}.") for key in common or known if group and key.startswith(f"{group}.")]
    listed = ", ".join(key for key in inside if key != "name")
    group_hint = f"{group} has: {listed}. " * bool(listed)
    group_hint += f"An argument of the environment is {FREE}.{last}. " * (group == "env")
    choice_hint = f"recurrl-train --cfg job {group}=... lists those of a choice." if group in GROUPS and common else ""
    return (group_hint + choice_hint).strip() or "recurrl-train --cfg job lists all keys."


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The dotted keys that differ between two plain configurations, with both values; "absent" for a missing one."""
    was, now = flat(before), flat(after)
    both = ((key, was.get(key, "absent"), now.get(key, "absent")) for key in was | now)
    return {key: (old, new) for key, old, new in both if was.get(key) != now.get(key)}


def described(changes: Mapping[str, tuple[Any, Any]]) -> str:
    """The :func:`differences` as text."""
    return ", ".join(f"{key} is {now} and was {was}" for key, (was, now) in changes.items())


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens nested dictionaries into one with dotted keys."""
    leaves: dict[str, Any] = {}
    for key, value in values.items():
        leaves |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return leaves


def flow(value: Any) -> str:
    """A value as YAML on one line."""
    return yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True).removesuffix("...\n").strip()
