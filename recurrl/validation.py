"""The rules of a configuration.

Rules for the value of a single key are part of its field, see :mod:`recurrl.config.options`, and are checked with its
type. Rules that depend on other values, or on the machine, are here: one function per subject.
"""

import json
import math
import os
import shutil
from collections.abc import Collection
from typing import Any

import torch

from recurrl.config import TrainConfig, WorkersConfig
from recurrl.config.cell import NO_CELL
from recurrl.config.collector import ReplayConfig
from recurrl.config.composed import values_in
from recurrl.config.options import Condition
from recurrl.config.plugins import factory, is_custom
from recurrl.config.run import BURN_IN, REFRESH, STORED
from recurrl.envs.making import check_row_length
from recurrl.envs.source import source_of
from recurrl.errors import require
from recurrl.policy.build import cell_from_options, make_backend
from recurrl.recurrent.backends import Options
from recurrl.recurrent.cell import Cell, ParallelCell
from recurrl.recurrent.choice import AUTO, unsupported_reason, uses_torch_precision
from recurrl.recurrent.precision import unsupported_by_torch
from recurrl.runtime.ranks import launched_size

COMPILABLE = (AUTO, "native", "scan", "triton")
"""Backends that can be compiled; ``auto`` then means ``native``, or ``scan`` without a C compiler."""


def check_config(config: TrainConfig, explicit_keys: Collection[str] = ()) -> None:
    """Checks every rule between values, before any environment or process is started.

    Args:
        config: the configuration.
        explicit_keys: the keys of values that the user set; those that have no effect are errors.

    Raises:
        ConfigError: a rule is violated; the message says what was requested, why it cannot be, and what to do.
    """
    for name in config.logger.names:
        factory("logger", name)  # imports the package that it needs
    # In this order: later checks rely on what earlier ones checked.
    _check_groups(config)
    _check_device(config)
    _check_critic(config)
    _check_recurrence(config)
    _check_batches(config)
    _check_normalization(config)
    _check_off_policy(config)
    _check_states(config)
    _check_ranks(config)
    source_of(config.env).check()
    if config.algorithm.envs_per_group is not None:
        check_row_length(config.env, config.steps_per_row)
    check_effects(config, explicit_keys)


def check_effects(config: Any, explicit_keys: Collection[str], kinds: Collection[Condition] | None = None) -> None:
    """Rejects values that the user set and that have no effect.

    Args:
        config: the run's configuration.
        explicit_keys: the keys of the values that the user set.
        kinds: the conditions that the environment's spaces meet, to check what needs those; None to check what needs
            other settings.

    Raises:
        ConfigError: a value has no effect; the message says what it needs.
    """
    for key, value, meaning in values_in(config):
        needed = meaning.only_with
        if needed is None or key not in explicit_keys or (needed.holds is None) == (kinds is None):
            continue
        name, text = key if key == "env.name" else key.removesuffix(".name"), json.dumps(value, default=str).strip('"')
        message = f"{name}={text} has no effect without {needed.words}"
        if kinds is not None:
            require(needed in kinds, f"{message}, which env.id={config.env.id} does not have. Leave it out.")
        elif needed.holds is not None:
            require(needed.holds(config), f"{message}. Leave it out, or choose {needed.words}.")


def _must(holds: bool, key: str, condition: str, value: object, advice: str = "") -> None:
    """Requires that the value of a key meets a condition.

    Raises:
        ConfigError: it does not; the message ends with the advice.
    """
    require(holds, f"{key} must be {condition} (got {value}). {advice}".rstrip())


def _check_groups(config: TrainConfig) -> None:
    """Checks that groups of environments divide the environments, and that no workers split them."""
    size, num_envs, collector = config.algorithm.envs_per_group, config.env.num_envs, config.collector
    if size is None:
        return
    fitting = ", ".join(map(str, _divisors(num_envs)[1:]))
    advice = f"Choose one of: {fitting}." if fitting else "Set a larger env.num_envs."
    condition = f"at least 2 and divide env.num_envs={num_envs}"
    _must(size >= 2 and num_envs % size == 0, "algorithm.group_size", condition, size, advice)
    condition = f"single with algorithm={config.algorithm.name}, because workers reset their environments separately"
    advice = "Choose collector=single, or algorithm=ppo."
    _must(not isinstance(collector, WorkersConfig), "collector", condition, collector.name, advice)


def _check_device(config: TrainConfig) -> None:
    """Checks that the device is present and supported."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = ["cpu", *(["cuda"] if count else []), *(f"cuda:{index}" for index in range(count))]
    condition = f"auto, cpu or one of the {count} CUDA devices that torch {torch.__version__} finds, such as cuda:0"
    advice = "Choose device=cpu, or install a CUDA build of torch on a machine with a GPU."
    _must(config.device in devices, "device", condition, config.device, advice)


def _check_critic(config: TrainConfig) -> None:
    """Checks the kind of critic that an algorithm declares."""
    kind, key = config.algorithm.critic_kind, f"critic_kind of algorithm={config.algorithm.name}"
    _must(kind in (None, "shared", "recurrent", "feedforward"), key, "shared, recurrent, feedforward or None", kind)


def _check_recurrence(config: TrainConfig) -> None:
    """Checks that the backend supports the device and the options, and that options that need a cell have one."""
    cell, device = cell_from_options(config.cell), torch.device(config.device)
    if cell is not None:
        options = Options(recompute=config.recompute, precision=config.precision)
        backend = make_backend(config.backend)
        reason = unsupported_reason(backend, cell, options, device)
        if reason is None and uses_torch_precision(backend):
            reason = unsupported_by_torch(config.backend.name, options.precision, options.compute_dtype, device)
        require(reason is None, str(reason))
    recurrent, advice = config.algorithm.critic_kind == "recurrent", "Choose a cell, or algorithm.critic=feedforward."
    _must(not recurrent or cell is not None, "cell", "a recurrent one with algorithm.critic=recurrent", NO_CELL, advice)
    if config.compile == "cudagraphs":
        advice = "Choose a GPU, or compile=loss."
        _must(device.type == "cuda", "device", "a CUDA device with compile=cudagraphs", config.device, advice)
        collector, advice = config.collector.name, "Choose collector=single, or compile=loss."
        _must(collector == "single", "collector", "single with compile=cudagraphs", collector, advice)
    if config.compile != "none":
        compiler = os.environ.get("CXX", "g++")
        condition = f"none without a C++ compiler ({compiler} is not on PATH)"
        advice = "Install one (apt-get install g++), or name another in the environment variable CXX."
        found = device.type != "cpu" or shutil.which(compiler) is not None
        _must(found, "compile", condition, config.compile, advice)
        if cell is not None:
            _check_compiled_cell(config, cell)


def _check_compiled_cell(config: TrainConfig, cell: Cell) -> None:
    """Checks that the recurrent layer can be compiled as one graph."""
    name, advice = config.backend.name, "Choose another one, or leave compile out."
    compilable = name in COMPILABLE or is_custom(name)
    _must(compilable, "backend", f"one of {', '.join(COMPILABLE)} with compile={config.compile}", name, advice)
    step_only = cell.TORCH is None and not isinstance(cell, ParallelCell)
    condition = f"none with compile={config.compile} and cell={config.cell.name}, which defines only a step"
    _must(not step_only or config.recompute == "none", "recompute", condition, config.recompute, advice)


def _check_batches(config: TrainConfig) -> None:
    """Checks that environments divide evenly into workers, and frames into rows, slices and minibatches."""
    launcher = getattr(config.env, "launcher", None)
    alone = launcher is None or (launched_size() == 1 and not isinstance(config.collector, WorkersConfig))
    _must(alone, "env.launcher", "null with several processes", launcher, "Use collector=single, without torchrun.")
    if isinstance(config.collector, WorkersConfig):
        workers = config.collector.num_workers
        _check_multiple("env.num_envs", config.env.num_envs, workers, f"collector.num_workers={workers}")
    num_envs, frames, steps = config.env.num_envs, config.frames_per_batch, config.steps_per_row
    _check_multiple("frames_per_batch", frames, num_envs, f"env.num_envs={num_envs}")
    row = f"a divisor of the {steps} steps of a row, frames_per_batch / env.num_envs"
    _must(steps % config.slice_len == 0, "slice_len", row, config.slice_len, _one_of(steps))
    slices = frames // config.slice_len
    batch = f"a divisor of the {slices} slices of an iteration, frames_per_batch / slice_len"
    fits = slices % config.minibatch_slices == 0
    _must(fits, "minibatch_slices", batch, config.minibatch_slices, _one_of(slices))
    # The KL is zero until a gradient step has been taken, so an iteration of one step has nothing to adapt to.
    adapts = config.epochs * slices > config.minibatch_slices
    condition, advice = "linear with one gradient step per iteration", "Set more epochs or a smaller minibatch_slices."
    _must(adapts or config.lr_schedule != "adaptive", "lr_schedule", condition, config.lr_schedule, advice)
    for key in ("total_frames", "schedule_frames"):
        number, condition = getattr(config, key), f"at least one iteration of frames_per_batch={frames}"
        enough = number is None or number >= frames
        _must(enough, key, condition, number, f"Set a larger {key} or a smaller frames_per_batch.")


def _check_normalization(config: TrainConfig) -> None:
    """Checks that advantages are normalised over several frames."""
    over = getattr(config.algorithm, "normalize_advantage", "none")
    frames = config.frames_per_batch if over == "batch" else config.minibatch_slices * config.slice_len
    condition = f"none where a {over} has one frame"
    _must(over == "none" or frames > 1, "algorithm.normalize_advantage", condition, over)


def _check_off_policy(config: TrainConfig) -> None:
    """Checks that the algorithm corrects for older weights if the buffer replays rows, and that there are enough."""
    algorithm, buffer = config.algorithm, config.buffer
    condition = f"on_policy with algorithm={algorithm.name}, which does not correct for older weights"
    advice = "Use buffer=on_policy."
    _must(algorithm.is_off_policy_corrected or not buffer.replays, "buffer", condition, buffer.name, advice)
    if isinstance(buffer, ReplayConfig):
        lowest, highest, limit = buffer.min_replay_ratio, buffer.replay_ratio, buffer.rollouts + 1
        condition = f"at most {limit}, the new rollout and the {buffer.rollouts} before it"
        for key, ratio in (("replay_ratio", highest or 1), ("min_replay_ratio", lowest)):
            _must(ratio <= limit, f"buffer.{key}", condition, ratio, "Keep more in buffer.rollouts, or replay less.")
        condition = f"at most buffer.replay_ratio={highest}"
        _must(lowest <= (highest or lowest), "buffer.min_replay_ratio", condition, lowest, "Raise that, or lower this.")


def _check_states(config: TrainConfig) -> None:
    """Checks that ``state`` has recurrent states to set, and that recomputed ones have steps before them."""
    advice = "Leave state out, or choose a cell."
    _must(config.cell.name != NO_CELL or config.state == STORED, "state", "stored with cell=none", config.state, advice)
    length, steps = config.slice_len, config.steps_per_row
    shortest = {BURN_IN: 2, REFRESH: 1}.get(config.state)
    condition = f"at least {shortest} and less than the {steps} steps of a row with state={config.state}"
    advice = "Set one in between, or a larger frames_per_batch."
    _must(shortest is None or shortest <= length < steps, "slice_len", condition, length, advice)


def _check_ranks(config: TrainConfig) -> None:
    """Checks that environments, workers and minibatches divide among the ranks, and that each rank has a device."""
    ranks, group = launched_size(), config.algorithm.envs_per_group or 1
    if ranks == 1:
        return
    among = f"{ranks} ranks" + (f" times algorithm.group_size={group}" if group > 1 else "")
    _check_multiple("env.num_envs", config.env.num_envs, ranks * group, among)
    _check_multiple("minibatch_slices", config.minibatch_slices, ranks, f"{ranks} ranks")
    if isinstance(config.collector, WorkersConfig):
        _check_multiple("collector.num_workers", config.collector.num_workers, ranks, f"{ranks} ranks")
    by_minibatch = getattr(config.algorithm, "normalize_advantage", None) == "minibatch"
    condition = "none with algorithm.normalize_advantage=minibatch and several ranks"
    _must(config.compile == "none" or not by_minibatch, "compile", condition, config.compile, "Leave one of them out.")
    folder, condition = config.pretrain.folder, "null with several ranks"
    advice = "Pretrain in a run of one process, with a small total_frames, and start this one with init_from=... of it."
    _must(folder is None, "pretrain.folder", condition, folder, advice)
    here = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if config.device == "cuda":
        advice = "Start torchrun with a smaller --nproc-per-node, or set device=cuda:0 for all ranks."
        count = f"used with at least {here} GPUs on this machine, one per rank"
        _must(here <= torch.cuda.device_count(), "device=cuda", count, torch.cuda.device_count(), advice)


def _check_multiple(key: str, number: int, divisor: int, words: str) -> None:
    """Requires that a number is a multiple of another; the message names the nearest one."""
    nearest = max(1, round(number / divisor)) * divisor
    _must(number % divisor == 0, key, f"a multiple of {words}", number, f"Set {key}={nearest}, for example.")


def _one_of(number: int) -> str:
    return f"Choose one of: {', '.join(map(str, _divisors(number)))}."


def _divisors(number: int) -> list[int]:
    """All divisors, in ascending order."""
    low = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return sorted({*low, *(number // divisor for divisor in low)})
