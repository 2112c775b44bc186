"""Metrics as a run of Weights & Biases, online or in files of the run directory."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wandb
from wandb.sdk.mailbox import HandleAbandonedError, MailboxClosedError

from recurrl.errors import ConfigError
from recurrl.tracking import FRAMES, Resumed
from recurrl.tracking.csv import FILE_NAME, last_frames
from recurrl.tracking.wandb_mode import Mode, choose_mode

if TYPE_CHECKING:
    from recurrl.config import TrainConfig

NAME = "wandb"
FINISH_TIMEOUT_S = 60.0
"""How long the end of a run waits for its last metrics to be uploaded, where WANDB_FINISH_TIMEOUT does not say."""
SERVICE_ENDED = (ConnectionError, HandleAbandonedError, MailboxClosedError)
"""What wandb's calls raise once the process that writes and uploads for it has ended. Two have no public name."""

logger = logging.getLogger(__name__)


class WandbTracker:
    """Logs to one wandb run, in which all metrics are drawn over frames.

    The process that writes and uploads for wandb may end before the run does. Training goes on without it then, and an
    error in the log says what became of the metrics.

    Args:
        run: to log to.
        run_dir: of the training run, which the messages name.
        resources: let go once the run is finished.
        recorded: the frames up to which the run has its metrics already; those are not logged again.
    """

    def __init__(self, run: wandb.Run, run_dir: Path, resources: ExitStack, recorded: int = 0) -> None:
        self._run = run
        self._run_dir = run_dir
        self._resources = resources
        self._recorded = recorded
        self._is_lost = False
        run.define_metric(FRAMES)
        run.define_metric("*", step_metric=FRAMES)

    @property
    def id(self) -> str:
        """The id of the run, unique in its project."""
        return self._run.id

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Hands the metrics of one iteration to wandb, which writes or uploads them in the background."""
        if self._is_lost or frames <= self._recorded:
            return
        with self._surviving_its_process():
            # Frames are wandb's own steps too: only files whose steps follow one another are uploaded as one run.
            self._run.log({FRAMES: frames, **metrics}, step=frames)

    def close(self, exit_code: int = 0) -> None:
        """Finishes the run, which waits for what is left to be written or uploaded, but not for ever."""
        with self._resources, self._surviving_its_process():
            if not self._is_lost:
                self._finish(exit_code)

    def _finish(self, exit_code: int) -> None:
        try:
            self._run.finish(exit_code=exit_code)
        except TimeoutError:
            logger.error(
                "The last metrics of wandb run %s could not be uploaded within %g s (WANDB_FINISH_TIMEOUT): its server "
                "does not answer. They are in %s; upload them with: wandb sync --include-online %s",
                *(self._run.id, self._run.settings.finish_timeout, self._run_dir / "metrics.csv", _folder(self._run)),
            )
        except ConnectionError:
            raise
        except OSError as error:
            logger.error(
                "wandb could not write all of wandb run %s: %s. All metrics are in %s.",
                *(self._run.id, error.strerror or error, self._run_dir / "metrics.csv"),
            )
            # The next run of this process, such as a sweep's, does not get what is left of this one.
            wandb.teardown()

    @contextmanager
    def _surviving_its_process(self) -> Iterator[None]:
        try:
            yield
        except SERVICE_ENDED:
            self._is_lost = True
            # Its threads would ask a process that is gone.
            with suppress(*SERVICE_ENDED):
                self._run.finish()
            # The next run of this process, such as a sweep's, gets a new one.
            with suppress(*SERVICE_ENDED):
                wandb.teardown()
            logger.error(
                "The process of wandb has ended, and with it the recording of wandb run %s. The training run goes on, "
                "with all its metrics in %s. Upload what wandb recorded before with: wandb sync --include-online %s",
                *(self._run.id, self._run_dir / "metrics.csv", _folder(self._run)),
            )


def make(
    config: TrainConfig, run_dir: Path, settings: Mapping[str, Any], resumed: Resumed | None = None
) -> WandbTracker:
    """Starts a wandb run of its own for this training run, also when the process has started others before.

    A run that goes on from another one's checkpoint goes on with its wandb run too, and ``config.logger.id`` names any
    run to go on with. Its axis never goes back: what was recorded of frames that are gone over again stays.

    The mode ``auto`` respects wandb's own settings (``WANDB_MODE``, ``wandb offline``), and without any is online where
    there is a login, else offline. A mode that is not online neither asks for a login nor touches the network.

    Raises:
        ConfigError: wandb cannot start the run, for example online without a login or a connection, or the run has been
            recorded further than what is gone on from.
    """
    with ExitStack() as resources:
        wandb_settings = _settings_of_process()
        mode = choose_mode(config.logger.mode, wandb_settings)
        resources.enter_context(_mode_of_process(mode.name, wandb_settings.mode))
        earlier = None if resumed is None else resumed.ids.get(NAME)
        run = _start(mode, config, config.logger.id or earlier, run_dir, settings)
        recorded = _recorded(run, run_dir, resumed)
        logger.info("wandb run %s is %s (%s). %s", run.id, mode.name, mode.reason, _where(run))
        return WandbTracker(run, run_dir, resources.pop_all(), recorded)


@contextmanager
def _mode_of_process(mode: str, previous: str) -> Iterator[None]:
    """Gives wandb's settings of the process the mode of the run, and then their own again.

    ``wandb.init`` alone leaves them, and wandb's telemetry looks only there before it uses the network.
    """
    wandb.setup(settings=wandb.Settings(mode=mode))  # type: ignore[arg-type]
    try:
        yield
    finally:
        wandb.setup(settings=wandb.Settings(mode=previous))  # type: ignore[arg-type]


def _settings_of_process() -> wandb.Settings:
    """The settings of wandb itself, from its files and the environment.

    Raises:
        ConfigError: they are not what wandb takes.
    """
    try:
        # Errors and warnings still show; what wandb says about itself at each start and end does not.
        return wandb.setup(settings=wandb.Settings(show_info=False)).settings
    except ValueError as error:
        raise ConfigError(
            "logger=wandb cannot be used with wandb's settings as found in its files and the environment, WANDB_.... "
            f"Correct them, or choose logger=csv. wandb says: {' '.join(str(error).split())}"
        ) from error


def _start(
    mode: Mode, config: TrainConfig, run_id: str | None, run_dir: Path, settings: Mapping[str, Any]
) -> wandb.Run:
    asked = wandb.setup().settings
    try:
        return wandb.init(
            project=config.logger.project,
            dir=run_dir,
            # The name of a run that goes on stays.
            name="/".join(run_dir.resolve().parts[-2:]) if run_id is None else None,
            id=run_id,
            # Offline it has files uploaded as what follows those before.
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
            "WANDB_API_KEY and check the connection (WANDB_INIT_TIMEOUT is how many seconds it may take), or choose "
            "logger.mode=offline, which records in the run directory for a later `wandb sync`, or logger=csv. wandb "
            f"says: {' '.join(str(error).split())}"
        ) from error


def _recorded(run: wandb.Run, run_dir: Path, resumed: Resumed | None) -> int:
    """The frames up to which the run has its metrics already.

    Raises:
        ConfigError: wandb's server has more of them than were recorded before. Another training run has gone on with
            this one since then.
    """
    is_same = resumed is not None and resumed.ids.get(NAME) == run.id
    here = last_frames(run_dir / FILE_NAME) if is_same else 0
    if run.offline:
        return here
    recorded = max(0, run.starting_step - 1)
    begins = 0 if resumed is None else resumed.frames
    if recorded > max(here, begins):
        run.finish()
        raise ConfigError(
            f"wandb run {run.id} has metrics up to {recorded} frames already, and this run begins at {begins}: another "
            "run went on with it. Give logger.id=..., a new one, to record this run on its own, or go on in the other "
            "run's directory with hydra.run.dir=..."
        )
    return recorded


def _folder(run: wandb.Run) -> Path:
    """Where wandb keeps the files of the training run, those of parts before included."""
    return Path(run.dir).parents[1]


def _where(run: wandb.Run) -> str:
    if run.offline:
        return f"Upload it with: wandb sync {_folder(run)}"
    return f"See {run.url}" if run.url else ""
