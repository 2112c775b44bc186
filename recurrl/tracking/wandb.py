"""Metrics as a Weights & Biases run, online or in the run directory."""

import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

# wandb would send its own errors to its makers, even from an offline run.
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")

import wandb

from recurrl.config import WandbConfig
from recurrl.errors import ConfigError, one_line
from recurrl.runtime.run_directory import METRICS
from recurrl.tracking.csv import log_history, read_rows
from recurrl.tracking.trackers import FRAMES, Resumed, Tracker

NAME = "wandb"
FINISH_TIMEOUT_S = 60.0
"""How long a finishing run waits to upload its last metrics; WANDB_FINISH_TIMEOUT overrides it."""

logger = logging.getLogger(__name__)


class WandbTracker(Tracker):
    """Logs to one wandb run, with frames as the x-axis of all metrics.

    Whatever wandb raises is logged, with where the metrics are, and training continues without it.

    Args:
        run: the wandb run.
        run_dir: directory of the training run, named in messages.
        recorded: frames up to which the wandb run already has metrics; those are not logged again.
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

    def close(self, exit_code: int = 0) -> None:
        """Finishes the run, waiting up to a timeout for pending writes and uploads."""
        self._attempt(self._run.finish, exit_code=exit_code)

    def _attempt(self, call: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        """Calls wandb, unless an earlier call failed."""
        if self._failed:
            return
        try:
            call(*args, **kwargs)
        except Exception as error:  # wandb's service must not fail a run
            self._failed = True
            reason = one_line(error)
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


def make(
    options: WandbConfig, run_dir: Path, settings: Mapping[str, Any], resumed: Resumed | None = None
) -> WandbTracker:
    """Starts a separate wandb run for this training run, even if the process has started others.

    A resumed run continues its wandb run, and ``logger.id`` names any wandb run to continue; one that is new gets the
    rows from before the resume. Steps never decrease: metrics already recorded for repeated frames stay.

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

    ``auto`` respects wandb's settings (``WANDB_MODE``, ``wandb offline``). Without any it is online if there is a
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


def _start(options: WandbConfig, run_id: str | None, run_dir: Path, settings: Mapping[str, Any]) -> wandb.Run:
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
            f"logger=wandb could not start a run with logger.mode={options.mode}: {one_line(error)}. Check wandb's "
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


def _folder(run: wandb.Run) -> Path:
    """The folder with wandb's files for the training run, earlier parts included."""
    return Path(run.dir).parents[1]


def _where(run: wandb.Run) -> str:
    if run.offline:
        return f"Upload it with: wandb sync {_folder(run)}"
    return f"See {run.url}" if run.url else ""
