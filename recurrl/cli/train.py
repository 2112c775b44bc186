"""``recurrl-train``: composes the configuration of each job and runs it."""

import io
import logging
import os
import signal
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig

from recurrl import STARTED, __version__
from recurrl.cli.directories import check_unused, run_directory
from recurrl.cli.help import explained
from recurrl.cli.messages import message
from recurrl.cli.overrides import asks_for_keys, check_overrides, given_overrides, prepared
from recurrl.config.composed import as_schema, value_of
from recurrl.errors import ConfigError, RunError
from recurrl.runtime.ranks import launched_rank, launched_size, world
from recurrl.runtime.signals import Interrupted

_finished: list[tuple[str, str | None]] = []
"""Of each job of this process: its overrides, and the error it failed with."""


def main() -> None:
    """``recurrl-train``: trains one policy, or with ``-m`` one for each combination of overrides."""
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(f"recurrl {__version__}\n")
        return
    full_error = "HYDRA_FULL_ERROR" in os.environ
    # Without it Hydra prints errors itself, a traceback with each.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    # On a full disk each line of the log would print a traceback.
    logging.raiseExceptions = full_error
    try:
        if launched_rank() > 0:
            _follow()
            return
        check_overrides(sys.argv[1:])
        sys.argv[1:] = prepared(sys.argv[1:])
        if asks_for_keys(sys.argv[1:]):
            _print_explained()
        else:
            _jobs()
        if launched_size() > 1:
            _dismiss()
    except (ConfigError, RunError, HydraException, OSError) as error:
        if full_error:
            raise
        sys.exit(f"error: {message(error)}")
    except Interrupted as stop:
        sys.exit(stop.exit_code)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    finally:
        _report_jobs()


def _follow() -> None:
    """The whole run of a rank above 0."""
    from recurrl.cli.job import follow  # imports torch

    try:
        follow()
    except Exception as error:
        world().failed(error)
        if not isinstance(error, ConfigError | RunError):
            raise
        raise RunError(f"rank {launched_rank()}: {error}") from error


def _dismiss() -> None:
    from recurrl.cli.job import dismiss  # imports torch

    dismiss()


def _print_explained() -> None:
    """Prints Hydra's ``--help`` or ``--cfg job``, and what each key means."""
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            _jobs()
    finally:
        sys.stdout.write(explained(printed.getvalue()))


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
    is_sweep = HydraConfig.get().mode == RunMode.MULTIRUN
    if is_sweep and launched_size() > 1:
        raise ConfigError("-m starts many runs, and torchrun the ranks of one. Start torchrun once for each run.")
    run_dir = Path(HydraConfig.get().runtime.output_dir)
    started = time.time() if _finished else STARTED
    failure = None
    try:
        with run_directory(run_dir):
            check_unused(run_dir, value_of(composed, "resume"))
            as_schema(composed)
            if is_sweep:
                _name_group(composed)
            # This imports torch, which takes seconds.
            from recurrl.cli.job import run

            run(composed, given_overrides(), run_dir, started, record_refusals=is_sweep)
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
        # Of a sweep Hydra must have the error: it continues with the other jobs, which may run in other processes.
        if not is_sweep and isinstance(error, ConfigError | RunError):
            raise _Refused(error) from error
        raise
    finally:
        _finished.append((" ".join(given_overrides()) or "(defaults)", failure))


def _name_group(composed: DictConfig) -> None:
    """Names the group of a sweep's runs at the logger, unless it has one: the last two folders of the sweep's path."""
    logger = composed.logger
    if "group" in logger and logger.group is None:
        logger.group = "/".join(Path(HydraConfig.get().sweep.dir).resolve().parts[-2:])


def _report_jobs() -> None:
    """Of several jobs, says how many ended well, and names those that did not."""
    if len(_finished) < 2:
        return
    failed = [(name, error) for name, error in _finished if error is not None]
    sys.stderr.write(f"{len(_finished) - len(failed)} of {len(_finished)} jobs completed\n")
    for name, error in failed:
        sys.stderr.write(f"failed: {name}: {error}\n")
