"""Metrics as a run of Weights & Biases, online or in files of the run directory."""

from __future__ import annotations

import logging
import netrc
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import wandb

from recurrl.errors import ConfigError
from recurrl.tracking import FRAMES

if TYPE_CHECKING:
    from recurrl.config import TrainConfig

AUTO = "auto"
PUBLIC_HOST = "api.wandb.ai"

logger = logging.getLogger(__name__)


class Mode(NamedTuple):
    """A mode of ``wandb.init`` and why it was chosen."""

    name: str
    reason: str


class WandbTracker:
    """Logs to one wandb run, in which all metrics are drawn over frames."""

    def __init__(self, run: wandb.Run, resources: ExitStack) -> None:
        """The resources are let go once the run is finished."""
        self._run = run
        self._resources = resources
        run.define_metric(FRAMES)
        run.define_metric("*", step_metric=FRAMES)

    @property
    def id(self) -> str:
        """The id of the run, unique in its project."""
        return self._run.id

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Hands the metrics of one iteration to wandb, which writes or uploads them in the background."""
        self._run.log({FRAMES: frames, **metrics})

    def close(self, exit_code: int = 0) -> None:
        """Finishes the run, which waits for what is left to be written or uploaded."""
        with self._resources:
            self._run.finish(exit_code=exit_code)


def make(config: TrainConfig, run_dir: Path, settings: Mapping[str, Any]) -> WandbTracker:
    """Starts a wandb run of its own for this training run, also when the process has started others before.

    The mode ``auto`` respects wandb's own settings (``WANDB_MODE``, ``wandb offline``), and without any is online where
    there is a login, else offline. A mode that is not online neither asks for a login nor touches the network.

    Raises:
        ConfigError: wandb cannot start the run, for example online without a login or a connection.
    """
    with ExitStack() as resources:
        # Errors and warnings still show; what wandb says about itself at each start and end does not.
        wandb_settings = wandb.setup(settings=wandb.Settings(show_info=False)).settings
        mode = choose_mode(config.logger.mode, wandb_settings)
        resources.enter_context(_mode_of_process(mode.name, wandb_settings.mode))
        run = _start(mode, config.logger.project, run_dir, settings)
        logger.info("wandb run %s is %s (%s). %s", run.id, mode.name, mode.reason, _where(run))
        return WandbTracker(run, resources.pop_all())


def choose_mode(asked: str | None, settings: wandb.Settings) -> Mode:
    """The mode of wandb for what was asked, without a prompt and without the network.

    Args:
        asked: a mode of wandb, or ``auto`` or None to choose.
        settings: wandb's settings before the run's own are added.
    """
    if asked not in (None, AUTO):
        return Mode(str(asked), f"logger.mode={asked}")
    from_environment = os.environ.get("WANDB_MODE")
    if from_environment:
        return Mode(from_environment, f"WANDB_MODE={from_environment}")
    if settings.mode != "online":
        return Mode(settings.mode, "wandb's own settings; `wandb online` changes them")
    if has_login(settings):
        return Mode("online", "a login was found")
    return Mode("offline", "no login was found; `wandb login` makes one")


def has_login(settings: wandb.Settings) -> bool:
    """Whether wandb would find credentials in the places it documents: environment, settings or netrc file.

    wandb's own check, ``wandb.login``, contacts the server and may prompt.
    """
    in_environment = os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE")
    return bool(in_environment or settings.api_key or settings.identity_token_file) or _netrc_has_login(settings)


def _netrc_has_login(settings: wandb.Settings) -> bool:
    path = _netrc_path()
    try:
        logins = netrc.netrc(path)
    except FileNotFoundError:
        return False
    except (netrc.NetrcParseError, OSError) as error:
        logger.warning("No wandb login can be looked up in %s, which cannot be read: %s", path, error)
        return False
    return any(logins.authenticators(host) for host in _hosts(settings.base_url))


def _netrc_path() -> Path:
    named = os.environ.get("NETRC")
    if named:
        return Path(named).expanduser()
    usual, windows = Path("~/.netrc").expanduser(), Path("~/_netrc").expanduser()
    return windows if windows.exists() and not usual.exists() else usual


def _hosts(base_url: str) -> tuple[str, ...]:
    """Names under which a login to the server may be stored. wandb's public server has had more than one."""
    host = urlsplit(base_url).netloc
    return (host, PUBLIC_HOST) if base_url == wandb.Settings().base_url else (host,)


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


def _start(mode: Mode, project: str | None, run_dir: Path, settings: Mapping[str, Any]) -> wandb.Run:
    try:
        return wandb.init(
            project=project,
            dir=run_dir,
            name="/".join(run_dir.resolve().parts[-2:]),
            config=dict(settings),
            mode=mode.name,  # type: ignore[arg-type]
            force=mode.name == "online",
            reinit="create_new",
            settings=wandb.Settings(console="off", quiet=True),
        )
    except wandb.Error as error:
        raise ConfigError(
            f"logger=wandb could not start a run with mode {mode.name} ({mode.reason}). Log in with `wandb login` or "
            "WANDB_API_KEY and check the connection, or choose logger.mode=offline, which records in the run directory "
            f"for a later `wandb sync`. wandb says: {error}"
        ) from error


def _where(run: wandb.Run) -> str:
    if run.offline:
        return f"Upload it with: wandb sync {Path(run.dir).parent}"
    return f"See {run.url}" if run.url else ""
