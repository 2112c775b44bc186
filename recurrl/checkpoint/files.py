"""Checkpoint directories: written whole or not at all, and read only if every byte is as it was written.

A checkpoint holds tensors and plain values and nothing that runs: states are stored by ``torch.save`` and read with
``weights_only``. Nothing is removed but what :func:`write` made, and no symbolic link is followed on the way.
"""

import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from io import BufferedWriter, FileIO
from pathlib import Path
from typing import Any

import torch
from torchrl.checkpoint import Checkpoint, CheckpointError
from torchrl.checkpoint import StateDictCheckpointAdapter as StateDictAdapter

from recurrl.errors import ConfigError, RunError, require
from recurrl.runtime.atomic import atomic_write, remove_unfinished, sync, unfinished, unfinished_in
from recurrl.runtime.run_directory import UnreadableError, looks_like_checkpoint, read_text

PREFIX = "frames_"
CHECKSUMS = "checksums.json"
MANIFEST = "manifest.json"
EVALUATION = "evaluation.json"
"""Written after the others, so it has its own checksum."""
_OURS = re.compile(r"checksums\.json|manifest\.json|evaluation\.json|components/[0-9]{4}-[^/]+/state\.pt")
"""The files of a checkpoint. All others in its directory are foreign."""
_MOST_BYTES = 2**24


class _StateAdapter(StateDictAdapter):
    """State dicts by ``torch.save``. TorchRL would read others as well, and pickled objects in them."""

    def __init__(self) -> None:
        super().__init__(payload_format="torch")

    def save(self, component: Any, path: Path, *, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        path.mkdir(parents=True, exist_ok=True)
        state = component.state_dict(*args, **kwargs)
        with _Writer(FileIO(path / self.state_torch, "xb")) as file:
            try:
                torch.save(state, file)
            except (OSError, RuntimeError) as error:
                raise file.error or error from None
        return state

    def load(self, component: Any, path: Path, *, tensor_load_kwargs: Mapping[str, Any], **options: Any) -> Any:
        if not (path / self.state_torch).is_file():
            raise ValueError(f"{path / self.state_torch} is missing.")
        mapped = {**tensor_load_kwargs, "mmap": getattr(component, "loads_mapped", False)}
        return super().load(_Fitting(component), path, tensor_load_kwargs=mapped, **options)


class _Writer(BufferedWriter):
    """A file to which ``torch.save`` writes, without a copy in memory.

    Attributes:
        error: from writing, of which torch only says "unexpected pos".
    """

    error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.error = error
            raise


class _Fitting:
    """A component that reports a shape mismatch in one line instead of naming all its tensors."""

    def __init__(self, component: Any) -> None:
        self._component = component

    def load_state_dict(self, state: Any, *args: Any, **kwargs: Any) -> None:
        try:
            self._component.load_state_dict(state, *args, **kwargs)
        except RunError:
            raise
        except (AssertionError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            is_module = isinstance(self._component, torch.nn.Module)
            misfit = _misfit(state, self._component.state_dict()) if is_module else None
            raise ValueError(misfit or _one_line(error)) from error


def write(path: Path, components: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    """Writes the components' states into the directory ``path``, which appears only when everything is on disk.

    Args:
        path: the directory; an existing checkpoint is replaced.
        components: objects with ``state_dict`` and ``load_state_dict``, by name.
        metadata: plain values.

    Raises:
        OSError: the disk is full, the folder is not writable, or ``path`` exists and is not a checkpoint. Previous
            contents stay.
    """
    folder = path.parent
    folder.mkdir(parents=True, exist_ok=True)
    _remove_unfinished(folder)
    if os.path.lexists(path) and not _is_ours(path):
        raise FileExistsError(errno.EEXIST, "the path exists and is not a checkpoint", str(path))
    stage = unfinished(path)
    stage.mkdir()
    try:
        whole, replaced = stage / path.name, stage / "replaced"
        _checkpoint(components).save(whole, metadata=metadata)
        (whole / CHECKSUMS).write_text(_canonical(_checksums(whole)), encoding="utf-8")
        for file in [*whole.rglob("*"), whole]:
            sync(file)
        if path.exists():
            path.replace(replaced)
        whole.replace(path)
        sync(folder)
        _hand_over(replaced, path)
    finally:
        _remove_tree(stage)


def read(path: Path, components: Mapping[str, Any]) -> None:
    """Restores the given components from the checkpoint, and ignores its others.

    Raises:
        ConfigError: the checkpoint is damaged, or does not fit the components.
    """
    verify(path)
    load(path, components)


def load(path: Path, components: Mapping[str, Any], changes: Mapping[str, tuple[Any, Any]] | None = None) -> None:
    """The same for a checkpoint that is known to be intact.

    Args:
        path: the checkpoint.
        components: likewise.
        changes: old and new value of each changed setting that affects their shapes.

    Raises:
        ConfigError: the checkpoint does not fit the configuration.
        RunError: a component raised it.
    """
    names = [folder.name for folder in (path / "components").iterdir()]
    require(
        names != ["0000-policy"] or list(components) == ["policy"],
        f"{path} holds a policy alone, as a folder for a model hub does, which cannot be resumed. Start a new run with "
        f"its weights: init_from={path}.",
    )
    try:
        _checkpoint(components).load(path)
    except CheckpointError as error:
        if isinstance(error.__cause__, RunError):
            raise error.__cause__ from error.__cause__.__cause__
        reason = _one_line(error)
        if changes:
            reason = ", ".join(f"{key} is {now} and was {was}" for key, (was, now) in changes.items())
        raise ConfigError(
            f"The checkpoint {path} does not fit this configuration: {reason}. Resume with its run's settings "
            "(network, environment), or start a new run without resume."
        ) from error


def state(path: Path, name: str) -> Any:
    """The state of a component of an intact checkpoint, as it was saved: tensors and plain values of any kind.

    Raises:
        ConfigError: the checkpoint has no such component, or a damaged one.
    """
    taken = Held()
    try:
        _checkpoint({name: taken}).load(path)
    except CheckpointError as error:
        raise ConfigError(
            f"The {name} of the checkpoint {path} cannot be read: {_one_line(error)}. Give another checkpoint."
        ) from error
    return taken.state


class Held:
    """A component whose state is only held."""

    def __init__(self, state: Any = None) -> None:
        self.state = state

    def state_dict(self) -> Any:
        """The state."""
        return self.state

    def load_state_dict(self, state: Any) -> None:
        """Holds it."""
        self.state = state


def metadata(path: Path) -> dict[str, Any]:
    """The metadata that ``write`` received.

    Raises:
        ConfigError: the checkpoint is damaged.
    """
    verify(path)
    return Checkpoint.manifest(path)["metadata"]


def add_evaluation(path: Path, values: Mapping[str, float]) -> None:
    """Adds the evaluation of a checkpoint's policy atomically. Its other files stay unchanged.

    Raises:
        OSError: the disk is full, or the folder cannot be written to.
    """
    remove_unfinished(path)
    with atomic_write(path / EVALUATION) as file:
        file.write(_evaluation_text(dict(values)))


def evaluation(path: Path) -> dict[str, float] | None:
    """The evaluation added to an intact checkpoint; None without one."""
    try:
        values: dict[str, float] = json.loads((path / EVALUATION).read_text(encoding="utf-8"))["values"]
    except FileNotFoundError:
        return None
    return values


def _evaluation_text(values: Any) -> str:
    return _canonical({"values": values, "sha256": hashlib.sha256(_canonical(values).encode()).hexdigest()})


def remove(path: Path) -> None:
    """Removes a checkpoint atomically, unless it is a symbolic link or holds foreign files."""
    if not _is_ours(path) or next(_foreign(path), None) is not None:
        return
    hidden = unfinished(path)
    path.replace(hidden)
    _remove_tree(hidden)


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints in a folder, in the order of their frames."""
    found = (path for path in folder.glob(f"{PREFIX}*") if looks_like_checkpoint(path))
    return sorted(found, key=lambda path: int(path.name.removeprefix(PREFIX)))


def is_checkpoint(path: Path) -> bool:
    """True if a path is a checkpoint, damaged or not."""
    return path.is_dir() and (path.name.startswith(PREFIX) or os.path.lexists(path / CHECKSUMS))


def verify(path: Path) -> None:
    """Verifies the checksums of a checkpoint's files.

    Raises:
        ConfigError: with the damage, and the newest intact checkpoint beside it.
    """
    found = damage(path)
    if found is None:
        return
    others = [other for other in checkpoints_in(path.parent) if other != path and damage(other) is None]
    advice = (
        f"The newest intact checkpoint beside it is {others[-1]}." if others else "There is no intact one beside it."
    )
    raise ConfigError(f"The checkpoint {path} is damaged: {found}. Nothing of it was loaded. {advice}")


def damage(path: Path) -> str | None:
    """The damage to a checkpoint's files, or None. Foreign files within it are neither read nor loaded."""
    try:
        text = read_text(path / CHECKSUMS, _MOST_BYTES)
        expected = json.loads(text)
        # Compare canonical text, so that any lost or changed byte shows.
        if not isinstance(expected, dict) or _canonical(expected) != text:
            return f"{CHECKSUMS} was modified or corrupted"
        found = {name: file for file in _files(path) if (name := file.relative_to(path).as_posix()) in expected}
        for name in sorted(expected.keys() | {MANIFEST}):
            if name not in found:
                return f"{name} is missing"
            if expected[name] != _checksum(found[name]):
                return f"{name} was modified or corrupted"
        if not isinstance(Checkpoint.manifest(path)["metadata"], dict):
            return f"{MANIFEST} is not in the format that runs write"
    except UnreadableError as error:
        return f"{CHECKSUMS} {error.reason}"
    except OSError as error:
        return f"it cannot be read ({error})"
    except (CheckpointError, AttributeError, KeyError, TypeError):
        return f"{MANIFEST} is not in the format that runs write"
    except (ValueError, RecursionError):
        return f"{CHECKSUMS} was modified or corrupted"
    return _damage_of_evaluation(path)


def _damage_of_evaluation(path: Path) -> str | None:
    try:
        text = read_text(path / EVALUATION, _MOST_BYTES)
        values = json.loads(text)["values"]
        is_numbers = isinstance(values, dict) and all(type(value) is float for value in values.values())
        if is_numbers and _evaluation_text(values) == text:
            return None
    except (ValueError, KeyError, TypeError, RecursionError):  # UnreadableError among them
        if not os.path.lexists(path / EVALUATION):
            return None
    return f"{EVALUATION} was modified or corrupted"


def _checkpoint(components: Mapping[str, Any]) -> Checkpoint:
    checkpoint = Checkpoint()
    for name, component in components.items():
        checkpoint.register(name, component, adapter=_StateAdapter())
    return checkpoint


def _files(path: Path) -> Iterator[Path]:
    """The ordinary files within a folder; symbolic links are not followed."""
    for folder, _, names in os.walk(path):
        yield from (file for name in names if _is_ordinary(file := Path(folder, name)))


def _is_ordinary(path: Path) -> bool:
    return stat.S_ISREG(path.lstat().st_mode)


def _checksums(path: Path) -> dict[str, str]:
    return {file.relative_to(path).as_posix(): _checksum(file) for file in _files(path) if file != path / CHECKSUMS}


def checksums(path: Path) -> dict[str, str]:
    """The SHA-256 of each file of an intact checkpoint, but of the evaluation, as they were when it was written."""
    return json.loads(read_text(path / CHECKSUMS, _MOST_BYTES))


def _checksum(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _canonical(values: Any) -> str:
    return json.dumps(values, indent=1, sort_keys=True) + "\n"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def _misfit(saved: Any, here: Mapping[str, Any]) -> str | None:
    """The difference in shapes between two states; None without one."""
    if not isinstance(saved, Mapping):
        return None
    shapes, ours = _shapes(saved), _shapes(here)
    differing = [name for name in {**ours, **shapes} if shapes.get(name) != ours.get(name)]
    if not differing:
        return None
    name = differing[0]
    was, now = shapes.get(name, "missing"), ours.get(name, "missing")
    return f"{len(differing)} of its tensors differ in shape; the first, {name}, is {was} in it and {now} here"


def _shapes(state: Mapping[Any, Any]) -> dict[Any, str]:
    return {name: shape_of(value) for name, value in state.items() if isinstance(value, torch.Tensor)}


def shape_of(tensor: torch.Tensor) -> str:
    """The shape of a tensor in words."""
    return "×".join(map(str, tensor.shape)) or "one number"


# Removal


def _is_ours(path: Path) -> bool:
    """True if a path is a checkpoint and not a symbolic link to one."""
    return not path.is_symlink() and looks_like_checkpoint(path)


def _foreign(path: Path) -> Iterator[Path]:
    """The entries of a checkpoint that :func:`write` did not put there."""
    unreadable: list[OSError] = []
    for folder, folders, names in os.walk(path, onerror=unreadable.append):
        here = Path(folder)
        if not folders and not names:
            yield here
        yield from (file for name in names if not _is_part(file := here / name, path))
        yield from (link for name in folders if (link := here / name).is_symlink())
    yield from (Path(error.filename) for error in unreadable)


def _hand_over(replaced: Path, path: Path) -> None:
    """Moves foreign entries of a replaced checkpoint to the same places in the new one."""
    for entry in list(_foreign(replaced)) if replaced.exists() else ():
        place = path / entry.relative_to(replaced)
        if not os.path.lexists(place):
            place.parent.mkdir(parents=True, exist_ok=True)
            entry.rename(place)


def _remove_unfinished(folder: Path) -> None:
    """Removes the remains of interrupted writes, such as those of a killed process."""
    for path in unfinished_in(folder):
        if path.is_dir() and not path.is_symlink():
            _remove_tree(path)


def _is_part(file: Path, path: Path) -> bool:
    """True if a file belongs to the checkpoint ``path``."""
    return _OURS.fullmatch(file.relative_to(path).as_posix()) is not None and _is_ordinary(file)


def _remove_tree(path: Path) -> None:
    """Removes the files of a checkpoint, or of those within a stage, and then each empty folder."""
    for checkpoint in (*(inner for inner in path.iterdir() if not inner.is_symlink()), path):
        for folder, _, names in os.walk(checkpoint, topdown=False):
            for name in names:
                if _is_part(file := Path(folder, name), checkpoint):
                    file.unlink()
            try:
                os.rmdir(folder)
            except OSError as error:
                # It holds a foreign file, or one that a network file system keeps until it is closed.
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
