"""The schema of a training run.

The values are in ``configs/``, the rules that relate several of them in :mod:`recurrl.validation`.
"""

from dataclasses import dataclass
from typing import Any

from recurrl.config.algorithm import AlgorithmConfig
from recurrl.config.cell import A_CELL, NO_CELL, BackendConfig, CellConfig, EncoderConfig
from recurrl.config.collector import BufferConfig, CollectorConfig
from recurrl.config.env import EnvConfig
from recurrl.config.options import (
    BOUNDED,
    CONTINUOUS,
    EPISODES,
    FRACTION,
    POSITIVE,
    RATE,
    SCALE,
    SECONDS,
    SEED,
    STEPS,
    WORKERS,
    Condition,
    Range,
    option,
)
from recurrl.runtime.ranks import launched_size

AUTO_DEVICE = AUTO_PRECISION = "auto"

PRECISIONS = (AUTO_PRECISION, "ieee", "tf32", "tf32x3", "bf16", "fast", "high-prec")
STORED, ZERO, BURN_IN, REFRESH = STATE_MODES = ("stored", "zero", "burn_in", "refresh")
"""The values of ``state``: where slices take their first recurrent state from, see ``recurrl.algorithms.states``."""

LINEAR = Condition("lr_schedule=linear", lambda run: run.lr_schedule == "linear")
ADAPTIVE = Condition("lr_schedule=adaptive", lambda run: run.lr_schedule == "adaptive")
PRETRAINS = Condition("pretrain.folder", lambda run: run.pretrain.folder is not None)
EVALUATES = Condition("evaluation.episodes above 0", lambda run: run.evaluation.episodes > 0)
EVALUATES_A_CELL = Condition(
    f"{EVALUATES.words} and {A_CELL.words}", lambda run: run.evaluation.episodes > 0 and run.cell.name != NO_CELL
)
MEASURES_SIGNAL = Condition(
    "several epochs of several minibatches",
    lambda run: run.epochs > 1 and run.minibatch_slices < run.frames_per_batch // run.slice_len,
)
RANKS = Condition("several ranks (torchrun)", lambda _: launched_size() > 1)
SCHEDULES = Condition(
    "a learning rate or an option of the algorithm that falls",
    lambda run: (run.lr_schedule == "linear" and run.lr_final_fraction != 1) or run.algorithm.follows_schedule,
)


@dataclass
class LoggerConfig:
    """Destinations of metrics in addition to ``metrics.csv``; a logger with options derives a dataclass."""

    name: Any = option("where metrics go in addition to metrics.csv; a list names several, with the options of each")

    @property
    def names(self) -> list[str]:
        """The loggers."""
        return self.name if isinstance(self.name, list) else [self.name]


@dataclass
class WandbConfig(LoggerConfig):
    """Weights & Biases."""

    project: str = option("wandb's project")
    mode: str = option("auto: wandb's own, else online with a login", choices=("auto", "online", "offline", "disabled"))
    group: str | None = option("wandb's group; null: the folder of a sweep, none for other runs")
    tags: list[str] = option("wandb's tags")
    id: str | None = option("id of a wandb run to continue; null: that of the resumed run, or a new one")


@dataclass
class PolicyConfig:
    """The network around the cell."""

    initial_std: float = option(
        "initial σ of continuous actions, relative to half the range if they are bounded", SCALE, only_with=CONTINUOUS
    )
    noise_correlation: float = option(
        "correlation between the noise of successive actions; higher values explore farther", Range(0, 1, below=True)
    )
    bounded_action: str = option(
        "clip (a Gaussian clipped to the bounds) or tanh (a squashed one)", choices=("clip", "tanh"), only_with=BOUNDED
    )
    previous_action: bool | None = option(
        "show the policy its previous action; null: only if actions are discrete and there is a recurrent layer"
    )


@dataclass
class CheckpointConfig:
    """When checkpoints are written, besides before evaluations, at the end and on interruption; how many are kept."""

    every_frames: int | None = option("frames between checkpoints; null: only before evaluations and at the end", STEPS)
    keep_last: int | None = option("checkpoints to keep in addition to the best evaluated one; null: all", STEPS)


@dataclass
class EvaluationConfig:
    """Evaluation in deterministic episodes."""

    episodes: int = option("number of deterministic episodes; 0: use the last ones of training instead", EPISODES)
    every_frames: int | None = option("frames between evaluations; null: only at the end", STEPS)
    memory: bool = option("at the end, also evaluate with zeroed and shuffled states", only_with=EVALUATES_A_CELL)
    random: bool = option("at the end, also evaluate random actions; warn if they are as good", only_with=EVALUATES)


@dataclass
class PretrainConfig:
    """Behaviour cloning before the first frame of a new run."""

    folder: str | None = option("a folder of recorded episodes, .npz files, to imitate before training; null: none")
    epochs: int = option("passes over the episodes", STEPS, only_with=PRETRAINS)


@dataclass
class RanksConfig:
    """Processes started by torchrun, which share a run."""

    timeout_s: float = option("seconds to wait for the other ranks, also during evaluations", SECONDS, only_with=RANKS)


@dataclass
class TrainConfig:
    """A training run."""

    env: EnvConfig
    cell: CellConfig
    backend: BackendConfig
    encoder: EncoderConfig
    algorithm: AlgorithmConfig
    collector: CollectorConfig
    buffer: BufferConfig
    logger: LoggerConfig
    policy: PolicyConfig
    checkpoint: CheckpointConfig
    evaluation: EvaluationConfig
    pretrain: PretrainConfig
    ranks: RanksConfig
    seed: int = option("seed of all random numbers", SEED)
    device: str = option("auto (cuda if available), cpu, or a CUDA device such as cuda:1")
    num_threads: int | None = option("torch's threads; null: torch's default; 1 is best for small networks", WORKERS)
    precision: str = option(
        "precision of the recurrent layer's matmuls: auto (TORCHRL_RNN_PRECISION, else torch's setting, by default "
        "ieee), ieee (single precision), tf32 (on a GPU), tf32x3 (three tf32 matmuls, nearly single precision; "
        "backend=triton), bf16 (backend=triton), fast (tf32; on a CPU ieee) or high-prec (tf32x3; on a CPU ieee)",
        choices=PRECISIONS,
        only_with=A_CELL,
    )
    recompute: str = option(
        "full: recompute the recurrent layer's activations in the backward pass instead of storing them",
        choices=("none", "full"),
        only_with=A_CELL,
    )
    compile: str = option(
        "loss: compile the loss with torch.compile (a slow start, then faster or slower, by the cell); cudagraphs: on "
        "a GPU, also replay loss, gradient and the policy's steps as CUDA graphs",
        choices=("none", "loss", "cudagraphs"),
    )
    total_frames: int = option("environment steps, summed over environments; never exceeded", STEPS)
    schedule_frames: int | None = option(
        "frames over which schedules decay, after which values stay; null: total_frames; a resumed run keeps its own",
        STEPS,
        only_with=SCHEDULES,
    )
    schedule_sqrt_after: int | None = option(
        "frames after which schedules also fall with 1/√frames; null: only linearly", STEPS, only_with=SCHEDULES
    )
    frames_per_batch: int = option("frames per iteration, in rows of frames_per_batch / env.num_envs steps", STEPS)
    slice_len: int = option("steps per slice, the length of backpropagation through time; must divide a row", STEPS)
    state: str = option(
        "first states of slices: stored (the rollout's), zero, burn_in (recomputed from half a slice earlier) or "
        "refresh (all recomputed before each epoch)",
        choices=STATE_MODES,
    )
    epochs: int = option("maximum number of passes over each batch", STEPS)
    min_epochs_fraction: float = option(
        "fraction of the epochs to take where gradients are mostly noise (optim/signal); 1: always all",
        FRACTION,
        only_with=MEASURES_SIGNAL,
    )
    minibatch_slices: int = option("slices per gradient step; must divide frames_per_batch / slice_len", STEPS)
    optimizer: str = option("adam or adamw (with a weight decay of 0.01)", choices=("adam", "adamw"))
    lr: float = option("initial learning rate", RATE)
    lr_schedule: str = option(
        "linear (falls with frames) or adaptive (keeps the KL near desired_kl; needs several gradient steps per batch)",
        choices=("linear", "adaptive"),
    )
    lr_final_fraction: float = option("fraction of lr at the end; 1: constant", FRACTION, only_with=LINEAR)
    desired_kl: float = option("KL of an update to adapt the rate to", POSITIVE, only_with=ADAPTIVE)
    consistency_check: bool = option("check before learning that the update sees what the rollout saw")
    resume: str | None = option(
        "a run directory (continued in place) or checkpoint; auto: the newest checkpoint in hydra.run.dir, or a new run"
    )
    init_from: str | None = option("a run directory or checkpoint, from which a new run takes the weights that fit")

    @property
    def steps_per_row(self) -> int:
        """T: steps per environment and iteration."""
        return self.frames_per_batch // self.env.num_envs

    @property
    def iterations(self) -> int:
        """Iterations in ``total_frames``, rounded down."""
        return self.total_frames // self.frames_per_batch
