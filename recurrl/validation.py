"""The rules of a configuration.

The values of a single key are in its field, see :mod:`recurrl.config.options`. Here is what depends on other values, or
on the machine: a function for each subject.
"""

import math
import os
import re
from collections.abc import Collection

import torch

from recurrl.config import TrainConfig, WorkersConfig
from recurrl.config.cell import NO_CELL
from recurrl.config.collector import MultiAsyncConfig, RayConfig
from recurrl.config.keys import typed_value
from recurrl.config.options import check_effects, check_values
from recurrl.config.plugins import GROUPS, check_name, factory, is_own, key_of
from recurrl.config.run import BURN_IN, STORED
from recurrl.envs.checks import check_rows
from recurrl.envs.source import source_of
from recurrl.errors import ConfigError, require
from recurrl.learning import compiling
from recurrl.policy.build import make_backend, make_cell
from recurrl.recurrent.backends import AUTO, Options, unsupported_reason, uses_torch_precision
from recurrl.recurrent.cell import Cell, ParallelCell
from recurrl.recurrent.precision import unsupported_by_torch
from recurrl.runtime.ranks import launched_size

COMPILABLE = (AUTO, "native", "scan", "triton")
"""Backends that can be compiled; ``auto`` then means ``native``, or ``scan`` without a C compiler."""


def check_config(config: TrainConfig, given: Collection[str] = ()) -> None:
    """Checks every value and every rule between values, before any environment or process is started.

    Args:
        config: the configuration.
        given: the keys of values that the user gave; those that have no effect are rejected.

    Raises:
        ConfigError: a rule is violated; the message says what was asked, why it cannot be, and what to do.
    """
    check_values(config)
    for group in GROUPS:
        check_name(group, typed_value(config, key_of(group)))
    factory("logger", config.logger.name)  # imports the package that it needs
    # In this order: later checks rely on the existence and range of values that earlier ones checked.
    for check in (_groups, _device, _recurrence, _batches, _normalization, _off_policy, _states, _workers, _ranks):
        check(config)
    source_of(config.env).check()
    if config.algorithm.members_of_a_group is not None:
        check_rows(config.env, config.steps_per_row)
    check_effects(config, given)


def _groups(config: TrainConfig) -> None:
    """Groups of environments that start from the same state fit the environments, and no workers split them."""
    size, num_envs = config.algorithm.members_of_a_group, config.env.num_envs
    if size is None:
        return
    fitting = [divisor for divisor in _divisors(num_envs) if divisor > 1]
    advice = f"Give one of: {', '.join(map(str, fitting))}." if fitting else "Give a larger env.num_envs."
    require(size >= 2, f"algorithm.group_size={size} leaves an episode nothing to be compared with. {advice}")
    require(
        num_envs % size == 0,
        f"algorithm.group_size={size} does not divide env.num_envs={num_envs}, so the environments do not form "
        f"groups. {advice}",
    )
    require(
        not isinstance(config.collector, WorkersConfig),
        f"algorithm={config.algorithm.name} compares episodes of environments that are reset together, but the workers "
        f"of collector={config.collector.name} reset independently. Choose collector=single, or algorithm=ppo.",
    )


def _device(config: TrainConfig) -> None:
    """The device is known to torch, present, and supported."""
    try:
        device = torch.device(config.device)
    except RuntimeError as error:
        raise ConfigError(f"device={config.device} is not a torch device. Choose auto, cpu, cuda or cuda:0.") from error
    require(
        device.type in ("cpu", "cuda"),
        f"device={config.device} is not supported for training. Choose auto, cpu, cuda or cuda:0.",
    )
    if device.type == "cuda":
        require(
            torch.cuda.is_available(),
            f"device={config.device} was requested, but torch {torch.__version__} finds no CUDA device. Choose "
            "device=cpu, or install a CUDA build of torch on a machine with a GPU.",
        )
        require(
            (device.index or 0) < torch.cuda.device_count(),
            f"device={config.device} was requested, but there are {torch.cuda.device_count()} CUDA devices, numbered "
            "from 0.",
        )


def _recurrence(config: TrainConfig) -> None:
    """The backend supports the device and the options, and what needs a cell has one."""
    cell, device = make_cell(config.cell), torch.device(config.device)
    if cell is not None:
        options = Options(
            recompute=config.recompute.name, chunk_len=config.recompute.chunk_len, precision=config.precision.name
        )
        backend = make_backend(config.backend)
        reason = unsupported_reason(backend, cell, options, device)
        if reason is None and uses_torch_precision(backend):
            reason = unsupported_by_torch(config.backend.name, options.precision, options.compute_dtype, device)
        require(reason is None, str(reason))
    require(
        config.algorithm.critic_kind != "recurrent" or cell is not None,
        "algorithm.critic=recurrent needs a cell, but cell=none. Choose a cell, or algorithm.critic=feedforward.",
    )
    if config.compile:
        reason = compiling.refusal(device)
        require(reason is None, str(reason))
        if cell is not None:
            _compiled_cell(config, cell)


def _compiled_cell(config: TrainConfig, cell: Cell) -> None:
    """The recurrent layer can be compiled as one graph."""
    require(
        config.backend.name in COMPILABLE or is_own(config.backend.name),
        f"compile=true is not possible with backend={config.backend.name}, whose control flow depends on where "
        f"episodes start. Choose one of: {', '.join(COMPILABLE)}; or leave compile out.",
    )
    require(
        cell.TORCH is not None or isinstance(cell, ParallelCell),
        f"compile=true is not possible with cell={config.cell.name}: compiling needs a GRU, an LSTM or a cell "
        "with a parallel form. Leave compile out.",
    )


def _batches(config: TrainConfig) -> None:
    """The frames of an iteration divide evenly into environments, slices and minibatches."""
    num_envs, frames, steps = config.env.num_envs, config.frames_per_batch, config.steps_per_row
    _check_multiple("frames_per_batch", frames, "env.num_envs", num_envs)
    require(
        config.slice_len <= steps,
        f"slice_len={config.slice_len} is longer than a row, which has {steps} steps (frames_per_batch / "
        f"env.num_envs). Give slice_len={steps} or a divisor of it, or a larger frames_per_batch.",
    )
    require(
        steps % config.slice_len == 0,
        f"slice_len={config.slice_len} does not divide a row of {steps} steps. Give one of: "
        f"{', '.join(map(str, _divisors(steps)))}.",
    )
    slices = config.slices_per_batch
    require(
        slices % config.minibatch_slices == 0,
        f"minibatch_slices={config.minibatch_slices} does not divide the {slices} slices of an iteration "
        f"(frames_per_batch / slice_len). Give one of: {', '.join(map(str, _divisors(slices)))}.",
    )
    for key in ("total_frames", "schedule_frames"):
        number = getattr(config, key)
        require(
            number is None or number >= frames,
            f"{key}={number} is less than one iteration of frames_per_batch={frames}. Give a larger {key} or a smaller "
            "frames_per_batch.",
        )


def _normalization(config: TrainConfig) -> None:
    """Normalisation does not cancel the scale of rewards, and the numbers of frames suit the algorithm."""
    scale = config.env.reward_scale
    require(
        scale == 1 or not config.env.normalize_reward,
        f"env.reward_scale={scale:g} has no effect with env.normalize_reward=true, which divides it out again. Give "
        "env.reward_scale=1, or env.normalize_reward=false.",
    )
    config.algorithm.check(config.minibatch_slices * config.slice_len, config.frames_per_batch)


def _off_policy(config: TrainConfig) -> None:
    """What older weights collected is corrected for, and the buffer holds an iteration."""
    config.buffer.check(config.frames_per_batch)
    require(
        config.algorithm.is_off_policy or not config.buffer.replays,
        f"buffer={config.buffer.name} learns from what older weights collected, but the advantages of "
        f"algorithm={config.algorithm.name} are not corrected for that. Give algorithm=ppo algorithm.advantage=vtrace, "
        "or buffer=on_policy.",
    )
    require(
        not (config.buffer.replays and isinstance(config.collector, MultiAsyncConfig)),
        f"buffer={config.buffer.name} keeps each environment's steps in their order, but with "
        f"collector={config.collector.name} an iteration's rows come from whichever worker is ready. Choose "
        "collector=single or multi_sync, or buffer=on_policy.",
    )


def _states(config: TrainConfig) -> None:
    """There are states for the state policy, and steps for burn-in."""
    require(
        config.cell.name != NO_CELL or config.state == STORED,
        f"state={config.state} concerns recurrent states, but cell=none has none. Leave state out, or choose a cell.",
    )
    steps, half = config.burn_in_len, max(1, config.slice_len // 2)
    if config.state != BURN_IN:
        return
    require(
        steps is not None,
        f"state=burn_in needs burn_in_len, the number of warm-up steps before a slice. Give burn_in_len={half}, for "
        "example.",
    )
    require(
        steps is None or steps < config.slice_len,
        f"burn_in_len={steps} is not less than slice_len={config.slice_len}: burn-in steps come from the preceding "
        f"slice. Give burn_in_len={half}, or a larger slice_len.",
    )
    require(
        config.slice_len < config.steps_per_row,
        f"state=burn_in has no burn-in steps with slice_len={config.slice_len}, a whole row: no slice has steps before "
        "it. Give a smaller slice_len, or a larger frames_per_batch.",
    )


def _workers(config: TrainConfig) -> None:
    """Workers share the environments evenly, and a cluster's address is one."""
    if not isinstance(config.collector, WorkersConfig):
        return
    workers, num_envs = config.collector.num_workers, config.env.num_envs
    _check_multiple("env.num_envs", num_envs, "collector.num_workers", workers)
    address = config.collector.address if isinstance(config.collector, RayConfig) else None
    require(
        address in (None, "auto") or re.fullmatch(r"(ray://)?[^\s/]+:\d+", str(address)) is not None,
        f"collector.address={address} is not an address of a Ray cluster. Give auto, host:port, ray://host:port or "
        "null.",
    )


def _ranks(config: TrainConfig) -> None:
    """What ranks share divides among them, and each has a device."""
    ranks, group = launched_size(), config.algorithm.members_of_a_group
    if ranks == 1:
        return
    shared = {"env.num_envs": (config.env.num_envs, group), "minibatch_slices": (config.minibatch_slices, None)}
    if isinstance(config.collector, WorkersConfig):
        shared["collector.num_workers"] = config.collector.num_workers, None
    for key, (number, of_one) in shared.items():
        of = ranks if of_one is None else ranks * of_one
        groups = "" if of_one is None else f" in groups of {of_one}"
        require(
            number % of == 0,
            f"{key}={number}, which is of all ranks together, does not divide among {ranks} ranks{groups}. Give a "
            f"multiple of {of}, for example {key}={_nearest_multiple(number, of)}.",
        )
    require(
        not (config.compile and getattr(config.algorithm, "normalize_advantage", None) == "minibatch"),
        "compile=true cannot compile algorithm.normalize_advantage=minibatch over several ranks, which have to wait "
        "for one another within it. Leave one of them out.",
    )
    require(
        config.pretrain.folder is None,
        "pretrain.folder is not possible with several ranks. Pretrain in a run of one process, with a small "
        "total_frames, and start this one with init_from=... of it.",
    )
    _device_of_rank(config)


def _device_of_rank(config: TrainConfig) -> None:
    """The backend that averages gradients can do so on the device, and each rank has one of its own."""
    backend, device = config.ranks.backend, torch.device(config.device)
    require(
        backend != "nccl" or device.type == "cuda",
        f"ranks.backend=nccl is not possible with device={config.device}. Give ranks.backend=gloo, or device=cuda.",
    )
    if device.type != "cuda":
        return
    numbered = ":" in config.device
    require(
        backend == "gloo" or not numbered,
        f"device={config.device} is one GPU for all ranks, which nccl does not do. Give device=cuda for one GPU a "
        "rank, or ranks.backend=gloo.",
    )
    here = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    require(
        numbered or here <= torch.cuda.device_count(),
        f"device=cuda gives each rank a GPU, but {here} ranks on this machine share {torch.cuda.device_count()}. Give "
        "torchrun a smaller --nproc-per-node, or device=cuda:0 ranks.backend=gloo.",
    )


def _check_multiple(key: str, number: int, of_key: str, of: int) -> None:
    require(
        number % of == 0,
        f"{key}={number} is not a multiple of {of_key}={of}. Give a multiple of {of}, for example "
        f"{key}={_nearest_multiple(number, of)}.",
    )


def _divisors(number: int) -> list[int]:
    """All divisors, in ascending order."""
    low = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return sorted({*low, *(number // divisor for divisor in low)})


def _nearest_multiple(number: int, of: int) -> int:
    """The multiple of ``of`` nearest to ``number``, and at least ``of`` itself."""
    return max(1, round(number / of)) * of
