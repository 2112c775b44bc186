"""Changes one key of a run's configuration and looks whether anything comes of it."""

import csv
import logging
import os
import re
import shutil
import sys
import time
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, fields, is_dataclass
from logging.handlers import BufferingHandler
from operator import attrgetter
from types import UnionType
from typing import Union, get_args, get_origin

import pytest
import torch
from every_key_env import Kind
from omegaconf import OmegaConf

from recurrl import build, checkpoint
from recurrl.algorithms import algorithm, ppo
from recurrl.algorithms.gradient_signal import GradientSignal
from recurrl.config.composed import chosen_options, plain, typed
from recurrl.config.keys import flat, keys_of
from recurrl.config.options import meaning_of
from recurrl.config.plugins import GROUPS, choice_names, options_class, yaml_values
from recurrl.errors import ConfigError
from recurrl.recurrent import RecurrentModule
from recurrl.runtime import time_limit
from recurrl.runtime.run_summary import RunSummary
from recurrl.runtime.signals import StopRequest
from recurrl.validation import check_config

TINY = (
    *("device=cpu", "total_frames=64", "frames_per_batch=32", "env.num_envs=4", "env.max_episode_steps=8"),
    *("slice_len=4", "minibatch_slices=4", "epochs=2", "cell.hidden_size=8", "encoder.sizes=[8]", "lr=0.008"),
    *("algorithm.clip_epsilon=0.001", "evaluation.episodes=1", "evaluation.memory=false", "evaluation.random=false"),
    "consistency_check=false",
)
"""Two iterations in a tenth of a second, with clipping from the first steps on."""

TEXTS = {
    "env.id": ["Acrobot-v1"],
    "env.source": ["gymnasium", "memory"],
    "env.packages": [["noticed"]],
    "env.wrappers": [["gymnasium.wrappers:NormalizeReward"]],
    "env.kwargs": [{"length": 4}, {"g": 5.0}, {"sutton_barto_reward": True}, {"decks": 2}],
    "device": ["cuda"],
    "logger.id": ["another-id"],
    "logger.tags": [["another"]],
    **{key: ["another"] for key in ("env.name", "logger.project", "logger.group")},
    **{key: ["nonesuch"] for key in ("resume", "init_from", "algorithm.teacher", "pretrain.folder")},
}
"""Other values of keys that take any text, list or mapping."""

FAR = {"epochs": 8, "min_epochs_fraction": 1.0}
"""Enough gradient steps for probabilities to leave those of the rollout, in both directions."""

NOISE = {"epochs": 10, "algorithm.target_kl": None}
"""With these epochs, all gradients are taken for noise, else for signal, see :func:`observed`."""

ALWAYS_REPLAYS = {"buffer.replay_ratio": 2, "buffer.min_replay_ratio": 2}
"""An old row to each new one, with every kind of action, whether or not gradients are noise."""

EVENTS = {
    "algorithm.advantage": {"algorithm.divide_by_std": False},
    "algorithm.aggregation": {"algorithm.drop_flat_groups": False},  # else all that is left may be of one length
    **dict.fromkeys(("algorithm.target_kl", "algorithm.clip_epsilon", "algorithm.clip_epsilon_high"), FAR),
    # Episodes must end, and a horizon of less than 10 steps is none.
    "algorithm.horizon_fraction": {"algorithm.horizon_fraction": 4.0, "env.max_episode_steps": 8},
    "env.normalize_reward": {"env.reward_scale": 1000.0},
    "buffer.name": ALWAYS_REPLAYS,
    "buffer.rollouts": {"total_frames": 128, **ALWAYS_REPLAYS},
    "buffer.replay_ratio": {"total_frames": 128, **NOISE},
    "min_epochs_fraction": NOISE,
    "checkpoint.keep_last": {"total_frames": 96, "checkpoint.every_frames": 32},
    "collector.on_env_error": {"env.kwargs": {"fails": True}},
}
"""What has to happen for a key to matter."""

SLOW = {"backend": ("triton",), "collector": ("multi_async", "multi_sync", "ray"), "logger": ("wandb",)}
"""Choices that take seconds: they start processes, or run in an interpreter."""


def keys(composed):
    """All keys of a configuration that take a value."""
    return [(key, *of) for key, of in keys_of(chosen=chosen_options(composed)).items() if not is_dataclass(of[0])]


def others(key, kind, meaning, value):
    """Other legal values of a key, far from its own and near."""
    group = key.removesuffix(".name")
    if key in TEXTS:
        alternatives = TEXTS[key]
    elif group in GROUPS:
        alternatives = [name for name in choice_names(group) if name not in SLOW.get(group, ())]
    elif meaning.choices:
        alternatives = list(meaning.choices)
    elif kind is bool or bool in get_args(kind):
        alternatives = [True, False]
    elif "list" in str(kind):
        alternatives = [[], [0], [4], [1, 2]]
    else:
        alternatives = _numbers(kind, meaning, value)
    return [each for each in alternatives if each != value]


def _numbers(kind, meaning, value):
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    assert {int, float} & set(kinds), f"give other values of this key in TEXTS: {meaning.text}"
    if int in kinds:
        near = [1, 2, 32] if value is None else [value * 2, value // 2, value + 1, value - 1, 1]
    else:
        near = [1e-6, 0.5, 2.0] if value is None else [value * 1e-3, value / 2, value * 2, 0.5, 1.0, 1e-6]
    legal = [number for number in near if meaning.range is None or meaning.range.holds(number)]
    return [*legal, *([None] if type(None) in kinds else [])]


def levels(key, kind, meaning, value):
    """The values of a key that may decide whether others matter: choices, yes or no, null, and zero or one."""
    # With a final rate that equals the first, all schedules are the same.
    if key in {*TEXTS, *EVENTS, "compile", "consistency_check", "lr_final_fraction"} or key.endswith(".name"):
        return []
    deciding = [*meaning.choices, *((True, False) if kind is bool else ())]
    if type(None) in get_args(kind):
        deciding += [0.5] if value is None and float in get_args(kind) else [None]
    elif meaning.range is not None and kind is float and meaning.range.holds(0):
        deciding += [0.0, 1.0] if meaning.range.holds(1) else [0.0]
    return deciding


def changed(composed, key, value):
    """A configuration with another value; of a group's name, with the values that fit the options of that choice."""
    result = deepcopy(composed)
    group = key.removesuffix(".name")
    if key != "env.name" and group in GROUPS:
        shared = {name: of for name, of in plain(composed[group], resolve=False).items() if name != "name"}
        own = yaml_values(group, value)
        choices = {each.name: meaning_of(each).choices for each in fields(options_class(group, value))}
        kept = {name: of for name, of in shared.items() if name in own and (not choices[name] or of in choices[name])}
        OmegaConf.update(result, group, {**own, **kept}, merge=False, force_add=True)
    else:
        OmegaConf.update(result, key, value, merge=False, force_add=True)
    return result


def observed(composed, run_dir, explicit=()):
    """All that a run shows of itself: its error, or its metrics, weights, files, layers and settings of the process."""
    shutil.rmtree(run_dir, ignore_errors=True)
    run_dir.mkdir(parents=True)
    sys.modules.pop("noticed", None)
    Kind.made, seen = 0, {}
    summary, threads = RunSummary(started=time.time()), torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch, _listening(seen):
        _spy(patch, seen)
        patch.setattr(GradientSignal, "share", 0.0 if composed.epochs == NOISE["epochs"] else 1.0)
        patch.chdir(run_dir)
        try:
            config = typed(composed)
            check_config(config, explicit)
            if config.resume is not None:
                checkpoint.find_to_resume(config.resume, run_dir)
            with time_limit.time_limit(config.collector.timeout_s):
                seen["limit"] = time_limit._limit.seconds
                build.make_trainer(config, run_dir, plain(composed), summary, StopRequest(), None, explicit).fit()
        except ConfigError as error:
            return {"rejected": str(error)}
        except Exception as error:
            seen["error"] = f"{type(error).__name__}: {error}"
        finally:
            seen["threads"] = torch.get_num_threads()
            torch.set_num_threads(threads)
    seen |= {f"summary/{name}": value for name, value in asdict(summary).items() if "time" not in name}
    seen |= _of_algorithm(seen.pop("algorithm", None))
    seen |= {f"logger/{name}": value for name, value in _of_trackers(seen.pop("trackers", {})).items()}
    seen["noticed"] = "noticed" in sys.modules
    seen["files"] = sorted({re.sub(r"[\d.]{5,}.*", "", str(path.relative_to(run_dir))) for path in run_dir.rglob("*")})
    seen["checkpoints"] = sorted(path.name for path in run_dir.glob("checkpoints/*"))
    if (run_dir / "metrics.csv").exists():
        rows = csv.DictReader((run_dir / "metrics.csv").open())
        seen |= {f"{at}/{name}": value for at, row in enumerate(rows) for name, value in row.items()}
    return seen


def _spy(patch, seen):
    """Keeps the algorithm and the trackers of a run, which waits neither for the compiler nor for a disk."""

    def kept(name, make):
        return lambda *arguments: seen.setdefault(name, make(*arguments))

    patch.setattr(build, "make_algorithm", kept("algorithm", build.make_algorithm))
    patch.setattr(build, "make_trackers", kept("trackers", build.make_trackers))

    def compiled(loss, device, cuda_graph):
        seen["compiled"] = True
        return loss

    patch.setattr(algorithm, "compiled", compiled)
    # A run is too short for a critic to explain returns, and for lengths of episodes to average out.
    patch.setattr(ppo, "MIN_EXPLAINED_VARIANCE", -1.0)
    patch.setattr(ppo, "MIN_LENGTH_RATIO", 0.0)
    patch.setattr(os, "fsync", lambda _: None)


@contextmanager
def _listening(seen):
    """Keeps what the log says of the start-up check and of wandb."""
    logger, handler = logging.getLogger("recurrl"), BufferingHandler(capacity=10**6)
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
    messages = [record.getMessage() for record in handler.buffer]
    seen["consistency check"] = any(message.startswith("consistency check") for message in messages)
    of_wandb = [message for message in messages if message.startswith("wandb run")]
    seen["wandb"] = [re.findall(r"is (\w+ \(.*?\))", message) for message in of_wandb]


def _of_algorithm(made):
    if made is None:
        return {}
    state = flat({"policy": made.policy.state_dict(), "optimizer": made.optimizer.state_dict()["state"]})
    of_layers = attrgetter("recurrent_backend", "recurrent_recompute", "recurrent_matmul_precision")
    layers = [of_layers(module) for module in made.policy.modules() if isinstance(module, RecurrentModule)]
    return {**{name: (value.shape, value.numpy().tobytes()) for name, value in state.items()}, "layers": layers}


def _of_trackers(made):
    seen = {"kinds": [type(each).__name__ for each in made.values()]}
    for run in (tracker._run for tracker in made.values() if hasattr(tracker, "_run")):
        seen |= {name: getattr(run, name) for name in ("project", "offline", "group", "tags")}
        seen["id"] = run.id if run.id in TEXTS["logger.id"] else "drawn at random"
    return seen
