"""Checkpoint directories: written whole or not at all, and read only if every byte is as it was written.

A checkpoint holds tensors and plain values and no code: one file ``state-<component>.pt`` per component, written by
``torch.save`` and read with ``weights_only``. Only files that this module wrote are removed, and no symbolic link is
followed.
"""

import errno
import hashlib
import json
import os
import pickle
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from recurrl.config.keys import described
from recurrl.errors import ConfigError, RunError, message_of, require
from recurrl.runtime.atomic import atomic_write, remove_unfinished, sync, unfinished, unfinished_in
from recurrl.runtime.metrics import floats
from recurrl.runtime.run_directory import CONFIG_FILE, MANIFEST, PREFIX, looks_like_checkpoint
from recurrl.runtime.serialization import Stateful

_OURS = re.compile(rf"{re.escape(MANIFEST)}|state-\w+\.pt")
"""The files of a checkpoint. All others in its directory are foreign."""
_MAX_MANIFEST_BYTES = 2**24
_KINDS = {
    **dict.fromkeys(("version", "sha256"), str),
    **dict.fromkeys(("frames", "ranks"), int),
    **dict.fromkeys(("metrics", "tracker_ids", "settings", "checksums"), dict),
    "is_complete": bool,
}
"""The types of a manifest's values."""
_INCOMPATIBLE = (
    *(AssertionError, AttributeError, EOFError, IndexError, KeyError, RuntimeError, TypeError, ValueError),
    pickle.UnpicklingError,
)
"""What reading or restoring a state raises if it is not that of the component."""


def write(path: Path, states: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Writes states into the directory ``path``, which appears only when everything is on disk.

    Args:
        path: the directory; an existing checkpoint is replaced.
        states: tensors and plain values, by component; or the file of another checkpoint that holds them.
        values: the manifest's values, without the checksums.

    Raises:
        OSError: the disk is full, the folder is not writable, or ``path`` exists and is not a checkpoint. Previous
            contents stay.
    """
    folder = path.parent
    folder.mkdir(exist_ok=True)
    for interrupted in unfinished_in(folder):
        _remove(interrupted)
    if os.path.lexists(path) and not _is_ours(path):
        raise FileExistsError(errno.EEXIST, "the path exists and is not a checkpoint", str(path))
    stage, replaced = unfinished(path), unfinished(path)
    try:
        stage.mkdir()
        for name, state in states.items():
            _save(state, stage / f"state-{name}.pt")
        sums = {file.name: _checksum(file) for file in stage.iterdir()}
        (stage / MANIFEST).write_text(_sealed({**values, "checksums": sums}), encoding="utf-8")
        for file in [*stage.iterdir(), stage]:
            sync(file)
        if path.exists():
            remove_unfinished(path)  # the manifest of a process that was killed; it would be taken for foreign
            path.replace(replaced)
        stage.replace(path)
        sync(folder)
        for entry in _foreign(replaced):
            entry.rename(path / entry.name)
    finally:
        if replaced.exists() and not os.path.lexists(path):
            replaced.replace(path)
        _remove(stage)
        _remove(replaced)


def copy(path: Path, to: Path, changes: Mapping[str, Any]) -> None:
    """Copies an intact checkpoint to the path ``to``, with changes to its manifest."""
    values = _manifest(path)
    states = {name.removeprefix("state-").removesuffix(".pt"): path / name for name in values["checksums"]}
    write(to, states, {**values, **changes})


def _save(state: Any, path: Path) -> None:
    if isinstance(state, Path):
        shutil.copyfile(state, path)
        return
    with path.open("xb") as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:
            # torch only says "unexpected pos" after an error of the operating system.
            raise (error.__context__ if isinstance(error.__context__, OSError) else error) from None


def load(path: Path, components: Mapping[str, Stateful], changes: Mapping[str, tuple[Any, Any]] | None = None) -> None:
    """Restores components from an intact checkpoint; other components in the checkpoint are ignored.

    Args:
        path: the checkpoint.
        components: the components by name.
        changes: old and new value of each changed setting that affects their shapes, for the error message.

    Raises:
        ConfigError: the checkpoint does not fit the components, or a component raised it.
        RunError: a component raised it.
    """
    for name, component in components.items():
        try:
            component.load_state_dict(_read(path, name))
        except (ConfigError, RunError):
            raise
        except _INCOMPATIBLE as error:
            reason = described(changes) if changes else f"{name}: {message_of(error)}"
            raise ConfigError(
                f"The checkpoint {path} does not fit this configuration: {reason}. Use its run's settings (network, "
                f"environment); a new run can start from the weights that fit, with init_from={path}."
            ) from error


def state(path: Path, name: str) -> Any:
    """The state of a component of an intact checkpoint, as it was saved: tensors and plain values of any kind.

    Raises:
        ConfigError: the checkpoint has no such component, or a damaged one.
    """
    try:
        return _read(path, name)
    except _INCOMPATIBLE as error:
        raise ConfigError(
            f"The {name} of the checkpoint {path} cannot be read: {message_of(error)}. Use another checkpoint."
        ) from error


def _read(path: Path, name: str) -> Any:
    file = path / f"state-{name}.pt"
    if not file.is_file():
        raise ValueError("it is missing in the checkpoint")
    return torch.load(file, map_location="cpu", weights_only=True)


def manifest(path: Path) -> dict[str, Any]:
    """The values of a checkpoint's manifest, after verifying the checksums of its files.

    Raises:
        ConfigError: the checkpoint is damaged; the message names the newest intact one in its folder.
    """
    try:
        return _verified(path)
    except ConfigError as error:
        newest = next(reversed(intact_in(path.parent)), None)
        others = f"The newest intact checkpoint in its folder is {newest}." if newest else ""
        raise ConfigError(
            f"The checkpoint {path} is damaged: {error}. Nothing of it was loaded. "
            f"{others or 'There is no intact one in its folder.'}"
        ) from error


def complete(path: Path, metrics: Mapping[str, float]) -> None:
    """Atomically replaces the metrics in a checkpoint by all those of its iteration, which was evaluated and logged.

    Raises:
        OSError: the disk is full, or the folder cannot be written to.
    """
    remove_unfinished(path)
    with atomic_write(path / MANIFEST) as file:
        file.write(_sealed({**_manifest(path), "metrics": floats(metrics), "is_complete": True}))


def remove(path: Path) -> None:
    """Removes a checkpoint atomically, unless it is a symbolic link or holds foreign files."""
    if _is_ours(path) and not any(_foreign(path)):
        hidden = unfinished(path)
        path.replace(hidden)
        _remove(hidden)


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints in a folder, in the order of their frames."""
    paths = (path for path in folder.glob(f"{PREFIX}*") if looks_like_checkpoint(path))
    return sorted(paths, key=frames_of)


def path_in(folder: Path, frames: int) -> Path:
    """The path of a checkpoint after ``frames`` frames."""
    return folder / f"{PREFIX}{frames:012d}"


def frames_of(path: Path) -> int:
    """The frames in a checkpoint's name."""
    return int(path.name.removeprefix(PREFIX))


def intact_in(folder: Path) -> dict[Path, dict[str, Any]]:
    """The undamaged checkpoints in a folder with their manifests, in the order of their frames."""
    intact = {}
    for path in checkpoints_in(folder):
        with suppress(ConfigError):
            intact[path] = _verified(path)
    return intact


def is_checkpoint(path: Path) -> bool:
    """True if a path is a checkpoint, damaged or not. A run directory is none, whatever its name."""
    is_named = re.fullmatch(rf"{PREFIX}[0-9]+", path.name) is not None and not os.path.lexists(path / CONFIG_FILE)
    return path.is_dir() and (is_named or os.path.lexists(path / MANIFEST))


def _verified(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint whose files are as they were written. Foreign files are not read.

    Raises:
        ConfigError: the checkpoint is damaged; the message says how.
    """
    try:
        require(_is_part(path / MANIFEST), f"{MANIFEST} is missing")
        require((path / MANIFEST).stat().st_size <= _MAX_MANIFEST_BYTES, f"{MANIFEST} is larger than runs write it")
        values = _manifest(path)
        for name, checksum in values["checksums"].items():
            require(_is_part(path / name), f"{name} is missing")
            require(_checksum(path / name) == checksum, f"{name} was modified or corrupted")
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"it cannot be read ({error})") from error
    except (AttributeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{MANIFEST} was modified or corrupted") from error
    return values


def _manifest(path: Path) -> dict[str, Any]:
    """Reads a manifest.

    Raises:
        AttributeError, ValueError, RecursionError: it was modified or corrupted.
    """
    text = (path / MANIFEST).read_bytes().decode()
    values: dict[str, Any] = json.loads(text)
    fits = (
        {name: type(value) for name, value in values.items()} == _KINDS
        # Comparing the text detects any lost or changed byte.
        and _sealed(values) == text
        and 0 <= values["frames"] < 10**18
        and all(type(value) is float for value in values["metrics"].values())
        and all(type(value) is str for value in values["tracker_ids"].values())
        and all(map(_OURS.fullmatch, values["checksums"]))
    )
    if not fits:
        raise ValueError(f"{path / MANIFEST} was not written by a run")
    return values


def _sealed(values: Mapping[str, Any]) -> str:
    """The text of a manifest with its own checksum in place of an earlier one."""
    own = {name: value for name, value in values.items() if name != "sha256"}
    checksum = hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()
    return json.dumps({**own, "sha256": checksum}, indent=1, sort_keys=True) + "\n"


def _checksum(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


# Removal


def _is_ours(path: Path) -> bool:
    """True if a path is a checkpoint and not a symbolic link to one."""
    return not path.is_symlink() and looks_like_checkpoint(path)


def _is_part(file: Path) -> bool:
    """True for an ordinary file that :func:`write` or :func:`complete` made."""
    return _OURS.fullmatch(file.name) is not None and os.path.lexists(file) and stat.S_ISREG(file.lstat().st_mode)


def _foreign(path: Path) -> Iterator[Path]:
    """The entries of a checkpoint that other programs put there; none if it does not exist."""
    return (entry for entry in (list(path.iterdir()) if path.exists() else ()) if not _is_part(entry))


def _remove(path: Path) -> None:
    """Removes the files of a checkpoint, and the folder if it is then empty. Another kind of path is left alone."""
    if path.is_symlink() or not path.is_dir():
        return
    for file in path.iterdir():
        if _is_part(file):
            file.unlink()
    # It may hold a foreign file, or one that a network file system keeps until it is closed.
    if not any(path.iterdir()):
        path.rmdir()
