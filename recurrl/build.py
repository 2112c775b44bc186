"""Builds the parts of a run from its configuration."""

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from recurrl import checkpoint
from recurrl.algorithms.algorithm import Algorithm
from recurrl.callbacks import Callback, Callbacks, IterationCallback, UserCallback, builtin
from recurrl.callbacks.diagnosis import Diagnosis
from recurrl.checkpoint.warm_start import copy_weights
from recurrl.collector.collector import Collector, RestartableCollector, RolloutSpec
from recurrl.collector.restarts import RestartingCollector, Restarts
from recurrl.config import TrainConfig, WorkersConfig
from recurrl.config.cell import NO_CELL
from recurrl.config.plugins import factory
from recurrl.envs import make_batched_env
from recurrl.errors import check_method, naming, require
from recurrl.keys import ACTION, OBSERVATION, PRIVILEGED
from recurrl.policy import Policy, make_policy
from recurrl.policy.build import conditions_met
from recurrl.policy.distributions import GaussianParameters
from recurrl.pretraining import pretrain
from recurrl.recurrent import precision
from recurrl.runtime.ranks import World, world
from recurrl.runtime.run_summary import RunSummary
from recurrl.runtime.seeds import seed_of_rank, seed_process, seeds
from recurrl.runtime.signals import StopRequest
from recurrl.tracking import make_trackers
from recurrl.tracking.progress import Progress
from recurrl.trainer import Trainer
from recurrl.validation import check_effects

logger = logging.getLogger(__name__)
_DEFAULT_THREADS = torch.get_num_threads()


def make_trainer(
    config: TrainConfig,
    run_dir: Path,
    settings: Mapping[str, Any],
    summary: RunSummary,
    stop_request: StopRequest,
    resume_from: checkpoint.Checkpoint | None = None,
    explicit_keys: Collection[str] = (),
    strict: bool = True,
    callbacks: Sequence[Callback | IterationCallback] = (),
) -> Trainer:
    """Makes this rank's trainer of a run, ready to :meth:`~recurrl.trainer.Trainer.fit`.

    Args:
        config: the whole run's configuration, checked.
        run_dir: the run's directory, in which rank 0 writes.
        settings: the whole configuration as plain values, for trackers and checkpoints.
        summary: updated during the run; its frames are those before a resume.
        stop_request: ends the run after an iteration, with a checkpoint; evaluations stop between two steps.
        resume_from: the checkpoint to resume from, on rank 0; None for a new run.
        explicit_keys: the keys of values that the user gave.
        strict: reject those without an effect in this environment.
        callbacks: the user's callbacks.

    Raises:
        ConfigError: the environment cannot be used as requested.
    """
    rank_config = config_of_rank(config, world())
    set_process_state(rank_config)
    policy = make_policy_for(rank_config, explicit_keys if strict else ())
    if world().rank == 0 and resume_from is None:
        # Before the algorithm is made, which may copy the first policy.
        summary.pretrain_log_likelihood = warm_start(config, policy, explicit_keys)
    algorithm, restarts = make_algorithm(rank_config, policy), Restarts(config.collector.on_env_error)
    logger.info(describe(config, algorithm))
    own = [name for name, each in algorithm.named_parameters() if each.requires_grad and not name.startswith("policy.")]
    if own and world().rank == 0 and resume_from is None and config.init_from is not None:
        logger.info("init_from: the algorithm's own, left as initialised: %s", ", ".join(own))
    summary.has_begun = resume_from is None
    if world().rank > 0:
        seed_process(seed_of_rank(config.seed, summary.frames, world().rank))
    with ExitStack() as opened:
        all_callbacks = make_callbacks(config, rank_config, run_dir, settings, policy, resume_from, callbacks)
        opened.callback(all_callbacks.close, failed=True)
        collector = make_collector(rank_config, policy, summary.frames, restarts)
        opened.pop_all()
    return Trainer(config, run_dir, algorithm, collector, restarts, all_callbacks, summary, stop_request)


def make_callbacks(
    config: TrainConfig,
    rank_config: TrainConfig,
    run_dir: Path,
    settings: Mapping[str, Any],
    policy: Policy,
    resume_from: checkpoint.Checkpoint | None,
    callbacks: Sequence[Callback | IterationCallback],
) -> Callbacks:
    """The callbacks of a run in their order: check, statistics, warnings, checkpoints, evaluation, the user's, log.

    In this order, an interrupted evaluation already has its checkpoint, so that a resumed run repeats it.
    ``rank_config`` is this rank's part of the configuration.
    """
    check = [builtin.ConsistencyCheck(rank_config)] if config.consistency_check else []
    if world().rank > 0:
        return Callbacks([*check, builtin.EpisodeStatistics(), builtin.Checkpoints(settings, {}, None)])
    trackers = make_trackers(config.logger, run_dir, settings, None if resume_from is None else resume_from.resumed)
    continuous = sum(head.log_std.numel() for head in policy.modules() if isinstance(head, GaussianParameters))
    diagnosis = Diagnosis(config.iterations, config.algorithm.max_grad_norm, continuous, config.policy.initial_std)
    checkpoints = builtin.Checkpoints(settings, trackers, resume_from, rewrites=bool(callbacks))
    return Callbacks(
        [
            *check,
            builtin.EpisodeStatistics(),
            diagnosis,
            checkpoints,
            builtin.Evaluation(rank_config.env),
            *(
                each if isinstance(each, Callback) else UserCallback(each, policy, rank_config.env)
                for each in callbacks
            ),
            builtin.Log(trackers.values(), diagnosis, checkpoints, Progress(config.total_frames)),
        ]
    )


def config_of_rank(config: TrainConfig, ranks: World) -> TrainConfig:
    """A rank's share of the environments, workers, frames per iteration and slices per minibatch."""
    size, collector = ranks.size, config.collector
    if size == 1:
        return config
    if isinstance(collector, WorkersConfig):
        collector = replace(collector, num_workers=collector.num_workers // size)
    return replace(
        config,
        env=replace(config.env, num_envs=config.env.num_envs // size),
        collector=collector,
        frames_per_batch=config.frames_per_batch // size,
        minibatch_slices=config.minibatch_slices // size,
        device=f"cuda:{ranks.local_rank}" if config.device == "cuda" else config.device,
    )


def set_process_state(config: TrainConfig) -> None:
    """Sets process-wide state, so that a sweep's jobs do not inherit it from one another."""
    seed_process(config.seed)
    torch.set_num_threads(config.num_threads or _DEFAULT_THREADS)
    tf32 = precision.resolve(config.precision, torch.device(config.device)) == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    if config.compile != "none":
        # What a sweep's earlier jobs compiled would count towards torch's limit of variants per function.
        torch.compiler.reset()


def make_policy_for(config: TrainConfig, explicit_keys: Collection[str] = ()) -> Policy:
    """Makes the configured policy. One copy of the environment is made for its specs, and closed.

    Args:
        config: a checked configuration.
        explicit_keys: the keys of values that the user gave.

    Raises:
        ConfigError: the policy cannot be made for these specs, or an explicit value has no effect with them.
    """
    with closing(
        make_batched_env(config.env, 1, config.seed, privileged=PRIVILEGED in config.algorithm.critic_only)
    ) as env:
        observation, action = env.observation_spec[0], env.full_action_spec[0][ACTION]
        check_effects(config, explicit_keys, conditions_met(config.algorithm, observation[OBSERVATION], action))
        return make_policy(config, observation, action)


def warm_start(config: TrainConfig, policy: Policy, explicit_keys: Collection[str]) -> float | None:
    """Initialises the policy of a new run from another run's weights and from recordings, as configured.

    Returns:
        The mean log-likelihood of recorded actions after pretraining, if there was any.

    Raises:
        ConfigError: the run or the recordings do not exist, or do not fit the policy.
    """
    if config.init_from is not None:
        with naming(f"init_from={config.init_from}"):
            lines = copy_weights(policy, Path(config.init_from), "policy.initial_std" in explicit_keys)
        for line in lines:
            logger.info(line)
    if config.pretrain.folder is None:
        return None
    return pretrain(policy, config.env, config.pretrain, config.lr, config.slice_len, config.minibatch_slices)


def make_algorithm(config: TrainConfig, policy: Policy) -> Algorithm:
    """The configured algorithm, which improves ``policy`` in place."""
    options = config.algorithm
    algorithm: Algorithm = factory("algorithm", options.name)(options, policy, config)
    require(
        isinstance(algorithm, Algorithm),
        f"algorithm.name={options.name} must make a recurrl.algorithms.Algorithm (got a {type(algorithm).__name__}). "
        "Use a class derived from it, or a function that returns an object of one.",
    )
    what = f"The algorithm {type(algorithm).__name__}"
    for name, method in vars(Algorithm).items():
        is_defined = name not in ("prepare", "loss") or getattr(type(algorithm), name) is not method
        require(is_defined, f"{what} must define prepare and loss (got no {name}).")
        if callable(method) and not name.startswith("_"):
            check_method(what, algorithm, Algorithm, name)
    return algorithm.to(policy.device)


def make_collector(config: TrainConfig, policy: Policy, frames: int = 0, restarts: Restarts | None = None) -> Collector:
    """The configured collector.

    Args:
        config: the rank's configuration, see :func:`config_of_rank`.
        policy: acts in the environments.
        frames: frames of the run so far; they determine the seeds, so that a resumed run uses new random numbers.
        restarts: counts restarts after errors.

    Raises:
        ConfigError: the environment cannot be made, or cannot be sent to workers.
    """
    restarts = restarts or Restarts(config.collector.on_env_error)
    run_seed, group_size = seed_of_rank(config.seed, frames), config.algorithm.envs_per_group

    def seed_after(count: int) -> int:
        # Skips the seeds of lower ranks, so that all ranks together use the seeds that one process would.
        lower = (count * world().size + world().rank) * config.env.num_envs
        return seeds(run_seed, lower + 1)[-1]

    seed, captures = seed_after(0), config.compile == "cudagraphs"
    spec = RolloutSpec(config.env, policy, config.frames_per_batch, seed, group_size, captures)
    collector: RestartableCollector = factory("collector", config.collector.name)(config.collector, spec)
    return RestartingCollector(collector, restarts, seed_after) if restarts.allowed else collector


def describe(config: TrainConfig, algorithm: Algorithm) -> str:
    """A one-line description of a run."""
    parameters = sum(parameter.numel() for parameter in algorithm.parameters() if parameter.requires_grad)
    memory = "no memory (cell=none)"
    if config.cell.name != NO_CELL:
        memory = f"{config.cell.name} {config.cell.hidden_size}, backend={config.backend.name},"
    return (
        f"{config.env.id}, {config.env.num_envs} environments; {memory} on {config.device}, precision "
        f"{config.precision}; {parameters:,} parameters; "
        f"{config.iterations} iteration{'s' * (config.iterations != 1)} of {config.frames_per_batch} frames"
    )
