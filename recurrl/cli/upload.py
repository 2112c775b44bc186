"""``recurrl-upload``: adds a run's files to its wandb run."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recurrl.cli.messages import TRUST_HELP, print_result
from recurrl.config import WandbConfig
from recurrl.config.composed import plain, typed
from recurrl.errors import ConfigError, naming
from recurrl.runs.saved_config import check_trusted
from recurrl.runtime.run_directory import EXPORTS, VIDEOS, locked, run_directory_of
from recurrl.runtime.run_summary import read_summary


def upload_main() -> None:
    """Adds files of a finished run with logger=wandb to its wandb run, as artifacts: the best checkpoint, and what
    recurrl-export and recurrl-evaluate --video wrote into the run's directory. Without a login they are recorded for a
    later wandb sync.
    """
    parser = argparse.ArgumentParser(prog="recurrl-upload", description=upload_main.__doc__)
    parser.add_argument("run", type=Path, help="a run directory")
    parser.add_argument("--trust-packages", action="store_true", help=TRUST_HELP)
    print_result(parser, _upload)


def _upload(arguments: argparse.Namespace) -> str:
    """Adds a run's files to its wandb run as artifacts, and returns a line that says which and where they are.

    Raises:
        ConfigError: the run was not logged to wandb, or is running.
        RunError: something could not be recorded or uploaded.
    """
    # These import torch, which the help and messages about typos need not wait for.
    from recurrl import checkpoint
    from recurrl.runs.open_run import config_of
    from recurrl.tracking.wandb import CHECKPOINT, upload

    run_dir = run_directory_of(arguments.run)
    saved = checkpoint.Checkpoint(checkpoint.find(run_dir))
    run_config = config_of(saved)
    check_trusted(run_config, arguments.trust_packages)
    with naming(run_config.source):
        options, run_id = typed(run_config.config).logger, saved.resumed.ids.get("wandb")
    if not isinstance(options, WandbConfig) or run_id is None:
        raise ConfigError(f"{run_dir} has no wandb run: it was trained with logger={options.name}. Give another run.")
    with locked(run_dir):
        best = checkpoint.Checkpoint(checkpoint.find(run_dir, checkpoint.BEST))
        evaluation = {name: value for name, value in best.metrics.items() if name.startswith("eval/")}
        about = {**evaluation, "frames": best.frames, "version": best.version, "sha256": best.checksums}
        artifacts: dict[str, tuple[Path, Mapping[str, Any]]] = {CHECKPOINT: (best.path, about)}
        artifacts |= {kind: (run_dir / kind, {}) for kind in (EXPORTS, VIDEOS) if (run_dir / kind).is_dir()}
        failed = read_summary(run_dir).get("status") not in ("completed", "stopped")
        where = upload(options, run_id, run_dir, plain(run_config.config), artifacts, failed)
    return f"{', '.join(artifacts)}: artifacts of the run's wandb run. {where}\n"
