"""``recurrl-train``: composes the configuration of each job and runs it."""

from __future__ import annotations

import logging
import os
import sys
import time
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import env_override
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from recurrl import STARTED, __version__
from recurrl.cli.help import explained, help_of
from recurrl.cli.messages import errors_as_messages
from recurrl.cli.sweep import SWEEP, sweep_job
from recurrl.config.composed import as_schema, value_of
from recurrl.errors import ConfigError, RunError, require
from recurrl.runs.directories import run_directory
from recurrl.runs.launcher import launch, launch_saved
from recurrl.runs.overrides import arguments_of, check_choices, compose, hydra_errors_as_config_errors, prepared
from recurrl.runtime.ranks import launched_rank, launched_size, world
from recurrl.runtime.run_summary import read_summary


def main() -> None:
    """``recurrl-train``: trains one policy, or with ``-m`` one for each combination of overrides."""
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(f"recurrl {__version__}\n")
        return
    # On a full disk each line of the log would print a traceback.
    logging.raiseExceptions = "HYDRA_FULL_ERROR" in os.environ
    with errors_as_messages():
        _command() if launched_rank() == 0 else _follow()


def _command() -> None:
    """Trains, or prints help or a configuration; the whole program of rank 0."""
    arguments = arguments_of(sys.argv[1:])
    shows_only = arguments.help or arguments.cfg is not None
    require(
        not (arguments.multirun and shows_only),
        "-m cannot be combined with --help or --cfg, which start no run. Leave one of them out.",
    )
    if arguments.multirun and launched_size() > 1:
        raise ConfigError("-m must not be used under torchrun, which starts one run. Start torchrun once per run.")
    by_hydra = arguments.package is not None or arguments.resolve or arguments.config_name is not None
    if arguments.help or (arguments.cfg == "job" and not by_hydra):
        composed = compose(arguments.overrides, arguments.config_dir, is_run=False)
        if not arguments.help and value_of(composed, "resume") is not None:
            from recurrl.runs.resume import with_resumed  # imports torch

            composed = OmegaConf.create(asdict(with_resumed(composed, Path(HydraConfig.get().run.dir))[0]))
        sys.stdout.write(help_of(composed, arguments.config_dir) if arguments.help else explained(composed))
    else:
        sys.argv[1:] = prepared(sys.argv[1:], is_run=arguments.cfg is None)
        # With HYDRA_FULL_ERROR set, Hydra raises exceptions instead of printing them.
        with SWEEP, env_override({"HYDRA_FULL_ERROR": "1"}), hydra_errors_as_config_errors():
            _job()
    if launched_size() > 1 and not world().has_joined:  # no run has begun, and the other ranks wait for one
        world().join()
        world().broadcast(None)
        world().leave()


def _follow() -> None:
    """Takes part in the run of rank 0; the whole program of every other rank."""
    from recurrl.runs.job import run_rank  # imports torch

    try:
        run_rank()
    except Exception as error:
        world().publish_failure(error)
        if not isinstance(error, ConfigError | RunError):
            raise
        raise RunError(f"rank {launched_rank()}: {error}") from error


@hydra.main(version_base="1.3", config_path="pkg://recurrl.configs", config_name="train")
def _job(composed: DictConfig) -> float | None:
    is_sweep = HydraConfig.get().mode == RunMode.MULTIRUN
    run_dir, started = Path(HydraConfig.get().runtime.output_dir), time.monotonic() if is_sweep else STARTED
    try:
        with run_directory(run_dir, composed) as resume, sweep_job(run_dir) if is_sweep else nullcontext():
            check_choices(composed)
            launch(composed) if resume in (None, "auto") else launch_saved(Path(resume))
            # Typed here, so that typos are reported before the import of torch, which takes seconds.
            config = as_schema(composed) if resume is None else None
            from recurrl.runs.job import run

            run(composed, run_dir, started, config=config)
    except (ConfigError, RunError) as error:
        # In a sweep Hydra must see the error: it continues with the other jobs, which may run in other processes.
        # For a single run, Hydra would print another line about the error.
        if is_sweep or logging.raiseExceptions:
            raise
        sys.exit(f"error: {error}")
    return read_summary(run_dir)["eval_return_mean"]  # for sweepers that maximise it
