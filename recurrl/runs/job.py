"""One training run, from its composed configuration to its summary."""

import logging
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from recurrl import checkpoint
from recurrl.build import make_trainer
from recurrl.callbacks import Callback, IterationCallback, check_callbacks
from recurrl.config import TrainConfig
from recurrl.config.composed import resolved, typed, value_of
from recurrl.config.plugins import factory
from recurrl.envs.passed_env import with_maker
from recurrl.errors import ConfigError, RunError, os_error_message, resource_errors_as_messages
from recurrl.returns import return_format
from recurrl.runs.overrides import job_overrides, overridden_keys, text_of
from recurrl.runs.own_runs import remember
from recurrl.runs.resume import as_overrides, with_resumed
from recurrl.runs.saved_config import code_named
from recurrl.runtime.atomic import atomic_write, remove_unfinished
from recurrl.runtime.ranks import launched_rank, launched_size, world
from recurrl.runtime.run_directory import CONFIG_FILE, FILES, FOLDERS, METRICS, REPLACED, SUMMARY, run_directory_of
from recurrl.runtime.run_summary import RunSummary, read_summary, write_summary
from recurrl.runtime.signals import Interrupted, stop_request
from recurrl.runtime.time_limit import time_limit
from recurrl.tracking.csv import CsvTracker, log_history
from recurrl.validation import check_config

logger = logging.getLogger(__name__)


def run(
    composed: DictConfig,
    run_dir: Path,
    started: float,
    callbacks: Sequence[Callback | IterationCallback] = (),
    env: Any = None,
    strict: bool = True,
    config: TrainConfig | None = None,
) -> None:
    """Trains as configured, and writes the run's summary however it ends, unless it is rejected.

    Args:
        composed: the configuration as Hydra composed it. A run that it resumes keeps the configuration that it saved,
            with the job's overrides.
        run_dir: the run's directory, which no other process uses.
        started: when the command began, by ``time.monotonic``.
        callbacks: the user's callbacks.
        env: what makes the environments, if it was passed as an object.
        strict: reject values of the command line that have no effect.
        config: ``composed`` as dataclasses, if already converted; only for a run that does not resume.

    Raises:
        ConfigError: the configuration is invalid.
        RunError: the run failed; the message says why.
    """
    logging.getLogger("torchrl").setLevel(logging.WARNING)
    summary = RunSummary(started=started)
    with _recorded(summary, run_dir), resource_errors_as_messages():
        check_callbacks(callbacks)
        remove_unfinished(run_dir)
        remove_unfinished(run_dir / ".hydra")
        config, start = with_resumed(composed, run_dir) if config is None else (config, None)
        logger_options, hydra = vars(config.logger), HydraConfig.get()
        if hydra.mode == RunMode.MULTIRUN and logger_options.get("group", "") is None:
            logger_options["group"] = "/".join(Path(hydra.sweep.dir).resolve().parts[-2:])
        # Saved whole, because later versions may have other defaults; used again, they begin a new run.
        settings = asdict(config) | {"resume": None}
        config = resolved(config)
        config.env = with_maker(config.env, env)
        summary.seed, summary.device, summary.cell = config.seed, config.device, config.cell.name
        explicit_keys = overridden_keys(job_overrides())
        check_config(config, explicit_keys if strict else ())
        factory("collector", config.collector.name)  # imports the package that it needs
        if start is not None and _is_complete(start, config, run_dir):
            return  # its summary stays as it is
        summary.resume_command = _resume_command(OmegaConf.create(settings), run_dir, callbacks)
        record_settings = partial(record, settings, run_dir)

        def accepted() -> None:
            record_settings()
            (run_dir / SUMMARY).unlink(missing_ok=True)  # an old one would be taken for that of a killed run

        # The settings of a run that is resumed in place stay as they were until its checkpoint is loaded.
        if start is None or not start.is_in(run_dir):
            record_settings()
        if start is not None:
            _copy_history(start, run_dir)
            summary.frames = start.frames
            summary.checkpoint = "/".join(start.path.parts[-2:]) if start.is_in(run_dir) else None
        if launched_size() > 1:
            world().join()
            world().broadcast((settings, summary.frames))
            world().connect(config.device, config.ranks.timeout_s)
        with stop_request() as request, time_limit(config.collector.timeout_s):
            trainer = make_trainer(config, run_dir, settings, summary, request, start, explicit_keys, strict, callbacks)
            trainer.fit(on_accepted=accepted)
    logger.info(_closing_line(summary, run_dir))
    with suppress(OSError):  # they are in the summary
        sys.stderr.writelines(f"warning: {warning}\n" for warning in summary.warnings.values())


@contextmanager
def _recorded(summary: RunSummary, run_dir: Path) -> Iterator[None]:
    """Writes the run's summary when the block ends, however it ends; but removes what a rejected run wrote."""
    rejected, before, earlier = False, set(run_dir.iterdir()), read_summary(run_dir)
    try:
        yield
    except KeyboardInterrupt as stop:
        summary.status = "interrupted"
        logger.info(_stopped_line(str(stop) or "interrupted", summary, run_dir))
        raise
    except Exception as error:
        world().publish_failure(error)
        summary.error = f"{type(error).__name__}: {error}"
        rejected = isinstance(error, ConfigError) and not summary.has_begun
        if summary.has_begun:
            logger.info(_stopped_line("failed", summary, run_dir))
        raise
    finally:
        if rejected:
            for path in (run_dir / name for name in (*FILES, *FOLDERS) if name != REPLACED):
                if path not in before and path.exists():
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        else:
            _record_summary(summary, run_dir, earlier)
        world().leave()


def record(settings: dict[str, Any], run_dir: Path) -> None:
    """Writes the configuration of an accepted run, which resuming and evaluating it read, and Hydra's files.

    Args:
        settings: the configuration with all interpolations resolved: a saved one with interpolations is rejected.
        run_dir: the run's directory.
    """
    (run_dir / ".hydra").mkdir(exist_ok=True)
    contents: dict[str, Any] = {
        CONFIG_FILE: settings,
        ".hydra/config.yaml": settings,
        ".hydra/hydra.yaml": {"hydra": HydraConfig.get()},
        ".hydra/overrides.yaml": job_overrides(),
    }
    for name, values in contents.items():
        with atomic_write(run_dir / name) as file:  # a resumed run depends on it
            OmegaConf.save(OmegaConf.create(values), file)


def _copy_history(start: checkpoint.Checkpoint, run_dir: Path) -> None:
    """Copies the metrics of a run that this one continues in another directory."""
    if start.is_in(run_dir):
        return
    if not start.is_alone:
        log_history(CsvTracker(run_dir / METRICS), run_directory_of(start.path), start.resumed)
    start.resumed = start.resumed._replace(ids={})  # two runs must not write to the same wandb run


def _resume_command(settings: DictConfig, run_dir: Path, callbacks: Sequence[Callback | IterationCallback]) -> str:
    """The command that resumes the run; or a Python call, if a command line cannot name all of its arguments.

    It repeats the options that name code only if the run cannot be recorded as this user's own.
    """
    code = code_named(settings, run_dir)
    unknown = code if code and not remember(settings, run_dir) else ()
    overrides = [f"resume={text_of(run_dir)}", *as_overrides(settings, unknown)]
    passed = ["env"] * str(value_of(settings, "env.id")).startswith("<") + ["callbacks"] * bool(callbacks)
    main_code = ["code of __main__"] * any(text.startswith("__main__:") for texts in code.values() for text in texts)
    if passed or main_code:
        call = ", ".join([str(overrides), *(f"{name}=..." for name in passed)])
        return f"recurrl.train({call}), because {' and '.join(passed + main_code)} can only be passed from Python"
    # Modules of the user, and a teacher, are found from the folder in which the run was started.
    first = f"cd {shlex.quote(str(Path.cwd()))} && " if code or value_of(settings, "algorithm.teacher") else ""
    return first + shlex.join(["recurrl-train", *overrides])


def run_rank() -> None:
    """Takes part in the run of rank 0 as another rank; logs only errors.

    Raises:
        ConfigError: this machine cannot take part in the run.
        RunError: the run failed; the message says why.
    """
    rank = launched_rank()
    logging.basicConfig(level=logging.ERROR, format=f"[%(asctime)s][rank {rank}][%(levelname)s] - %(message)s")
    logging.getLogger("torchrl").setLevel(logging.ERROR)
    world().join()
    message = world().broadcast()
    if message is not None:
        settings, frames = message
        with resource_errors_as_messages():
            config = typed(OmegaConf.create(settings))
            check_config(config)
            world().connect(config.device, config.ranks.timeout_s)
            # Rank 0 is told of the signal, and logs how the run ended.
            with suppress(Interrupted), stop_request() as request, time_limit(config.collector.timeout_s):
                make_trainer(config, Path(), settings, RunSummary(time.monotonic(), frames=frames), request).fit()
    world().leave()


def _is_complete(start: checkpoint.Checkpoint, config: TrainConfig, run_dir: Path) -> bool:
    """True for a complete run that a scheduler starts again: nothing is left to do, and its summary says so.

    Raises:
        ConfigError: a complete run is resumed without more frames, or an interrupted one with fewer than it has.
    """
    if not start.is_complete or start.frames + config.frames_per_batch <= config.total_frames:
        return False
    has_completed: bool = read_summary(run_dir).get("status") == "completed"
    if config.resume != checkpoint.AUTO or (not has_completed and config.total_frames < start.frames):
        raise ConfigError(
            f"total_frames must be at least {start.frames + config.frames_per_batch} (got {config.total_frames}), "
            f"because resume={config.resume} is already at {start.frames} frames. Set a larger total_frames."
        )
    if has_completed:
        logger.info("%s is complete: %d frames. A larger total_frames extends it.", run_dir, start.frames)
    return has_completed


def _record_summary(summary: RunSummary, run_dir: Path, earlier: Mapping[str, Any]) -> None:
    """Writes the summary, or the earlier one if nothing has changed. If this fails, the run's own error is raised."""
    has_changed = summary.has_begun or summary.status in ("completed", "stopped") or not earlier.get("frames")
    try:
        write_summary(run_dir, summary.values() if has_changed else earlier)
    except OSError as error:
        if summary.error is None:
            raise RunError(f"summary.json cannot be written. {os_error_message(error)}") from error
        sys.stderr.write(f"summary.json cannot be written: {error}\n")


def _stopped_line(how: str, summary: RunSummary, run_dir: Path) -> str:
    at = f"{how} at {summary.frames} frames"
    if summary.checkpoint is None:
        return f"{at}; this run has written no checkpoint to {run_dir}"
    return f"{at}; last checkpoint: {run_dir / summary.checkpoint}; to resume: {summary.resume_command}"


def _closing_line(summary: RunSummary, run_dir: Path) -> str:
    compiling = "" if summary.compile_time_s is None else f" after {summary.compile_time_s:.1f} s of compiling"
    stopped = "stopped by a callback after " if summary.status == "stopped" else ""
    trained = f"{stopped}{summary.frames} frames in {summary.values()['train_time_s']:.1f} s of training{compiling}"
    evaluation = summary.evaluation
    if not evaluation:
        return f"{trained}; no episode of training has ended; {run_dir}"
    mean, std, episodes = (evaluation[name] for name in ("return_mean", "return_std", "episodes"))
    memory = ""
    form = return_format(mean, std)
    if "return_mean_zeroed_state" in evaluation:
        zeroed, shuffled = (evaluation[f"return_mean_{states}_state"] for states in ("zeroed", "shuffled"))
        memory = f", {zeroed:{form}} with its memory zeroed, {shuffled:{form}} with another episode's memory"
    spread = f" ± {std:{form}} over {episodes:.0f} episode{'s' * (episodes != 1)}" if episodes else ""
    return f"{trained}; evaluation return {mean:{form}}{spread}{memory}; {run_dir}"
