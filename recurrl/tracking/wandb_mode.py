"""Chooses wandb's mode, online or offline, when the user has not."""

import logging
import netrc
import os
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import wandb

AUTO = "auto"
PUBLIC_HOST = "api.wandb.ai"

logger = logging.getLogger(__name__)


class Mode(NamedTuple):
    """A mode for ``wandb.init`` and why it was chosen."""

    name: str
    reason: str


def choose_mode(asked: str | None, settings: wandb.Settings) -> Mode:
    """Chooses wandb's mode without prompting or using the network.

    Args:
        asked: a wandb mode, or ``auto`` or None to choose one.
        settings: wandb's settings without those of the run.
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
    """True if wandb would find credentials where it documents: environment, settings or netrc file.

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
        logger.warning("Ignoring wandb logins in %s, which cannot be read: %s", path, error)
        return False
    return any(logins.authenticators(host) for host in _hosts(settings.base_url))


def _netrc_path() -> Path:
    named = os.environ.get("NETRC")
    if named:
        return Path(named).expanduser()
    usual, windows = Path("~/.netrc").expanduser(), Path("~/_netrc").expanduser()
    return windows if windows.exists() and not usual.exists() else usual


def _hosts(base_url: str) -> tuple[str, ...]:
    """Host names under which a login may be stored. wandb's public server has had more than one."""
    host = urlsplit(base_url).netloc
    return (host, PUBLIC_HOST) if base_url == wandb.Settings().base_url else (host,)
