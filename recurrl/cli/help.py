"""The text of ``--help``, and configurations in which a comment explains each key; the words are the schema's."""

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recurrl.config.composed import as_schema, chosen_options, plain, with_defaults
from recurrl.config.keys import flat, flow, keys_of
from recurrl.config.plugins import GROUPS, PRESETS, yaml_names

_HEAD = """\
Trains a recurrent policy with PPO or GRPO. Without arguments: a GRU on CartPole with its velocities hidden.

Usage: recurrl-train [option ...] [group=choice ...] [key=value ...]

Examples:
  recurrl-train                                            the default task, in about twenty seconds
  recurrl-train cell=lstm frames_per_batch=2048 seed=1     other choices and values
  recurrl-train experiment=cartpole_grpo                   a tuned set of choices and values
  recurrl-train env=gym env.id=Acrobot-v1 env.mask=[4,5]   any registered Gymnasium environment
  recurrl-train -m cell=gru,lstm seed=0,1                  a sweep: four jobs
  recurrl-train -m hparams_search=ppo                      a search for better values, by Optuna
  recurrl-train resume=outputs/<date>/<time> total_frames=100_000
  recurrl-train cell=my_package.window_cell:Window         a custom cell, in the folder examples/extending

Options, before the rest:
  -m                  sweep over values separated by commas
  --config-dir DIR    a folder with your YAML files, as DIR/cell/mine.yaml for cell=mine
  --cfg job           print all keys and values of a run with their meaning, and exit
  --help, --version, --hydra-help (Hydra's other options)

Groups and their choices (group=choice):

"""
_AFTER_GROUPS = """\
All but experiment and hparams_search also take package.module:Name, a custom class or function.

The most used keys and their values (key=value); recurrl-train --cfg job lists every key:

"""
_FOOT = """
Results go to outputs/<date>/<time>: metrics.csv, summary.json, learning_curve.png, checkpoints.
All keys by group, with their ranges: docs/configuration.md.
"""
MAIN_KEYS = (
    *("seed", "device", "num_threads", "total_frames", "frames_per_batch", "slice_len", "minibatch_slices", "epochs"),
    *("lr", "resume", "env.id", "env.num_envs", "env.mask", "cell.hidden_size", "algorithm.gamma"),
)
_COLUMN, _WIDTH = 36, 120


def help_of(composed: DictConfig, config_dir: str | None) -> str:
    """The text of ``--help``.

    Args:
        composed: the configuration that the rest of the command line composes.
        config_dir: a folder with YAML files of the user.

    Raises:
        ConfigError: a key or a value is wrong.
    """
    values, texts = _explanations(composed)
    flat_values = flat(values)
    keys = (line for key in MAIN_KEYS for line in _commented(f"{key}: {flow(flat_values[key])}", texts[key]))
    groups = (f"{line}\n" for line in _groups(config_dir))
    return "".join([_HEAD, *groups, _AFTER_GROUPS, *(f"{line}\n" for line in keys), _FOOT])


def explained(composed: DictConfig) -> str:
    """A configuration as YAML, with comments that say what its keys mean.

    Raises:
        ConfigError: a key or a value is wrong.
    """
    if not OmegaConf.missing_keys(with_defaults(composed)):
        as_schema(composed)  # rejects values out of range
    return "\n".join(_lines(*_explanations(composed))) + "\n"


def _explanations(composed: DictConfig) -> tuple[dict[str, Any], dict[str, str]]:
    """The values of a configuration, and the meanings of its keys."""
    keys = keys_of(chosen=chosen_options(composed)).items()
    texts = {key: meaning.text for key, (kind, meaning) in keys if not is_dataclass(kind)}
    return plain(with_defaults(composed), resolve=False), texts


def _groups(config_dir: str | None) -> Iterator[str]:
    for group in sorted([*GROUPS, *PRESETS]):
        custom = () if config_dir is None else (path.stem for path in Path(config_dir, group).glob("*.yaml"))
        line, indent = f"{group}: {', '.join(sorted({*yaml_names(group), *custom}))}", " " * (len(group) + 2)
        yield textwrap.fill(line, _WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def _lines(values: Mapping[str, Any], texts: Mapping[str, str], prefix: str = "") -> Iterator[str]:
    # Plain keys first, then groups.
    for key, value in sorted(values.items(), key=lambda item: f"{prefix}{item[0]}" not in texts):
        path, indent = f"{prefix}{key}", "  " * prefix.count(".")
        if path in texts:
            yield from _commented(f"{indent}{key}: {flow(value)}", texts[path])
        else:
            yield f"{indent}{key}:"
            yield from _lines(value, texts, f"{path}.")


def _commented(line: str, text: str) -> Iterator[str]:
    if not text:
        yield line
        return
    column = max(_COLUMN, len(line) + 2)
    first, *more = textwrap.wrap(text, max(40, _WIDTH - column - 2))
    yield f"{line:<{column}}# {first}"
    yield from (f"{'':<{column}}# {each}" for each in more)
