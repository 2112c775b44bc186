"""Metrics as a Weights & Biases run, online or in the run directory."""

import logging
import os
import re
import shlex
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

# By default wandb reports its own errors to its developers, even from an offline run.
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")

import wandb

from recurrl.config import WandbConfig
from recurrl.errors import ConfigError, RunError, message_of
from recurrl.runtime.run_directory import METRICS
from recurrl.tracking import FRAMES, Resumed, Settings, Tracker
from recurrl.tracking.csv import log_history, read_rows

NAME, CHECKPOINT = "wandb", "checkpoint"
FINISH_TIMEOUT_S = 60.0
"""How long a finishing run waits to upload its last metrics; WANDB_FINISH_TIMEOUT overrides it."""

logger = logging.getLogger(__name__)


class WandbTracker(Tracker):
    """Logs to one wandb run, with frames as the x-axis of all metrics.

    An exception from wandb is logged, with the place where the metrics are, and training continues without wandb.

    Args:
        run: the wandb run.
        run_dir: directory of the training run, named in messages.
        recorded: frames up to which the wandb run already has metrics, which are not logged again.
    """

    def __init__(self, run: wandb.Run, run_dir: Path, recorded: int = 0) -> None:
        self.id = run.id
        self._run = run
        self._run_dir = run_dir
        self._recorded = recorded
        self._failed = False
        run.define_metric(FRAMES)
        run.define_metric("*", step_metric=FRAMES)

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Hands the metrics of one iteration to wandb, which writes or uploads them in the background."""
        if frames > self._recorded:
            # Frames are wandb's steps too: only files with consecutive steps are uploaded as one run.
            self._attempt(self._run.log, {FRAMES: frames, **metrics}, step=frames)

    def close(self, failed: bool = False) -> None:
        """Finishes the run, waiting up to a timeout for pending writes and uploads."""
        self._attempt(self._run.finish, exit_code=int(failed))

    def _attempt(self, call: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        """Calls wandb, unless an earlier call failed."""
        if self._failed:
            return
        try:
            call(*args, **kwargs)
        except Exception as error:  # wandb's service must not fail a run
            self._failed = True
            reason = message_of(error)
            if isinstance(error, TimeoutError):
                reason = f"no answer within {self._run.settings.finish_timeout:g} s (WANDB_FINISH_TIMEOUT)"
            logger.error(
                "wandb run %s is incomplete: %s. All metrics are in %s. Upload what wandb recorded with: "
                "wandb sync --include-online %s",
                *(self.id, reason, self._run_dir / METRICS, _folder(self._run)),
            )
            # The next run in this process, such as a sweep's, gets a new service.
            with suppress(Exception):
                wandb.teardown()


def make(options: WandbConfig, run_dir: Path, settings: Settings, resumed: Resumed | None = None) -> WandbTracker:
    """Starts a separate wandb run for this training run, even if the process has started others.

    A resumed run continues its own wandb run, or the one that ``logger.id`` names. A wandb run other than its own gets
    the rows from before the resume. Steps never decrease: metrics already recorded for repeated frames stay.

    Raises:
        ConfigError: wandb cannot start the run, for example online without a login or a connection, or the wandb run
            is ahead of the checkpoint.
    """
    earlier = None if resumed is None else resumed.ids.get(NAME)
    run = _start(options, options.id or earlier, run_dir, settings)
    tracker = WandbTracker(run, run_dir, _recorded(run, run_dir, resumed))
    if run.id != earlier:
        log_history(tracker, run_dir, resumed)
    return tracker


def choose_mode(mode: str) -> tuple[str, str]:
    """Chooses a mode for ``wandb.init``, and says why, without a prompt and without the network.

    ``auto`` respects wandb's settings (``WANDB_MODE``, ``wandb offline``). Without these it is online if there is a
    login, else offline.
    """
    if mode != "auto":
        return mode, f"logger.mode={mode}"
    configured = os.environ.get("WANDB_MODE") or wandb.setup().settings.mode
    if configured != "online" or "WANDB_MODE" in os.environ:
        return configured, "wandb's settings or WANDB_MODE"
    if wandb.run is not None:  # wandb.login then does nothing
        return str(wandb.run.settings.mode), "as the process's wandb run"
    if wandb.login(prompt=False, verify=False):
        return "online", "a login was found"
    return "offline", "no login was found; `wandb login` makes one"


def log_artifact(run: wandb.Run, kind: str, folder: Path, metadata: Mapping[str, Any]) -> None:
    """Makes a folder the newest version of the run's artifact of a kind.

    Online, waits for its upload, as long as a finishing run waits for its last metrics. Offline, copies the folder
    to the run's files, from where ``wandb sync`` uploads it.

    Raises:
        OSError: the folder cannot be read or copied.
        ValueError: the server rejected the artifact.
        wandb.Error: the upload took too long.
    """
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", f"{kind}-{run.id}")
    artifact = wandb.Artifact(name, type=kind, metadata=dict(metadata))
    if run.offline:
        copy = Path(run.dir).resolve().parent / "artifacts" / kind
        folder = shutil.copytree(folder, copy, copy_function=shutil.copyfile, dirs_exist_ok=True)
    artifact.add_dir(str(folder), skip_cache=True, policy="immutable")
    logged = run.log_artifact(artifact)
    if not run.offline:
        logged.wait(timeout=round(run.settings.finish_timeout))
    logger.info("wandb artifact %s: %s", name, folder)


def upload(
    options: WandbConfig,
    run_id: str,
    run_dir: Path,
    settings: Settings,
    artifacts: Mapping[str, tuple[Path, Mapping[str, Any]]],
    failed: bool,
) -> str:
    """Adds artifacts to the wandb run of a finished training run, and returns where they are.

    Args:
        options: the training run's wandb options.
        run_id: the wandb run's id.
        run_dir: the training run's directory.
        settings: the training run's whole configuration.
        artifacts: the folder and the metadata of each, by kind.
        failed: True if the training run failed, which wandb shows as the state of its run.

    Raises:
        ConfigError: wandb cannot continue the run.
        RunError: an artifact could not be recorded or uploaded.
    """
    run = _start(options, run_id, run_dir, settings)
    if run.disabled:
        run.finish()
        raise ConfigError("wandb is disabled (WANDB_MODE or `wandb disabled`). Set WANDB_MODE=online or offline.")
    try:
        for kind, (folder, metadata) in artifacts.items():
            log_artifact(run, kind, folder, metadata)
        run.finish(exit_code=int(failed))
    except Exception as error:  # wandb's failures have no common public type
        with suppress(Exception):
            run.finish(exit_code=int(failed))
        raise RunError(
            f"Not all of {', '.join(artifacts)} became artifacts of wandb run {run_id}: {message_of(error)}. Check the "
            "disk and the connection, and try again."
        ) from error
    return _where(run)


def _start(options: WandbConfig, run_id: str | None, run_dir: Path, settings: Settings) -> wandb.Run:
    try:
        # Hides wandb's start and end banners; errors and warnings still show.
        machine = wandb.setup(settings=wandb.Settings(show_info=False)).settings
        mode, reason = choose_mode(options.mode)
        run = wandb.init(
            project=options.project,
            dir=run_dir,
            # A resumed run keeps its name.
            name=machine.run_name or "/".join(run_dir.resolve().parts[-2:]) if run_id is None else None,
            group=options.group,
            tags=options.tags,
            id=run_id,
            # Offline, this makes the files upload as a continuation.
            resume=None if run_id is None else "allow",
            config=dict(settings),
            mode=mode,  # type: ignore[arg-type]
            force=mode == "online",
            reinit="create_new",
            settings=wandb.Settings(
                console="off",
                quiet=True,
                finish_timeout=machine.finish_timeout or FINISH_TIMEOUT_S,
                finish_timeout_raises=True,
            ),
        )
    except (wandb.Error, ValueError) as error:
        raise ConfigError(
            f"logger=wandb could not start a run with logger.mode={options.mode}: {message_of(error)}. Check wandb's "
            "settings (WANDB_...), log in with `wandb login` or WANDB_API_KEY and check the connection "
            "(WANDB_INIT_TIMEOUT limits its seconds); or choose logger.mode=offline, which records in the run "
            "directory for a later `wandb sync`, or logger=csv."
        ) from error
    logger.info("wandb run %s is %s (%s). %s", run.id, mode, reason, _where(run))
    return run


def _recorded(run: wandb.Run, run_dir: Path, resumed: Resumed | None) -> int:
    """The frames up to which the wandb run already has metrics.

    Raises:
        ConfigError: wandb's server has more metrics than this run recorded: another training run has continued it.
    """
    is_same = resumed is not None and resumed.ids.get(NAME) == run.id
    rows = read_rows(run_dir / METRICS) if is_same else []
    here = int(rows[-1][FRAMES]) if rows else 0
    if run.offline:
        return here
    recorded = max(0, run.starting_step - 1)
    begins = 0 if resumed is None else resumed.frames
    if recorded > max(here, begins):
        run.finish()
        raise ConfigError(
            f"wandb run {run.id} already has metrics up to {recorded} frames, but this run begins at {begins}: another "
            "run has continued it. Set logger.id=... to a new id to record this run separately, or resume "
            "the other run."
        )
    return recorded


def _folder(run: wandb.Run) -> str:
    """The folder with wandb's files for the training run, earlier parts included, quoted for a shell."""
    return shlex.quote(str(Path(run.dir).parents[1]))


def _where(run: wandb.Run) -> str:
    if run.offline:
        return f"Upload it with: wandb sync {_folder(run)}"
    return f"See {run.url}" if run.url else ""
