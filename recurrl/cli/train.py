"""``recurrl-train``: composes and checks the configuration of each job, runs it, and reports what became of it."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig

from recurrl import STARTED, checkpoint
from recurrl.atomic import remove_unfinished
from recurrl.cli.overrides import check_overrides, given_overrides
from recurrl.cli.rules import check_config
from recurrl.cli.run_config import check_unused, plain, with_resumed
from recurrl.config.composed import typed
from recurrl.errors import ConfigError, RunError
from recurrl.report import Report
from recurrl.resources import sentence, shortages_as_sentences
from recurrl.signals import Interrupted, stop_request
from recurrl.time_limit import time_limit
from recurrl.tracking.summary import write_summary
from recurrl.train import train

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
        check_overrides(sys.argv[1:])
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
    name = " ".join(given_overrides()) or "(defaults)"
    report = Report(started=started)
    try:
        check_unused(run_dir, composed)
    except ConfigError as error:
        _finished.append((name, f"{type(error).__name__}: {error}"))
        raise
    try:
        with shortages_as_sentences():
            remove_unfinished(run_dir)
            effective, start = with_resumed(composed, run_dir)
            config = typed(effective)
            report.seed, report.device, report.cell = config.seed, config.device, config.cell.name
            check_config(config)
            checkpoint.check_resume(config, start)
            with stop_request() as request, time_limit(config.collector.timeout_s):
                train(config, run_dir, plain(effective), report, request, start)
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


def _closing_line(report: Report, run_dir: Path) -> str:
    summary = report.summary()
    compiling = "" if report.compile_time_s is None else f" after {report.compile_time_s:.1f} s of compiling"
    return (
        f"{report.frames} frames in {summary['train_time_s']:.1f} s of training{compiling}; evaluation return "
        f"{report.eval_return_mean:.1f} ± {report.eval_return_std:.1f} over {report.eval_episodes} episodes"
        f"{_without_memory(report.eval_return_mean_zeroed_state, report.eval_return_mean_shuffled_state)}"
        f"{_not_learnt(report)}; {run_dir}"
    )


def _not_learnt(report: Report) -> str:
    if not report.no_better_than_random:
        return ""
    return (
        f"; no better than random actions, {report.eval_return_mean_random:.1f} ± {report.eval_return_std_random:.1f}: "
        "try env.normalize_reward=true with env.reward_scale=1, more total_frames, or algorithm.entropy_coeff=0.01"
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
