"""Checkpoint directories: whole or not there, and nothing loaded of what is damaged."""

import math
import os
import pickle
import re
import shutil
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoint_files import Code, resealed
from rejections import error_of

from recurrl.checkpoint import files, save
from recurrl.runtime.atomic import UNFINISHED, unfinished

METRICS = {"eval/return_mean": 8.1, "eval/return_std": math.nan}
VALUES = {"version": "1", "ranks": 1, "metrics": {}, "is_complete": False, "tracker_ids": {}, "settings": {}}
NAMES = ["manifest.json", "state-critic.pt", "state-policy.pt"]


def module(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Linear(3, 2)


def write(path, frames=0, **modules):
    files.write(path, {name: each.state_dict() for name, each in modules.items()}, {**VALUES, "frames": frames})


def frames_in(path):
    return files.manifest(path)["frames"]


def is_intact(path):
    return path in files.intact_in(path.parent)


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "checkpoints" / "frames_32"
    write(path, 32, policy=module(1), critic=module(2))
    files.complete(path, METRICS)
    return path


def check_loads(path, **seeds):
    """Some of the components can be loaded without the others."""
    loaded = {name: module(9) for name in seeds}
    files.manifest(path)
    files.load(path, loaded)
    for name, seed in seeds.items():
        expected = module(seed).state_dict()
        assert all(torch.equal(value, expected[key]) for key, value in loaded[name].state_dict().items())


rejection = partial(error_of, files.manifest)


def test_what_was_written_is_read_back(written):
    assert sorted(file.name for file in written.iterdir()) == NAMES
    check_loads(written, policy=1, critic=2)
    check_loads(written, critic=2)
    expected = {**VALUES, "frames": 32, "metrics": METRICS, "is_complete": True}
    read = files.manifest(written)
    assert {name: str(read[name]) for name in expected} == {name: str(value) for name, value in expected.items()}


@pytest.mark.parametrize("failing", range(8))
def test_a_write_that_fails_anywhere_leaves_the_checkpoint_before_and_nothing_else(written, monkeypatch, failing):
    steps = count()

    def failing_at_its_turn(step):
        def taken(*arguments):
            if next(steps) == failing:
                raise OSError(28, "No space left on device")
            return step(*arguments)

        return taken

    # Two states are written; these, the manifest and the folder synced; and two folders get other names.
    for owner, name in ((files, "_save"), (files, "sync"), (Path, "replace")):
        monkeypatch.setattr(owner, name, failing_at_its_turn(getattr(owner, name)))
    new = {"policy": module(7), "critic": module(8)}
    assert "No space left" in error_of(write, written, 33, **new, kind=OSError)
    assert [path.name for path in written.parent.iterdir()] == [written.name]
    assert frames_in(written) == 32


def test_everything_is_on_the_disk_before_the_checkpoint_has_its_name(tmp_path, monkeypatch):
    path = tmp_path / "frames_1"
    synced = []
    real = os.fsync

    def fsync(descriptor):
        synced.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")).name, path.exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    write(path, policy=module())
    before = {name for name, exists in synced if not exists}
    assert {"state-policy.pt", "manifest.json"} <= before
    assert any("frames_1" in name for name in before)
    assert synced[-1] == (tmp_path.name, True)


def test_what_a_killed_process_left_is_no_checkpoint_and_goes_with_the_next(written):
    shutil.copytree(written, unfinished(written))
    (unfinished(written.parent / "frames_64")).mkdir()
    unfinished(written / "manifest.json").touch()
    assert files.checkpoints_in(written.parent) == [written]
    write(written.parent / "frames_96", policy=module())
    assert sorted(path.name for path in written.parent.iterdir()) == ["frames_32", "frames_96"]
    write(written, 32, policy=module(1), critic=module(2))
    assert sorted(file.name for file in written.iterdir()) == NAMES


def test_a_checkpoint_is_completed_and_no_state_written(tmp_path):
    path = tmp_path / "frames_32"
    write(path, 32, policy=module(1))
    state = path / "state-policy.pt"
    before = (state.stat().st_ino, state.read_bytes())
    for _ in range(2):
        files.complete(path, METRICS)
    assert (state.stat().st_ino, state.read_bytes()) == before
    assert str(files.intact_in(tmp_path)[path]["metrics"]) == str(METRICS)


@pytest.mark.parametrize("number", [8, True, np.int64(8), np.float32(8.1), torch.tensor(8)], ids=repr)
def test_metrics_of_any_numbers_are_read_back_as_floats(tmp_path, number):
    completed, complete = (save(tmp_path, frames, {"a": number}, {"policy": module()}) for frames in (1, 2))
    files.complete(completed, {"a": number})
    for path in (completed, complete):
        assert repr(files.manifest(path)["metrics"]) == repr({"a": float(number)})


# Damage


@pytest.mark.parametrize("bits", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_each_bit_of_a_manifest_is_guarded(written, bits):
    file = written / files.MANIFEST
    whole = file.read_bytes()
    for place in range(len(whole)):
        for bit in (*range(place, place + bits), None):
            changed = b"" if bit is None else bytes([whole[place] ^ 1 << bit % 8]) + whole[place + 1 :]
            file.write_bytes(whole[:place] + changed)
            assert not is_intact(written)
    file.write_bytes(whole)
    assert is_intact(written)


def test_a_rejection_names_the_file_and_the_newest_whole_checkpoint_beside_it(written):
    newer = shutil.copytree(written, written.parent / "frames_64")
    state = newer / "state-critic.pt"
    state.write_bytes(state.read_bytes()[:-1] + b"\1")
    assert rejection(newer) == (
        f"The checkpoint {newer} is damaged: state-critic.pt was modified or corrupted. Nothing of it was loaded. The "
        f"newest intact checkpoint in its folder is {written}."
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_missing_or_is_none_is_named_and_not_read(written, tmp_path, name):
    place = written / name
    place.rename(tmp_path / "elsewhere")
    assert f" is damaged: {name} is missing." in rejection(written)
    os.mkfifo(place)  # reading it would wait
    assert f" is damaged: {name} is " in rejection(written)
    place.unlink()
    place.symlink_to(tmp_path / "elsewhere")
    assert f" is damaged: {name} is " in rejection(written)


# Foreign files


def others(folder, outside):
    """Puts entries of other programs into a folder, which point to a file and a folder elsewhere, and returns them."""
    ours = set(folder.rglob("*"))
    (outside / "folder").mkdir(parents=True)
    (outside / "folder" / "state-policy.pt").touch()
    (folder / ".git" / "objects").mkdir(parents=True)
    (folder / ".git" / "objects" / "state-policy.pt").touch()
    for name in (".DS_Store", ".nfs000000000000", "notes.txt", ".state-policy.pt.tmp", "weights.pt"):
        (folder / name).write_text(name)
    (folder / "link").symlink_to(outside / "folder")
    (folder / "dangling").symlink_to(outside / "nothing")
    (folder / "state-link.pt").symlink_to("/")
    os.mkfifo(folder / ".fifo")
    return [path for path in (*folder.rglob("*"), *outside.rglob("*")) if path not in ours]


def unchanging(path):
    """Of a file that nobody changes: not when it was last read."""
    stat = path.lstat()
    return (stat.st_ino, stat.st_mode, stat.st_nlink, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


def test_saving_touches_nothing_of_others_in_the_folder(tmp_path):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    there = [*others(folder, tmp_path / "outside")]
    for path in (unfinished(folder / "mine"), folder / "frames_mine"):
        path.symlink_to(tmp_path / "outside" / "folder")
    stage = unfinished(folder / "frames_1")
    stage.mkdir()
    (stage / "keep.txt").touch()
    (folder / f"{UNFINISHED}mine").mkdir()
    before = {path: unchanging(path) for path in [*there, *folder.glob(f"{UNFINISHED}*"), *stage.iterdir()]}
    write(folder / "frames_1", policy=module())
    files.remove(folder / "frames_1")
    assert {path: unchanging(path) for path in before} == before
    assert not (folder / "frames_1").exists()


def test_foreign_files_in_a_checkpoint_are_not_damage_loaded_or_removed(written, tmp_path):
    there = others(written, tmp_path / "outside")
    check_loads(written, policy=1)
    files.remove(written)
    assert is_intact(written)
    write(written, 33, policy=module(7))
    assert frames_in(written) == 33
    assert [path for path in there if not os.path.lexists(path)] == []
    assert list(written.parent.glob(".*")) == []


NO_CHECKPOINTS = {
    "folder": lambda path: (path / "videos").mkdir(parents=True),
    "link": lambda path: path.symlink_to(path.with_name("frames_32")),
    "file": Path.touch,
}


@pytest.mark.parametrize("kind", NO_CHECKPOINTS)
def test_what_is_not_a_checkpoint_is_neither_replaced_nor_removed_nor_listed(written, kind):
    path = written.with_name("frames_64")
    NO_CHECKPOINTS[kind](path)
    before = unchanging(path)
    assert "not a checkpoint" in error_of(write, path, policy=module(), kind=FileExistsError)
    files.remove(path)
    assert unchanging(path) == before
    # A link to a checkpoint can be loaded, and stays where it is.
    assert files.checkpoints_in(path.parent) == ([written, path] if kind == "link" else [written])


# Strangers


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_strangers_checkpoint_runs_no_code(written, tmp_path, protocol):
    (written / "state-critic.pt").write_bytes(pickle.dumps(Code(tmp_path / "run"), protocol=protocol))
    resealed(written)
    assert "does not fit this configuration: critic: " in error_of(files.load, written, {"critic": module()})
    assert "cannot be read" in error_of(files.state, written, "critic")
    assert not (tmp_path / "run").exists()


MALFORMED = ["", "{}\n", "[]", "null", "[" * 100_000, '{"a": ' * 5_000, "9" * 5_000, "\udcff", "NaN"]


@pytest.mark.parametrize("text", MALFORMED)
def test_a_strangers_checkpoint_with_a_malformed_manifest_is_rejected(written, text):
    (written / files.MANIFEST).write_bytes(text.encode("utf-8", "surrogateescape"))
    assert " is damaged: manifest.json " in rejection(written)


OTHER_VALUES = [
    *({name: value} for name in ("metrics", "settings") for value in ([], None, 3, "frames")),
    *({"frames": value} for value in (-1, 10**18, True, "32")),
    {"tracker_ids": {"wandb": 3}},
    {"a": 1},
    *({"checksums": value} for value in ([], None, {"../state-policy.pt": ""}, {"/dev/zero": ""})),
    {"metrics": {"eval/return_mean": "9"}},
]


@pytest.mark.parametrize("values", OTHER_VALUES, ids=str)
def test_a_strangers_checkpoint_of_other_values_is_rejected(written, values):
    resealed(written, lambda manifest: manifest.update(values))
    assert f" is damaged: {files.MANIFEST} was modified or corrupted." in rejection(written)


def test_a_state_of_other_shapes_is_named_in_one_line(written):
    error = error_of(files.load, written, {"policy": torch.nn.Linear(5, 2)})
    assert re.search(r"policy: .*size mismatch for weight.*\[2, 3\]", error)
    assert "\n" not in error


def test_a_run_directory_that_was_deleted_is_not_made_again(written):
    shutil.rmtree(written.parents[1])
    assert written.parent.name in error_of(write, written, policy=module(1), kind=FileNotFoundError)
