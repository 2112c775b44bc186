"""Metrics as a Weights & Biases run, online or in the run directory."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import wandb
from wandb.sdk.mailbox import HandleAbandonedError, MailboxClosedError

from recurrl.config import WandbConfig
from recurrl.errors import ConfigError, RunError, require
from recurrl.runtime.run_directory import CHECKPOINTS, METRICS
from recurrl.tracking.csv import last_frames
from recurrl.tracking.trackers import FRAMES, FindCheckpoint, Resumed
from recurrl.tracking.wandb_artifacts import CHECKPOINT, FAILURES, log_artifact
from recurrl.tracking.wandb_mode import choose_mode

NAME = "wandb"
FINISH_TIMEOUT_S = 60.0
"""How long a finishing run waits to upload its last metrics; WANDB_FINISH_TIMEOUT overrides it."""
SERVICE_ENDED = (ConnectionError, HandleAbandonedError, MailboxClosedError)
"""Raised by wandb's calls once its service process has ended. Two have no public name."""

logger = logging.getLogger(__name__)


class WandbTracker:
    """Logs to one wandb run, with frames as the x-axis of all metrics.

    If wandb's service process, which writes and uploads, ends early, training continues without it and an error in the
    log says where the metrics are.

    Args:
        run: the wandb run.
        run_dir: directory of the training run, named in messages.
        resources: released once the run is finished.
        recorded: frames up to which the wandb run already has metrics; those are not logged again.
        artifacts: keep the best checkpoint.
    """

    def __init__(
        self, run: wandb.Run, run_dir: Path, resources: ExitStack, recorded: int = 0, artifacts: bool = False
    ) -> None:
        self._run = run
        self._run_dir = run_dir
        self._resources = resources
        self._recorded = recorded
        self._artifacts = artifacts
        self._service_ended = False
        run.define_metric(FRAMES)
        run.define_metric("*", step_metric=FRAMES)

    @property
    def id(self) -> str:
        """The run's id, unique in its project."""
        return self._run.id

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Hands the metrics of one iteration to wandb, which writes or uploads them in the background."""
        if self._service_ended or frames <= self._recorded:
            return
        with self._tolerating_service_end():
            # Frames are wandb's steps too: only files with consecutive steps are uploaded as one run.
            self._run.log({FRAMES: frames, **metrics}, step=frames)

    def log_checkpoint(self, find: FindCheckpoint) -> None:
        """Makes the best checkpoint an artifact of the run, and waits up to a timeout for its upload."""
        if not self._artifacts or self._service_ended:
            return
        with self._tolerating_service_end():
            try:
                log_artifact(self._run, CHECKPOINT, *find())
            except ConnectionError:
                raise
            except FAILURES as error:
                logger.error(
                    "The best checkpoint is not an artifact of wandb run %s: %s. It is in %s; upload it with: "
                    "recurrl-upload %s checkpoint",
                    *(self._run.id, _one_line(error), self._run_dir / CHECKPOINTS, self._run_dir),
                )

    def close(self, exit_code: int = 0) -> None:
        """Finishes the run, waiting up to a timeout for pending writes and uploads."""
        with self._resources, self._tolerating_service_end():
            if not self._service_ended:
                self._finish(exit_code)

    def _finish(self, exit_code: int) -> None:
        try:
            self._run.finish(exit_code=exit_code)
        except TimeoutError:
            logger.error(
                "The last metrics of wandb run %s could not be uploaded within %g s (WANDB_FINISH_TIMEOUT): the server "
                "does not answer. They are in %s; upload them with: wandb sync --include-online %s",
                *(self._run.id, self._run.settings.finish_timeout, self._run_dir / METRICS, _folder(self._run)),
            )
        except ConnectionError:
            raise
        except OSError as error:
            logger.error(
                "wandb could not write all of wandb run %s: %s. All metrics are in %s.",
                *(self._run.id, error.strerror or error, self._run_dir / METRICS),
            )
            # Give the next run in this process, such as a sweep's, a clean service.
            wandb.teardown()

    @contextmanager
    def _tolerating_service_end(self) -> Iterator[None]:
        try:
            yield
        except SERVICE_ENDED:
            self._service_ended = True
            # Otherwise its threads keep querying the ended process.
            with suppress(*SERVICE_ENDED):
                self._run.finish()
            # Give the next run in this process, such as a sweep's, a new service.
            with suppress(*SERVICE_ENDED):
                wandb.teardown()
            logger.error(
                "wandb's service process has ended, and wandb run %s is no longer recorded. Training continues, "
                "with all metrics in %s. Upload what wandb recorded so far with: wandb sync --include-online %s",
                *(self._run.id, self._run_dir / METRICS, _folder(self._run)),
            )


def make(
    options: WandbConfig, run_dir: Path, settings: Mapping[str, Any], resumed: Resumed | None = None
) -> WandbTracker:
    """Starts a separate wandb run for this training run, even if the process has started others.

    A resumed run continues its wandb run, and ``logger.id`` names any wandb run to continue. Steps never
    decrease: metrics already recorded for repeated frames stay.

    The mode ``auto`` respects wandb's own settings (``WANDB_MODE``, ``wandb offline``); without any it is online if
    there is a login, else offline. Modes other than online never ask for a login or use the network.

    Raises:
        ConfigError: wandb cannot start the run, for example online without a login or a connection, or the wandb run
            is ahead of the checkpoint.
    """
    with ExitStack() as resources:
        earlier = None if resumed is None else resumed.ids.get(NAME)
        run = _begin(options, options.id or earlier, run_dir, settings, resources)
        recorded = _recorded(run, run_dir, resumed)
        return WandbTracker(run, run_dir, resources.pop_all(), recorded, options.artifacts)


def upload(
    options: WandbConfig,
    run_id: str,
    run_dir: Path,
    settings: Mapping[str, Any],
    artifacts: Mapping[str, tuple[Path, Mapping[str, Any]]],
    exit_code: int,
) -> str:
    """Adds artifacts to the wandb run of a finished training run, and returns where they are.

    Args:
        options: of the training run.
        run_id: of the wandb run.
        run_dir: the training run's directory.
        settings: the training run's whole configuration.
        artifacts: the folder and the metadata of each, by kind.
        exit_code: of the training run.

    Raises:
        ConfigError: wandb cannot continue the run.
        RunError: an artifact could not be recorded or uploaded.
    """
    with ExitStack() as resources:
        run = _begin(options, run_id, run_dir, settings, resources)
        require(
            not run.disabled, "wandb is disabled (WANDB_MODE or `wandb disabled`). Set WANDB_MODE=online or offline."
        )
        try:
            for kind, (folder, metadata) in artifacts.items():
                log_artifact(run, kind, folder, metadata)
            run.finish(exit_code=exit_code)
        except (*FAILURES, *SERVICE_ENDED) as error:
            with suppress(*FAILURES, *SERVICE_ENDED):
                run.finish(exit_code=exit_code)
            raise RunError(
                f"Not all of {', '.join(artifacts)} became artifacts of wandb run {run_id}: {_one_line(error)}. Check "
                "the disk and the connection, and try again."
            ) from error
        return _where(run)


def _begin(
    options: WandbConfig, run_id: str | None, run_dir: Path, settings: Mapping[str, Any], resources: ExitStack
) -> wandb.Run:
    asked = _process_settings()
    mode = choose_mode(options.mode, asked)
    resources.enter_context(_process_mode(mode.name, asked.mode))
    try:
        run = wandb.init(
            project=options.project,
            dir=run_dir,
            # A resumed run keeps its name.
            name="/".join(run_dir.resolve().parts[-2:]) if run_id is None else None,
            group=options.group,
            job_type=options.job_type,
            tags=options.tags,
            id=run_id,
            # Offline, this makes the files upload as a continuation.
            resume=None if run_id is None else "allow",
            config=dict(settings),
            mode=mode.name,  # type: ignore[arg-type]
            force=mode.name == "online",
            reinit="create_new",
            settings=wandb.Settings(
                console="off",
                quiet=True,
                finish_timeout=asked.finish_timeout or FINISH_TIMEOUT_S,
                finish_timeout_raises=True,
            ),
        )
    except wandb.Error as error:
        raise ConfigError(
            f"logger=wandb could not start a run with mode {mode.name} ({mode.reason}). Log in with `wandb login` or "
            "WANDB_API_KEY and check the connection (WANDB_INIT_TIMEOUT limits its seconds), or choose "
            "logger.mode=offline, which records in the run directory for a later `wandb sync`, or logger=csv. wandb "
            f"says: {' '.join(str(error).split())}"
        ) from error
    logger.info("wandb run %s is %s (%s). %s", run.id, mode.name, mode.reason, _where(run))
    return run


@contextmanager
def _process_mode(mode: str, previous: str) -> Iterator[None]:
    """Sets wandb's process-wide mode to the run's, and restores it afterwards.

    ``wandb.init`` does not set it, but wandb's telemetry checks only this mode before using the network.
    """
    wandb.setup(settings=wandb.Settings(mode=mode))  # type: ignore[arg-type]
    try:
        yield
    finally:
        wandb.setup(settings=wandb.Settings(mode=previous))  # type: ignore[arg-type]


def _process_settings() -> wandb.Settings:
    """Reads wandb's settings from its files and the environment.

    Raises:
        ConfigError: wandb rejects them.
    """
    try:
        # Hides wandb's start and end banners; errors and warnings still show.
        return wandb.setup(settings=wandb.Settings(show_info=False)).settings
    except ValueError as error:
        raise ConfigError(
            "logger=wandb cannot be used with wandb's settings from its files and the environment (WANDB_...). "
            f"Correct them, or choose logger=csv. wandb says: {' '.join(str(error).split())}"
        ) from error


def _recorded(run: wandb.Run, run_dir: Path, resumed: Resumed | None) -> int:
    """The frames up to which the wandb run already has metrics.

    Raises:
        ConfigError: wandb's server has more metrics than this run recorded: another training run has continued it.
    """
    is_same = resumed is not None and resumed.ids.get(NAME) == run.id
    here = last_frames(run_dir / METRICS) if is_same else 0
    if run.offline:
        return here
    recorded = max(0, run.starting_step - 1)
    begins = 0 if resumed is None else resumed.frames
    if recorded > max(here, begins):
        run.finish()
        raise ConfigError(
            f"wandb run {run.id} already has metrics up to {recorded} frames, but this run begins at {begins}: another "
            "run has continued it. Set logger.id=... to a new id to record this run separately, or continue in the "
            "other run's directory with hydra.run.dir=..."
        )
    return recorded


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def _folder(run: wandb.Run) -> Path:
    """The folder with wandb's files for the training run, earlier parts included."""
    return Path(run.dir).parents[1]


def _where(run: wandb.Run) -> str:
    if run.offline:
        return f"Upload it with: wandb sync {_folder(run)}"
    return f"See {run.url}" if run.url else ""
