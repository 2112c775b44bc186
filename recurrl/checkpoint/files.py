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
from pathlib import Path
from typing import Any, NamedTuple

import torch

from recurrl.config.keys import described
from recurrl.errors import ConfigError, RunError, message_of, require
from recurrl.runtime.atomic import atomic_write, remove_unfinished, sync, unfinished, unfinished_in
from recurrl.runtime.metrics import floats
from recurrl.runtime.run_directory import CONFIG_FILE, MANIFEST, PREFIX, looks_like_checkpoint, read_text
from recurrl.runtime.serialization import Stateful

_OURS = re.compile(rf"{re.escape(MANIFEST)}|state-\w+\.pt")
"""The files of a checkpoint. All others in its directory are foreign."""
_MAX_MANIFEST_BYTES = 2**24
_INCOMPATIBLE = (
    *(AssertionError, AttributeError, EOFError, IndexError, KeyError, RuntimeError, TypeError, ValueError),
    pickle.UnpicklingError,
)
"""What reading or restoring a state raises if it is not that of the component."""


def write(
    path: Path, states: Mapping[str, Any], metadata: Mapping[str, Any], evaluation: Mapping[str, float] | None = None
) -> None:
    """Writes states into the directory ``path``, which appears only when everything is on disk.

    Args:
        path: the directory; an existing checkpoint is replaced.
        states: tensors and plain values, by component; or the file of another checkpoint that holds them.
        metadata: plain values.
        evaluation: None if :func:`add_evaluation` will add it.

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
        manifest = Manifest(dict(metadata), sums, None if evaluation is None else floats(evaluation))
        (stage / MANIFEST).write_text(_sealed(manifest._asdict()), encoding="utf-8")
        for file in [*stage.iterdir(), stage]:
            sync(file)
        if path.exists():
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
    """Copies an intact checkpoint to the path ``to``, with changes to its metadata."""
    saved = _manifest(path)
    states = {name.removeprefix("state-").removesuffix(".pt"): path / name for name in saved.checksums}
    write(to, states, saved.metadata | dict(changes), saved.evaluation)


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
        ConfigError: the checkpoint does not fit the components.
        RunError: a component raised it.
    """
    for name, component in components.items():
        try:
            component.load_state_dict(_read(path, name))
        except RunError:
            raise
        except _INCOMPATIBLE as error:
            reason = described(changes) if changes else f"{name}: {message_of(error)}"
            raise ConfigError(
                f"The checkpoint {path} does not fit this configuration: {reason}. Use its run's settings (network, "
                f"environment), or start a new run with the weights that fit: init_from={path} instead of resume."
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


class Manifest(NamedTuple):
    """The content of a checkpoint's manifest.

    Attributes:
        metadata: the plain values that :func:`write` received.
        checksums: the SHA-256 of each state's file.
        evaluation: the evaluation's metrics; None before :func:`add_evaluation`.
    """

    metadata: dict[str, Any]
    checksums: dict[str, str]
    evaluation: dict[str, float] | None


def manifest(path: Path) -> Manifest:
    """The manifest of a checkpoint, after verifying the checksums of its files.

    Raises:
        ConfigError: the checkpoint is damaged; the message names the newest intact one in its folder.
    """
    problem = damage(path)
    if problem is not None:
        others = intact_in(path.parent)
        newest = f"The newest intact checkpoint in its folder is {others[-1]}." if others else ""
        raise ConfigError(
            f"The checkpoint {path} is damaged: {problem}. Nothing of it was loaded. "
            f"{newest or 'There is no intact one in its folder.'}"
        )
    return _manifest(path)


def add_evaluation(path: Path, values: Mapping[str, float]) -> None:
    """Atomically adds the metrics of an evaluation to a checkpoint.

    Raises:
        OSError: the disk is full, or the folder cannot be written to.
    """
    remove_unfinished(path)
    with atomic_write(path / MANIFEST) as file:
        file.write(_sealed(_manifest(path)._replace(evaluation=floats(values))._asdict()))


def evaluation(path: Path) -> dict[str, float] | None:
    """The metrics of an intact checkpoint's evaluation; None before :func:`add_evaluation`."""
    return _manifest(path).evaluation


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


def intact_in(folder: Path) -> list[Path]:
    """The undamaged checkpoints in a folder, in the order of their frames."""
    return [path for path in checkpoints_in(folder) if damage(path) is None]


def is_checkpoint(path: Path) -> bool:
    """True if a path is a checkpoint, damaged or not. A run directory is none, whatever its name."""
    is_named = re.fullmatch(rf"{PREFIX}[0-9]+", path.name) is not None and not os.path.lexists(path / CONFIG_FILE)
    return path.is_dir() and (is_named or os.path.lexists(path / MANIFEST))


def damage(path: Path) -> str | None:
    """A description of the damage to a checkpoint's files; None if they are intact. Foreign files are not read."""
    try:
        for name, expected in _manifest(path).checksums.items():
            if not _is_part(path / name):
                return f"{name} is missing"
            if expected != _checksum(path / name):
                return f"{name} was modified or corrupted"
    except ConfigError as error:
        return str(error).removeprefix(f"{path}/").removesuffix(".")
    except OSError as error:
        return f"it cannot be read ({error})"
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"{MANIFEST} was modified or corrupted"
    return None


def _manifest(path: Path) -> Manifest:
    """Reads a manifest.

    Raises:
        ConfigError: it is missing, not a file or too large.
        ValueError, KeyError, TypeError, RecursionError: it was modified or corrupted.
    """
    require(not (path / MANIFEST).is_symlink(), f"{path / MANIFEST} is a link.")
    text = read_text(path / MANIFEST, _MAX_MANIFEST_BYTES)
    values = json.loads(text)
    manifest = Manifest(values["metadata"], values["checksums"], values["evaluation"])
    evaluation = {} if manifest.evaluation is None else manifest.evaluation
    are_mappings = all(isinstance(each, dict) for each in (manifest.metadata, manifest.checksums, evaluation))
    # Comparing the text detects any lost or changed byte.
    if not are_mappings or _sealed(manifest._asdict()) != text:
        raise ValueError
    has_floats = all(type(value) is float for value in evaluation.values())
    if not has_floats or not all(map(_OURS.fullmatch, manifest.checksums)):
        raise ValueError
    return manifest


def _sealed(values: Mapping[str, Any]) -> str:
    """The text of a manifest with its own checksum."""
    own = hashlib.sha256(_canonical(values).encode()).hexdigest()
    return _canonical({**values, "sha256": own})


def _checksum(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _canonical(values: Any) -> str:
    return json.dumps(values, indent=1, sort_keys=True) + "\n"


# Removal


def _is_ours(path: Path) -> bool:
    """True if a path is a checkpoint and not a symbolic link to one."""
    return not path.is_symlink() and looks_like_checkpoint(path)


def _is_part(file: Path) -> bool:
    """True for an ordinary file that :func:`write` or :func:`add_evaluation` made."""
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
