"""The rules a configuration has to keep: the range of each value, and which values go together.

:func:`check` raises :class:`ConfigError` with a sentence that says what was asked, why it can't be, and what to do,
before any environment or process is started.
"""

from __future__ import annotations

import importlib.util
import math

import torch

from recurrl import compiling
from recurrl.config import (
    BURN_IN,
    NO_CELL,
    STATE_POLICIES,
    STORED,
    VECTORIZATIONS,
    AlgorithmConfig,
    LoggerConfig,
    TrainConfig,
)
from recurrl.errors import ConfigError
from recurrl.recurrent import precision as matmul_precision
from recurrl.recurrent.backends import AUTO, RECOMPUTE, Options, backend_names, refusal
from recurrl.recurrent.cells import cell_names, is_hand_written, is_parallel_in_time, load_cell

CRITIC_OPTIONS = ("critic", "lmbda", "critic_coeff", "critic_loss", "clip_value", "normalize_advantage")
PPO_OPTIONS = ("objective", "kl_coeff", *CRITIC_OPTIONS)
GRPO_OPTIONS = (
    *("group_size", "advantage", "divide_by_std", "drop_flat_groups", "aggregation"),
    *("kl_to_ref_coeff", "ref_refresh_updates", "kl_to_inference_coeff", "kl_mask_threshold"),
)
MOST_STEPS, MOST_COPIES, MOST_FEATURES, MOST_LAYERS, MOST_WORKERS = 10**12, 2**16, 2**16, 2**8, 2**10
"""Beyond these a number is a slip of the hand, and would only show once memory or threads run out."""
MOST_LR, MOST_SCALE = 1.0, 1e6
"""Beyond these the weights, the loss, or what the environment is given, soon are no numbers."""
MOST_SECONDS = 1e6
COMPILED_BACKENDS = (AUTO, "scan", "triton")
MAY_BE_NULL = ("clip_value", "ref_refresh_updates", "kl_mask_threshold")


def check(config: TrainConfig) -> None:
    """Checks every value and every rule between values.

    Raises:
        ConfigError: with a sentence a person can act on.
    """
    _check_algorithm(config.algorithm)
    _check_ranges(config)
    _check_choices(config)
    _check_logger(config.logger)
    _check_groups(config)
    _check_device(config)
    _check_recurrence(config)
    _check_compile(config)
    _check_batches(config)
    _check_states(config)
    _check_workers(config)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


def _check_algorithm(algorithm: AlgorithmConfig) -> None:
    """Refuses options of the one algorithm that are given to the other, and those of its own that are not given."""
    own = {"ppo": PPO_OPTIONS, "grpo": GRPO_OPTIONS}.get(algorithm.name, PPO_OPTIONS)
    for key in PPO_OPTIONS + GRPO_OPTIONS:
        value = getattr(algorithm, key)
        if key in own:
            _require(
                value is not None or key in MAY_BE_NULL,
                f"algorithm.{key} is null, and algorithm={algorithm.name} needs it. Give a value, or leave it out.",
            )
        elif value is not None:
            other, reason = ("ppo", "has no critic") if algorithm.name == "grpo" else ("grpo", "forms no groups")
            reason = reason if key in CRITIC_OPTIONS or other == "grpo" else "has one objective"
            raise ConfigError(
                f"algorithm.{key}={value} is an option of algorithm={other}, but algorithm={algorithm.name} {reason}. "
                f"Leave it out, or choose algorithm={other}."
            )


def _check_ranges(config: TrainConfig) -> None:
    algorithm = config.algorithm
    counts = {
        "env.num_envs": (config.env.num_envs, MOST_COPIES),
        "collector.num_workers": (config.collector.num_workers, MOST_WORKERS),
        "cell.hidden_size": (config.cell.hidden_size, MOST_FEATURES),
        "cell.num_layers": (config.cell.num_layers, MOST_LAYERS),
        "total_frames": (config.total_frames, MOST_STEPS),
        "frames_per_batch": (config.frames_per_batch, MOST_STEPS),
        "slice_len": (config.slice_len, MOST_STEPS),
        "epochs": (config.epochs, MOST_STEPS),
        "minibatch_slices": (config.minibatch_slices, MOST_STEPS),
        "evaluation.episodes": (config.evaluation.episodes, MOST_COPIES),
        "env.max_episode_steps": (config.env.max_episode_steps, MOST_STEPS),
        "checkpoint.every_frames": (config.checkpoint.every_frames, MOST_STEPS),
        "checkpoint.keep_last": (config.checkpoint.keep_last, MOST_STEPS),
        "evaluation.every_frames": (config.evaluation.every_frames, MOST_STEPS),
        "burn_in_len": (config.burn_in_len, MOST_STEPS),
        "max_skipped_steps": (config.max_skipped_steps, MOST_STEPS),
        "num_threads": (config.num_threads, MOST_WORKERS),
        "algorithm.ref_refresh_updates": (algorithm.ref_refresh_updates, MOST_STEPS),
        **{f"policy.encoder_sizes[{i}]": (size, MOST_FEATURES) for i, size in enumerate(config.policy.encoder_sizes)},
    }
    for key, (value, most) in counts.items():
        _require(value is None or value >= 1, f"{key}={value} is too small. Give a whole number of at least 1.")
        _require(value is None or value <= most, f"{key}={value} is too large. Give a whole number of at most {most}.")
    between_zero_and_one = {
        "algorithm.gamma": algorithm.gamma,
        "algorithm.lmbda": algorithm.lmbda,
        "algorithm.clip_final_fraction": algorithm.clip_final_fraction,
        "algorithm.entropy_final_fraction": algorithm.entropy_final_fraction,
        "lr_final_fraction": config.lr_final_fraction,
    }
    for key, fraction in between_zero_and_one.items():
        _require(
            fraction is None or 0 <= fraction <= 1, f"{key}={fraction} is out of range. Give a number from 0 to 1."
        )
    not_above = {
        "lr": (config.lr, MOST_LR),
        "env.reward_scale": (config.env.reward_scale, MOST_SCALE),
        "policy.initial_std": (config.policy.initial_std, MOST_SCALE),
        "algorithm.clip_epsilon_high": (algorithm.clip_epsilon_high, MOST_SCALE),
        "algorithm.entropy_coeff": (algorithm.entropy_coeff, MOST_SCALE),
        "algorithm.critic_coeff": (algorithm.critic_coeff, MOST_SCALE),
        "algorithm.kl_coeff": (algorithm.kl_coeff, MOST_SCALE),
        "algorithm.kl_to_ref_coeff": (algorithm.kl_to_ref_coeff, MOST_SCALE),
        "algorithm.kl_to_inference_coeff": (algorithm.kl_to_inference_coeff, MOST_SCALE),
        "collector.timeout_s": (config.collector.timeout_s, MOST_SECONDS),
    }
    positive = {
        "lr": config.lr,
        "env.reward_scale": config.env.reward_scale,
        "policy.initial_std": config.policy.initial_std,
        "algorithm.clip_epsilon": algorithm.clip_epsilon,
        "algorithm.max_grad_norm": algorithm.max_grad_norm,
        "algorithm.target_kl": algorithm.target_kl,
        "algorithm.clip_value": algorithm.clip_value,
        "algorithm.clip_epsilon_high": algorithm.clip_epsilon_high,
        "algorithm.kl_coeff": algorithm.kl_coeff,
        "algorithm.kl_mask_threshold": algorithm.kl_mask_threshold,
        "desired_kl": config.desired_kl,
        "collector.timeout_s": config.collector.timeout_s,
    }
    for key, number in positive.items():
        _require(
            number is None or (number > 0 and math.isfinite(number)),
            f"{key}={number} is out of range. Give a finite number above 0.",
        )
    not_negative = {
        "algorithm.entropy_coeff": algorithm.entropy_coeff,
        "algorithm.critic_coeff": algorithm.critic_coeff,
        "algorithm.kl_to_ref_coeff": algorithm.kl_to_ref_coeff,
        "algorithm.kl_to_inference_coeff": algorithm.kl_to_inference_coeff,
    }
    for key, number in not_negative.items():
        _require(
            number is None or (number >= 0 and math.isfinite(number)),
            f"{key}={number} is out of range. Give a finite number, 0 or above.",
        )
    for key, (number, limit) in not_above.items():
        too_large = number is not None and number > limit
        _require(not too_large, f"{key}={number} is too large. Give a number of at most {limit:g}.")
    _require(algorithm.clip_epsilon < 1, f"algorithm.clip_epsilon={algorithm.clip_epsilon} must be below 1.")
    _require(0 <= config.seed < 2**31, f"seed={config.seed} is out of range. Give a whole number from 0 to 2147483647.")


def _check_choices(config: TrainConfig) -> None:
    choices = {
        "env.vectorization": (config.env.vectorization, VECTORIZATIONS),
        **_algorithm_choices(config.algorithm),
        "lr_schedule": (config.lr_schedule, ("linear", "adaptive")),
        "backend.name": (config.backend.name, backend_names()),
        "cell.name": (config.cell.name, (*cell_names(), NO_CELL)),
        "collector.name": (config.collector.name, ("single", "multi_sync", "multi_async")),
        "collector.on_fault": (config.collector.on_fault, ("raise", "restart")),
        "logger.name": (config.logger.name, ("csv", "tensorboard", "wandb")),
        "logger.mode": (config.logger.mode, (None, "auto", "online", "offline")),
        "policy.image_encoder": (config.policy.image_encoder, ("nature", "impala")),
        "policy.bounded_action": (config.policy.bounded_action, ("clip", "tanh")),
        "recompute.name": (config.recompute.name, RECOMPUTE),
        "precision.name": (config.precision.name, matmul_precision.MODES),
        "state": (config.state, STATE_POLICIES),
    }
    for key, (value, allowed) in choices.items():
        names = ", ".join(str(choice) for choice in allowed)
        _require(value in allowed, f"{key}={value} does not exist. Choose one of: {names}.")
    if config.logger.name == "tensorboard":
        _require(
            importlib.util.find_spec("tensorboard") is not None,
            "logger=tensorboard needs the tensorboard package. Install it with: pip install 'recurrl[tensorboard]'",
        )


def _check_logger(logger: LoggerConfig) -> None:
    if logger.name == "wandb":
        return
    for key in ("project", "mode", "id"):
        value = getattr(logger, key)
        _require(
            value is None,
            f"logger.{key}={value} is an option of logger=wandb, and this run has logger={logger.name}. Leave it out, "
            "or choose logger=wandb.",
        )


def _algorithm_choices(algorithm: AlgorithmConfig) -> dict[str, tuple[str | None, tuple[str, ...]]]:
    """Of each option of the algorithm at hand, its value and those there are."""
    if algorithm.name == "grpo":
        return {
            "algorithm.advantage": (algorithm.advantage, ("outcome", "process")),
            "algorithm.aggregation": (algorithm.aggregation, ("step", "episode")),
        }
    return {
        "algorithm.objective": (algorithm.objective, ("clip", "kl", "plain")),
        "algorithm.critic": (algorithm.critic, ("shared", "recurrent", "feedforward")),
        "algorithm.critic_loss": (algorithm.critic_loss, ("l2", "smooth_l1")),
        "algorithm.normalize_advantage": (algorithm.normalize_advantage, ("none", "minibatch", "batch")),
    }


def _check_groups(config: TrainConfig) -> None:
    size, envs = config.algorithm.group_size, config.env.num_envs
    if size is None:
        return
    fitting = [divisor for divisor in _divisors(envs) if divisor > 1]
    advice = f"Give one of: {', '.join(map(str, fitting))}." if fitting else "Give a larger env.num_envs."
    _require(size >= 2, f"algorithm.group_size={size} leaves nothing to compare an episode with. {advice}")
    _require(
        envs % size == 0,
        f"algorithm.group_size={size} does not divide env.num_envs={envs}, so the environments do not form groups. "
        f"{advice}",
    )


def _check_device(config: TrainConfig) -> None:
    try:
        device = torch.device(config.device)
    except RuntimeError as error:
        raise ConfigError(
            f"device={config.device} is not a device torch knows. Choose auto, cpu, cuda or cuda:0."
        ) from error
    _require(
        device.type in ("cpu", "cuda"),
        f"device={config.device} is a kind of device that recurrl does not train on. Choose auto, cpu, cuda or cuda:0.",
    )
    if device.type == "cuda":
        _require(
            torch.cuda.is_available(),
            f"device={config.device} was asked for, but torch {torch.__version__} finds no CUDA device here. Choose "
            "device=cpu, or install a CUDA build of torch on a machine with a GPU.",
        )
        _require(
            (device.index or 0) < torch.cuda.device_count(),
            f"device={config.device} was asked for, but there are {torch.cuda.device_count()} CUDA devices, numbered "
            "from 0.",
        )


def _check_recurrence(config: TrainConfig) -> None:
    device = torch.device(config.device)
    reason = None
    if config.cell.name != NO_CELL:
        options = Options(
            recompute=config.recompute.name,
            chunk_len=config.recompute.chunk_len,
            precision=config.precision.name,
            hidden_size=config.cell.hidden_size,
        )
        reason = refusal(config.backend.name, load_cell(config.cell.name), options, device)
    if reason is not None:
        raise ConfigError(reason)
    _require(
        config.algorithm.critic != "recurrent" or config.cell.name != NO_CELL,
        "algorithm.critic=recurrent gives the critic a cell of its own, but cell=none. Choose a cell, or "
        "algorithm.critic=feedforward.",
    )


def _check_compile(config: TrainConfig) -> None:
    if not config.compile:
        return
    reason = compiling.refusal(torch.device(config.device))
    if reason is not None:
        raise ConfigError(reason)
    if config.cell.name == NO_CELL:
        return
    _require(
        config.backend.name in COMPILED_BACKENDS,
        f"compile=true is not possible with backend={config.backend.name}: the compiler takes no layer whose course "
        f"depends on where episodes start. Choose one of: {', '.join(COMPILED_BACKENDS)}; or leave compile out.",
    )
    _require(
        config.recompute.name == "none" or config.backend.name == "triton",
        f"recompute={config.recompute.name} is not possible with compile=true and backend={config.backend.name}, whose "
        "compiled scan keeps what its backward pass needs. Choose recompute=none, or leave compile out.",
    )
    cell = load_cell(config.cell.name)
    _require(
        is_hand_written(cell) or is_parallel_in_time(cell),
        f"compile=true is not possible with cell={config.cell.name}: the derivative of a compiled scan has to be "
        "written by hand, or the cell has to have a parallel form. Leave compile out.",
    )


def _check_batches(config: TrainConfig) -> None:
    envs, frames, steps = config.env.num_envs, config.frames_per_batch, config.steps_per_row
    _require(
        frames % envs == 0,
        f"frames_per_batch={frames} does not divide evenly among env.num_envs={envs}. Give a multiple of {envs}, for "
        f"example frames_per_batch={max(1, round(frames / envs)) * envs}.",
    )
    _require(
        config.slice_len <= steps,
        f"slice_len={config.slice_len} is longer than a row, which has {steps} steps (frames_per_batch / "
        f"env.num_envs). Give slice_len={steps} or a divisor of it, or a larger frames_per_batch.",
    )
    _require(
        steps % config.slice_len == 0,
        f"slice_len={config.slice_len} does not divide a row of {steps} steps. Give one of: "
        f"{', '.join(map(str, _divisors(steps)))}.",
    )
    slices = config.slices_per_batch
    _require(
        slices % config.minibatch_slices == 0,
        f"minibatch_slices={config.minibatch_slices} does not divide the {slices} slices of an iteration "
        f"(frames_per_batch / slice_len). Give one of: {', '.join(map(str, _divisors(slices)))}.",
    )
    _require(
        config.total_frames >= frames,
        f"total_frames={config.total_frames} is less than one iteration of frames_per_batch={frames}. Give more "
        "total_frames, or a smaller frames_per_batch.",
    )


def _check_states(config: TrainConfig) -> None:
    _require(
        config.cell.name != NO_CELL or config.state == STORED,
        f"state={config.state} is about recurrent states, and cell=none has none. Leave state out, or choose a cell.",
    )
    if config.state != BURN_IN:
        _require(
            config.burn_in_len is None,
            f"burn_in_len={config.burn_in_len} has no meaning with state={config.state}. Leave it out, or give "
            "state=burn_in.",
        )
        return
    _require(
        config.burn_in_len is not None,
        "state=burn_in needs burn_in_len, the number of steps that warm the state before a slice. Give "
        f"burn_in_len={max(1, config.slice_len // 2)}, for example.",
    )
    _require(
        config.burn_in_len is None or config.burn_in_len < config.slice_len,
        f"burn_in_len={config.burn_in_len} is not less than slice_len={config.slice_len}: burn-in comes out of the one "
        f"slice before. Give burn_in_len={max(1, config.slice_len // 2)}, or a larger slice_len.",
    )
    _require(
        config.slice_len < config.steps_per_row,
        f"state=burn_in has no steps to burn in with slice_len={config.slice_len}, which is a whole row: no slice has "
        "steps before it. Give a smaller slice_len, or a larger frames_per_batch.",
    )


def _check_workers(config: TrainConfig) -> None:
    name, workers, envs = config.collector.name, config.collector.num_workers, config.env.num_envs
    _require(
        name != "single" or workers == 1,
        f"collector.num_workers={workers} was asked for, but collector=single collects in this process alone. Choose "
        "collector=multi_sync or collector=multi_async.",
    )
    _require(
        name == "single" or not config.algorithm.resets_rows,
        f"algorithm={config.algorithm.name} compares episodes of environments that are reset together, which the "
        f"workers of collector={name} are not. Choose collector=single, or algorithm=ppo.",
    )
    _require(
        name != "single" or config.collector.on_fault == "raise" or config.env.vectorization == "inline",
        f"collector.on_fault=restart with collector=single goes on only from faults of env.vectorization=inline, and "
        f"{config.env.vectorization} was asked for, which does not tell an environment's faults from others. Choose "
        "env.vectorization=inline, collector=multi_sync or collector.on_fault=raise.",
    )
    _require(
        envs % workers == 0,
        f"env.num_envs={envs} does not divide evenly among collector.num_workers={workers}. Give a multiple of "
        f"{workers}, for example env.num_envs={max(1, round(envs / workers)) * workers}.",
    )


def _divisors(number: int) -> list[int]:
    low = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return sorted({*low, *(number // divisor for divisor in low)})
