"""Checkpoint directories: written whole or not at all, and read only if every byte is as it was written.

A checkpoint holds tensors and plain values and nothing that runs: states are stored by ``torch.save`` and read with
``weights_only``, so one from a stranger does no harm.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torchrl.checkpoint import Checkpoint, CheckpointError
from torchrl.checkpoint import StateDictCheckpointAdapter as StateDictAdapter

from recurrl.atomic import atomic_write, remove_unfinished
from recurrl.errors import ConfigError, RunError

PREFIX = "frames_"
CHECKSUMS = "checksums.json"
EVALUATION = "evaluation.json"
"""Written after the others, and therefore with a checksum of its own."""


class _StateAdapter(StateDictAdapter):
    """State dicts by ``torch.save``. TorchRL would read others as well, and pickled objects in them."""

    def __init__(self) -> None:
        super().__init__(payload_format="torch")

    def save(self, component: Any, path: Path, *, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        path.mkdir(parents=True, exist_ok=True)
        state = component.state_dict(*args, **kwargs)
        # Of a path torch's own writer would say nothing of a full disk but "unexpected pos".
        with (path / self.state_torch).open("wb") as file:
            torch.save(state, file)
        return state

    def load(self, component: Any, path: Path, **options: Any) -> Any:
        if not (path / self.state_torch).is_file():
            raise ValueError(f"{path / self.state_torch} is missing.")
        return super().load(component, path, **options)


def write(path: Path, components: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    """Writes the components' states into the directory ``path``, which is there only when everything is on the disk.

    Args:
        path: the directory; one that is there already is replaced.
        components: objects with ``state_dict`` and ``load_state_dict``, by name.
        metadata: plain values.

    Raises:
        OSError: the disk is full, or the folder cannot be written to. What was there before is still there.
    """
    folder = path.parent
    folder.mkdir(parents=True, exist_ok=True)
    _remove_unfinished(folder)
    stage = folder / f".{path.name}"
    try:
        _checkpoint(components).save(stage, metadata=metadata)
        (stage / CHECKSUMS).write_text(_canonical(_checksums(stage)), encoding="utf-8")
        for file in [*stage.rglob("*"), stage]:
            _sync(file)
        if path.exists():
            path.replace(folder / f".{path.name}.replaced")
        stage.replace(path)
        _sync(folder)
    finally:
        _remove_unfinished(folder)


def read(path: Path, components: Mapping[str, Any]) -> None:
    """Gives each component its state from the checkpoint, whose other components are left alone.

    Raises:
        ConfigError: the checkpoint is damaged, or does not fit the components.
    """
    verify(path)
    load(path, components)


def load(path: Path, components: Mapping[str, Any]) -> None:
    """The same of a checkpoint that is known to be whole.

    Raises:
        ConfigError: the checkpoint does not fit the components.
        RunError: a component raised it.
    """
    try:
        _checkpoint(components).load(path)
    except CheckpointError as error:
        if isinstance(error.__cause__, RunError):
            raise error.__cause__ from error.__cause__.__cause__
        reason = " ".join(str(error).split()).rstrip(".")
        raise ConfigError(
            f"The checkpoint {path} does not fit this configuration: {reason}. Resume with the settings its run had "
            "(network, environment), or start anew without resume."
        ) from error


def metadata(path: Path) -> dict[str, Any]:
    """What ``write`` was given beside the components.

    Raises:
        ConfigError: the checkpoint is damaged.
    """
    verify(path)
    found: dict[str, Any] = Checkpoint.manifest(path)["metadata"]
    return found


def add_evaluation(path: Path, values: Mapping[str, float]) -> None:
    """Adds the evaluation of a checkpoint's policy to it, whole or not at all. Its other files stay as they are.

    Raises:
        OSError: the disk is full, or the folder cannot be written to.
    """
    remove_unfinished(path)
    with atomic_write(path / EVALUATION) as file:
        file.write(_evaluation_text(dict(values)))


def evaluation(path: Path) -> dict[str, float] | None:
    """The values that were added to a whole checkpoint; None if none were."""
    try:
        values: dict[str, float] = json.loads((path / EVALUATION).read_text(encoding="utf-8"))["values"]
    except FileNotFoundError:
        return None
    return values


def _evaluation_text(values: Any) -> str:
    return _canonical({"values": values, "sha256": hashlib.sha256(_canonical(values).encode()).hexdigest()})


def remove(path: Path) -> None:
    """Removes a checkpoint, at once."""
    hidden = path.with_name(f".{path.name}")
    path.replace(hidden)
    shutil.rmtree(hidden)


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints in a folder, in the order of their frames."""
    return sorted(path for path in folder.glob(f"{PREFIX}*") if path.is_dir())


def is_checkpoint(path: Path) -> bool:
    """Whether a path is a checkpoint, damaged or not."""
    return path.is_dir() and (path.name.startswith(PREFIX) or (path / CHECKSUMS).exists())


def verify(path: Path) -> None:
    """Checks that a checkpoint's files are those that were written, byte for byte.

    Raises:
        ConfigError: with what is wrong, and the newest checkpoint beside it that is whole.
    """
    found = damage(path)
    if found is None:
        return
    others = [other for other in checkpoints_in(path.parent) if other != path and damage(other) is None]
    advice = (
        f"The newest one beside it that is whole is {others[-1]}." if others else "There is no whole one beside it."
    )
    raise ConfigError(f"The checkpoint {path} is damaged: {found}. Nothing of it was loaded. {advice}")


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint's files, or None."""
    try:
        text = (path / CHECKSUMS).read_bytes().decode("utf-8")
        expected = json.loads(text)
        # One text for one content: a byte that is lost or changed shows wherever it is.
        if _canonical(expected) != text:
            return f"{CHECKSUMS} is not as it was written"
        found = _checksums(path)
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (UnicodeDecodeError, ValueError):
        return f"{CHECKSUMS} is not as it was written"
    except OSError as error:
        return f"it cannot be read ({error})"
    if not isinstance(expected, dict):
        return f"{CHECKSUMS} is not as it was written"
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            return f"{name} is missing"
        if name not in expected:
            return f"{name} does not belong to it"
        if expected[name] != found[name]:
            return f"{name} is not as it was written"
    return _damage_of_evaluation(path)


def _damage_of_evaluation(path: Path) -> str | None:
    try:
        text = (path / EVALUATION).read_bytes().decode("utf-8")
        if _evaluation_text(json.loads(text)["values"]) == text:
            return None
    except FileNotFoundError:
        return None
    except (UnicodeDecodeError, ValueError, KeyError, TypeError):
        pass
    except OSError as error:
        return f"it cannot be read ({error})"
    return f"{EVALUATION} is not as it was written"


def _checkpoint(components: Mapping[str, Any]) -> Checkpoint:
    checkpoint = Checkpoint()
    for name, component in components.items():
        checkpoint.register(name, component, adapter=_StateAdapter())
    return checkpoint


def _checksums(path: Path) -> dict[str, str]:
    # A process may have been killed while it added an evaluation.
    others = {path / CHECKSUMS, path / EVALUATION, *path.glob(f".{EVALUATION}.*")}
    files = (file for file in path.rglob("*") if not file.is_dir())
    return {
        file.relative_to(path).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        if file not in others
    }


def _canonical(values: Any) -> str:
    return json.dumps(values, indent=1, sort_keys=True) + "\n"


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_unfinished(folder: Path) -> None:
    """Removes what a write left that did not end, such as that of a killed process. All of it has hidden names."""
    for path in folder.glob(".*"):
        shutil.rmtree(path)
