"""The command line: composes and checks a configuration, runs jobs, reports what became of them."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from recurrl import STARTED, checkpoint, envs, losses, not_finite
from recurrl.atomic import atomic_write, remove_unfinished
from recurrl.collector import make_collector
from recurrl.config import TrainConfig
from recurrl.config.composed import typed, value_of
from recurrl.config.keys import check_key, differences, key_paths
from recurrl.errors import ConfigError, RunError
from recurrl.evaluation import KEPT, SHUFFLED, ZEROED, evaluate
from recurrl.replay_check import check_replay
from recurrl.report import Report
from recurrl.resources import sentence, shortages_as_sentences
from recurrl.run_directory import CONFIG_FILE, run_directory_of
from recurrl.signals import Interrupted, stop_request
from recurrl.time_limit import time_limit
from recurrl.tracking.csv import FILE_NAME
from recurrl.tracking.summary import write_summary
from recurrl.train import make_policy_for, set_process_state, train
from recurrl.validation import check

GROUPS = ("experiment", *(key.partition(".")[0] for key in key_paths(TrainConfig) if key.endswith(".name")))

logger = logging.getLogger(__name__)

_finished: list[tuple[str, str | None]] = []
"""Of each job of this process: its overrides, and the error it failed with."""


def main() -> None:
    """``recurrl-train``: trains one policy, or with ``-m`` one for each combination of overrides."""
    full_error = "HYDRA_FULL_ERROR" in os.environ
    # Without it Hydra prints errors itself, a traceback with each.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    # On a full disk each line of the log would print a traceback.
    logging.raiseExceptions = full_error
    try:
        _check_overrides(sys.argv[1:])
        _jobs()
    except (ConfigError, RunError, HydraException, OSError) as error:
        if full_error:
            raise
        # Hydra's error for a choice that does not exist is one of the operating system too.
        if isinstance(error, OSError) and not isinstance(error, HydraException):
            sys.exit(f"error: {sentence(error)}")
        sys.exit(f"error: {error}")
    except Interrupted as stop:
        sys.exit(stop.exit_code)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    finally:
        _report_jobs()


def evaluate_main() -> None:
    """``recurrl-evaluate``: plays deterministic episodes with the policy of a run."""
    parser = argparse.ArgumentParser(
        prog="recurrl-evaluate",
        description="Plays deterministic episodes with the policy of a run, and prints returns.",
    )
    parser.add_argument("run", type=Path, help="a run directory, or a checkpoint in one")
    parser.add_argument("--episodes", type=int, help="how many (default: as many as the run's own evaluation)")
    parser.add_argument("--seed", type=int, help="seed of the environments (default: the run's)")
    parser.add_argument("--device", help="where the policy runs (default: the run's device)")
    parser.add_argument(
        "--memory",
        action="store_true",
        help="also with the recurrent states zeroed at each step, and with those of another episode",
    )
    arguments = parser.parse_args()
    given = (arguments.run, arguments.episodes, arguments.seed, arguments.device)
    try:
        lines = [_return_line(evaluate_run(*given))]
        if arguments.memory:
            lines.append(f"with its memory zeroed: {_return_line(evaluate_run(*given, states=ZEROED))}")
            lines.append(f"with another episode's: {_return_line(evaluate_run(*given, states=SHUFFLED))}")
    except (ConfigError, RunError) as error:
        sys.exit(f"error: {error}")
    sys.stdout.write("\n".join(lines) + "\n")


def _return_line(returns: list[float]) -> str:
    return (
        f"return {fmean(returns):.1f} ± {pstdev(returns):.1f} over {len(returns)} episodes "
        f"(min {min(returns):.1f}, max {max(returns):.1f})"
    )


def evaluate_run(
    path: Path,
    episodes: int | None = None,
    seed: int | None = None,
    device: str | None = None,
    states: str = KEPT,
) -> list[float]:
    """Returns of deterministic episodes of a run's policy, in the environment it was trained in.

    Args:
        path: a run directory, or one of its checkpoints; of a run directory the newest checkpoint is taken.
        episodes: how many; default: as many as the run's own evaluation.
        seed: of the environments; default: the run's.
        device: where the policy runs; default: the run's.
        states: what becomes of the recurrent states between two steps, see :func:`recurrl.evaluation.evaluate`.

    Raises:
        ConfigError: the path is no run, its environment or device is not available here, or its policy has no states.
    """
    saved = checkpoint.Saved(checkpoint.find(path))
    config = typed(_config_of(saved))
    config = replace(config, resume=None, device=device or config.device)
    _check(config)
    episodes = config.evaluation.episodes if episodes is None else episodes
    if episodes < 1:
        raise ConfigError(f"--episodes {episodes} is too small. Give at least 1.")
    with time_limit(config.collector.timeout_s):
        policy = make_policy_for(config)
        saved.load_policy(policy)
        if states != KEPT and not policy.state_keys:
            raise ConfigError(f"--memory is about recurrent states, and the policy of {path} has none. Leave it out.")
        return evaluate(config.env, policy, episodes, config.seed if seed is None else seed, states)


def check_main() -> None:
    """``recurrl-check``: makes sure that an update would see what the rollout saw, and trains nothing."""
    parser = argparse.ArgumentParser(
        prog="recurrl-check",
        description="Collects a first batch, and checks that learning would see what the rollout saw. Trains nothing, "
        "and writes no files.",
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="as for recurrl-train")
    parser.add_argument("--config-dir", type=Path, help="a folder of your own yamls, as for recurrl-train")
    parser.add_argument(
        "--not-finite",
        type=Path,
        metavar="PATH",
        help="instead, go over what a run kept when learning yielded no numbers any more, and say where they end",
    )
    arguments = parser.parse_args()
    try:
        if arguments.not_finite is None:
            line = check_run(arguments.overrides, arguments.config_dir)
        else:
            line = "\n".join(examine_run(arguments.not_finite))
    except (ConfigError, RunError, HydraException) as error:
        sys.exit(f"error: {error}")
    sys.stdout.write(line + "\n")


def check_run(overrides: Sequence[str], config_dir: Path | None = None) -> str:
    """The line that the start-up check prints about the run that ``recurrl-train`` would start with these overrides.

    Raises:
        ConfigError: the run would be refused; a :class:`ReplayError` if by the check.
    """
    logging.getLogger("torchrl").setLevel(logging.WARNING)
    _check_overrides(overrides)
    search = [] if config_dir is None else [f"hydra.searchpath=[file://{config_dir.resolve()}]"]
    with hydra.initialize_config_module("recurrl.configs", version_base="1.3"):
        config = typed(hydra.compose("train", [*overrides, *search]))
    if config.resume is not None:
        raise ConfigError(
            "recurrl-check checks a run from its beginning; a run that goes on checks itself. Leave resume out."
        )
    _check(config)
    set_process_state(config)
    with time_limit(config.collector.timeout_s):
        policy = make_policy_for(config)
        collector = make_collector(config, policy)
        try:
            return check_replay(config, policy, next(iter(collector)))
        finally:
            collector.shutdown()


def examine_run(path: Path) -> list[str]:
    """What there is to say of the last batch of a run that ended because learning yielded no numbers any more.

    Args:
        path: what the run's error names.

    Raises:
        ConfigError: the path is none, or what is there is damaged.
    """
    config = typed(_saved_config(path))
    _check(config)
    set_process_state(config)
    return list(not_finite.examine(config, make_policy_for(config), path))


class _Refused(BaseException):
    """Carries the error of a single run past Hydra, which prints a line of its own about each ``Exception``."""

    def __init__(self, error: ConfigError | RunError) -> None:
        self.error = error


def _jobs() -> None:
    refused = None
    try:
        _job()
    except _Refused as stop:
        refused = stop.error
    # Not raised above, where it would be given another context than it had.
    if refused is not None:
        raise refused


@hydra.main(version_base="1.3", config_path="pkg://recurrl.configs", config_name="train")
def _job(composed: DictConfig) -> None:
    try:
        _run(composed)
    except (ConfigError, RunError) as error:
        # Of a sweep Hydra must have the error: it goes on with the other jobs, which may run in other processes.
        if HydraConfig.get().mode == RunMode.RUN:
            raise _Refused(error) from error
        raise


def _run(composed: DictConfig) -> None:
    started = time.time() if _finished else STARTED
    logging.getLogger("torchrl").setLevel(logging.WARNING)
    run_dir = Path(HydraConfig.get().runtime.output_dir)
    name = " ".join(_given_overrides()) or "(defaults)"
    report = Report(started=started)
    try:
        _check_unused(run_dir, composed)
    except ConfigError as error:
        _finished.append((name, f"{type(error).__name__}: {error}"))
        raise
    try:
        with shortages_as_sentences():
            remove_unfinished(run_dir)
            effective, start = _with_resumed(composed, run_dir)
            config = typed(effective)
            report.seed, report.device, report.cell = config.seed, config.device, config.cell.name
            _check(config)
            checkpoint.check_resume(config, start)
            with stop_request() as request, time_limit(config.collector.timeout_s):
                train(config, run_dir, _plain(effective), report, request, start)
        report.status = "completed"
    except KeyboardInterrupt:
        report.status = "interrupted"
        raise
    except Exception as error:
        report.error = f"{type(error).__name__}: {error}"
        raise
    finally:
        _finished.append((name, report.error))
        _record(report, run_dir)
    logger.info(_closing_line(report, run_dir))


def _record(report: Report, run_dir: Path) -> None:
    """Writes the summary. Where that fails too, the error that is raised is the one that the run failed with."""
    try:
        write_summary(run_dir, report.summary())
    except OSError as error:
        if report.error is None:
            raise RunError(f"summary.json cannot be written. {sentence(error)}") from error
        sys.stderr.write(f"summary.json cannot be written: {error}\n")


def _given_overrides() -> list[str]:
    """The job's overrides as they were given: an interpolation in one is about the run's configuration, not Hydra's."""
    given = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
    assert isinstance(given, list)
    return [str(override) for override in given]


def _check(config: TrainConfig) -> None:
    check(config)
    envs.check(config.env)
    if config.algorithm.resets_rows:
        envs.check_rows(config.env, config.steps_per_row)
    losses.check(config.algorithm)


def _check_unused(run_dir: Path, composed: DictConfig) -> None:
    """Refuses a directory that holds another run, before anything of that run is overwritten."""
    resume = value_of(composed, "resume")
    if not (run_dir / FILE_NAME).exists() or resume == checkpoint.AUTO:
        return
    path = None if resume is None else Path(str(resume))
    if path is None or checkpoint.is_alone(path) or run_directory_of(path).resolve() != run_dir.resolve():
        raise ConfigError(
            f"{run_dir} holds another run, which must not mix with this one. Give this run a directory of its own with "
            f"hydra.run.dir=..., or go on with that run with resume={run_dir}."
        )


def _check_overrides(arguments: Sequence[str]) -> None:
    """Refuses overrides of keys that do not exist, before Hydra does, which cannot name the nearest ones."""
    overrides = get_args_parser().parse_known_args(list(arguments))[0].overrides
    for override in OverridesParser.create().parse_overrides(overrides):
        key = override.key_or_group
        if key.startswith("hydra") or "/" in key:
            continue
        if key != "experiment":
            check_key(key)
        if key in GROUPS and not override.is_delete() and override.value() is None:
            raise ConfigError(f"{key}=null leaves {key} without a choice. Leave it out, or give one of its options.")


def _with_resumed(composed: DictConfig, run_dir: Path) -> tuple[DictConfig, checkpoint.Saved | None]:
    """The configuration of the run to go on from, with this command line's overrides, and what there is to go on from.

    Of a run that begins it is ``composed``, and None.

    What results is recorded in the run directory, for those who resume or evaluate this run.
    """
    resume = value_of(composed, "resume")
    start = checkpoint.to_resume(resume, run_dir)
    if resume == checkpoint.AUTO:
        what = f"going on from {start.path}" if start else f"{run_dir} holds no checkpoint, starting anew"
        logger.info("resume=auto: %s", what)
    if start is None:
        _save_config(composed, run_dir)
        return composed, None
    effective = _config_of(start)
    before = _plain(effective)
    for override in OverridesParser.create().parse_overrides(_given_overrides()):
        key = override.key_or_group
        if key == "experiment":
            raise ConfigError("experiment= cannot be given with resume=, which keeps its run's settings. Leave it out.")
        OmegaConf.update(effective, key, value_of(composed, key), merge=False, force_add=True)
    changes = differences(before, _plain(effective))
    for key, (was, now) in changes.items():
        if key != "resume":
            logger.info("going on with %s=%s, which was %s", key, now, was)
    checkpoint.check_changes(typed(effective), changes)
    _save_config(effective, run_dir)
    _save_config(effective, run_dir / ".hydra")
    return effective, start


def _save_config(config: DictConfig, folder: Path) -> None:
    # Atomically, for a run that goes on depends on it.
    with atomic_write(folder / CONFIG_FILE) as file:
        OmegaConf.save(config, file)


def _config_of(saved: checkpoint.Saved) -> DictConfig:
    """The configuration in the directory of a checkpoint's run; of a checkpoint that lies alone, the one within it."""
    return OmegaConf.create(saved.settings) if checkpoint.is_alone(saved.path) else _saved_config(saved.path)


def _saved_config(path: Path) -> DictConfig:
    """The configuration of the run that a path lies in."""
    config = OmegaConf.load(run_directory_of(path) / CONFIG_FILE)
    assert isinstance(config, DictConfig)
    return config


def _plain(config: DictConfig) -> dict[str, Any]:
    values = OmegaConf.to_container(config, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def _closing_line(report: Report, run_dir: Path) -> str:
    summary = report.summary()
    return (
        f"{report.frames} frames in {summary['train_time_s']:.1f} s of training; evaluation return "
        f"{report.eval_return_mean:.1f} ± {report.eval_return_std:.1f} over {report.eval_episodes} episodes"
        f"{_without_memory(report.eval_return_mean_zeroed_state, report.eval_return_mean_shuffled_state)}; {run_dir}"
    )


def _without_memory(zeroed: float | None, shuffled: float | None) -> str:
    return "" if zeroed is None else f", {zeroed:.1f} with its memory zeroed, {shuffled:.1f} with another episode's"


def _report_jobs() -> None:
    """Of several jobs, says how many ended well, and names those that did not."""
    if len(_finished) < 2:
        return
    failed = [(name, error) for name, error in _finished if error is not None]
    sys.stderr.write(f"{len(_finished) - len(failed)} of {len(_finished)} jobs completed\n")
    for name, error in failed:
        sys.stderr.write(f"failed: {name}: {error}\n")
