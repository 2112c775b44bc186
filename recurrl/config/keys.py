"""The dotted keys of a configuration: their names, their values, and differences between two configurations."""

import difflib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import reduce
from types import MappingProxyType
from typing import Any, get_type_hints

from recurrl.config.options import Meaning, meaning_of
from recurrl.config.plugins import GROUPS, ROOMS, packaged
from recurrl.config.run import TrainConfig
from recurrl.errors import ConfigError

FREE = "env.kwargs"
"""Below this key are an environment's arguments, which are not in the schema."""

WRAPPERS = "env.wrappers"
"""The only list whose entries may be mappings."""

RENAMED = {
    "policy.encoder_sizes": "encoder.sizes",
    "policy.image_encoder": "encoder.images",
}
"""Old names of keys."""

SYNONYMS = {
    "action_noise": "policy.initial_std",
    "batch_size": "minibatch_slices",
    "clip_coef": "algorithm.clip_epsilon",
    "clip_param": "algorithm.clip_epsilon",
    "clip_range": "algorithm.clip_epsilon",
    "clip_range_vf": "algorithm.clip_value",
    "cuda": "device",
    "ent_coef": "algorithm.entropy_coeff",
    "env_id": "env.id",
    "env_name": "env.id",
    "gae_lambda": "algorithm.lmbda",
    "lambda": "algorithm.lmbda",
    "learning_rate": "lr",
    "log_std_init": "policy.initial_std",
    "lstm_hidden_size": "cell.hidden_size",
    "mini_batch_size": "minibatch_slices",
    "minibatch_size": "minibatch_slices",
    "model": "cell",
    "n_envs": "env.num_envs",
    "n_epochs": "epochs",
    "n_lstm_layers": "cell.num_layers",
    "n_steps": "frames_per_batch",
    "norm_adv": "algorithm.normalize_advantage",
    "num_minibatches": "minibatch_slices",
    "num_sgd_iter": "epochs",
    "num_steps": "frames_per_batch",
    "rnn": "cell",
    "rollout_length": "frames_per_batch",
    "seq_len": "slice_len",
    "sequence_length": "slice_len",
    "timesteps": "total_frames",
    "total_steps": "total_frames",
    "total_timesteps": "total_frames",
    "train_batch_size": "frames_per_batch",
    "update_epochs": "epochs",
    "vf_coef": "algorithm.critic_coeff",
    "wandb": "logger",
}
"""Names of our keys in other libraries (Stable-Baselines3, CleanRL, RLlib) and papers."""


def keys_of(
    schema: type = TrainConfig, prefix: str = "", chosen: Mapping[str, type] = MappingProxyType({})
) -> Iterator[tuple[str, Any, Meaning]]:
    """The dotted path of each key of a schema, those of groups included, its type, and what it means.

    Args:
        schema: a dataclass.
        prefix: of its keys, with a dot at its end.
        chosen: the options of groups whose choice is known; of others, the options that all choices have.
    """
    hints = {**get_type_hints(schema), **chosen}
    for field in fields(schema):
        path, kind = prefix + field.name, hints[field.name]
        yield path, kind, meaning_of(field)
        if is_dataclass(kind):
            yield from keys_of(kind, f"{path}.")  # type: ignore[arg-type]


def key_paths(
    schema: type = TrainConfig, prefix: str = "", chosen: Mapping[str, type] = MappingProxyType({})
) -> list[str]:
    """Only the paths of :func:`keys_of`."""
    return [path for path, _, _ in keys_of(schema, prefix, chosen)]


def packaged_keys() -> set[str]:
    """The dotted paths of all keys of all choices of the package."""
    found = set(key_paths())
    for group in ROOMS:
        for options in packaged(group).values():
            found |= set(key_paths(options, f"{group}."))
    return found


def typed_value(config: TrainConfig, key: str) -> Any:
    """The value behind a dotted key of a typed configuration."""
    return reduce(getattr, key.split("."), config)


def check_key(path: str, known: Collection[str]) -> None:
    """Rejects a dotted key that is not among the known ones, and suggests the nearest of them.

    Args:
        path: the key.
        known: all keys of the run's choices.

    Raises:
        ConfigError: the key is unknown.
    """
    if path in known or path.startswith(f"{FREE}."):
        return
    if path in RENAMED:
        raise ConfigError(f"The configuration key {path!r} is now {RENAMED[path]}. Give {RENAMED[path]}=...")
    group, _, last = path.rpartition(".")
    if owners := " or ".join(_owners(group, path)):
        raise ConfigError(
            f"{path} is an option of {group}={owners}, but this run has another {group}. Leave it out, or choose "
            f"{group}={owners}."
        )
    if last in SYNONYMS:
        raise ConfigError(f"Unknown configuration key {path!r}. Did you mean {SYNONYMS[last]}?")
    known = {key for key in known if key not in GROUPS or "." not in path}
    near = difflib.get_close_matches(path, known, n=3, cutoff=0.6)
    last_names = {key.rpartition(".")[2] for key in known}
    lasts = {last} if near else {last, *difflib.get_close_matches(last, last_names, n=1, cutoff=0.75)}
    near += [key for key in sorted(known) if key.rpartition(".")[2] in lasts and key not in near]
    advice = f"Did you mean {' or '.join(near)}?" if near else _advice(group, known)
    raise ConfigError(f"Unknown configuration key {path!r}. {advice}")


def _advice(group: str, known: Collection[str]) -> str:
    inside = sorted(key.removeprefix(f"{group}.") for key in known if group and key.startswith(f"{group}."))
    return f"{group} has: {', '.join(inside)}." if inside else "recurrl-train --help lists all keys."


def _owners(group: str, path: str) -> list[str]:
    """The choices of the package that have an option of this key."""
    choices = packaged(group).items() if group in ROOMS else ()
    return [name for name, options in choices if path in key_paths(options, f"{group}.")]


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The dotted keys whose values differ between two configurations of plain values, with both values."""
    was, now = flat(before), flat(after)
    return {key: (was.get(key), now.get(key)) for key in {**was, **now} if was.get(key) != now.get(key)}


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one with dotted keys."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def paths_of(values: Mapping[str, Any], known: Collection[str], prefix: str = "") -> list[str]:
    """The dotted keys of nested dictionaries. What is below a known key that is not a group is its value."""
    paths: list[str] = []
    for key, value in values.items():
        path = f"{prefix}{key}"
        paths.append(path)
        if isinstance(value, Mapping) and (path not in known or any(one.startswith(f"{path}.") for one in known)):
            paths += paths_of(value, known, f"{path}.")
    return paths
