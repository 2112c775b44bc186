"""Checkpoint directories: whole or not there, and nothing loaded of what is damaged."""

from __future__ import annotations

import json
import math
import os
import pickle
import random
import shutil
from pathlib import Path

import pytest
import torch
from torchrl.checkpoint import Checkpoint

from recurrl.checkpoint import files
from recurrl.errors import ConfigError
from recurrl.runtime.atomic import UNFINISHED, unfinished


def module(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Linear(3, 2)


def snapshot(components: dict[str, torch.nn.Module]) -> list[torch.Tensor]:
    return [parameter.clone() for component in components.values() for parameter in component.parameters()]


EVALUATION = {"eval/return_mean": 8.1, "eval/return_std": math.nan}


@pytest.fixture
def written(tmp_path) -> Path:
    path = tmp_path / "checkpoints" / "frames_32"
    files.write(path, {"policy": module(1), "critic": module(2)}, {"frames": 32})
    files.add_evaluation(path, EVALUATION)
    return path


def test_what_was_written_is_read_back(written):
    found = {"policy": module(3), "critic": module(4)}
    files.read(written, found)
    torch.testing.assert_close(snapshot(found), snapshot({"policy": module(1), "critic": module(2)}), rtol=0, atol=0)
    assert files.metadata(written) == {"frames": 32}


def test_a_component_can_be_read_alone(written):
    found = {"critic": module(4)}
    files.read(written, found)
    torch.testing.assert_close(snapshot(found), snapshot({"critic": module(2)}), rtol=0, atol=0)


def test_a_checkpoint_that_is_there_already_is_replaced(written):
    files.write(written, {"policy": module(7)}, {"frames": 33})
    assert files.metadata(written) == {"frames": 33}
    assert [path.name for path in written.parent.iterdir()] == [written.name]


class Failing:
    """A component that cannot be written, as on a full disk."""

    def state_dict(self) -> None:
        raise OSError(28, "No space left on device")

    def load_state_dict(self, state: None) -> None:
        raise AssertionError


def test_a_write_that_fails_leaves_the_checkpoint_before_and_nothing_else(written):
    with pytest.raises(OSError, match="No space left"):
        files.write(written, {"policy": module(7), "zz_failing": Failing()}, {"frames": 33})
    assert [path.name for path in written.parent.iterdir()] == [written.name]
    assert files.metadata(written) == {"frames": 32}


def test_everything_is_on_the_disk_before_the_checkpoint_has_its_name(tmp_path, monkeypatch):
    path = tmp_path / "frames_1"
    synced = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")).name, path.exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    files.write(path, {"policy": module()}, {})
    before = {name for name, exists in synced if not exists}
    assert before >= {"state.pt", "manifest.json", files.CHECKSUMS, "frames_1"}
    assert synced[-1] == (tmp_path.name, True)


def test_what_a_killed_process_left_half_written_is_no_checkpoint_and_goes_with_the_next_one(written):
    stage = unfinished(written.parent / "frames_64")
    shutil.copytree(written, stage / "frames_64")
    shutil.copytree(written, stage / ".frames_64.stage-0")
    shutil.copytree(written, unfinished(written))
    assert files.checkpoints_in(written.parent) == [written]
    files.write(written.parent / "frames_96", {"policy": module()}, {})
    assert sorted(path.name for path in written.parent.iterdir()) == ["frames_32", "frames_96"]


# Evaluations


def test_an_evaluation_is_added_and_nothing_else_written(tmp_path):
    path = tmp_path / "frames_32"
    files.write(path, {"policy": module(1)}, {"frames": 32})
    assert files.evaluation(path) is None
    before = {file: (file.stat().st_ino, file.read_bytes()) for file in contents(path)}
    files.add_evaluation(path, EVALUATION)
    files.add_evaluation(path, EVALUATION)
    assert {file: (file.stat().st_ino, file.read_bytes()) for file in before} == before
    assert {*contents(path)} - {*before} == {path / "evaluation.json"}
    assert files.damage(path) is None
    assert str(files.evaluation(path)) == str(EVALUATION)


def test_what_a_process_killed_while_it_added_an_evaluation_left_does_no_harm(written):
    unfinished(written / files.EVALUATION).write_text("{", encoding="utf-8")
    assert files.damage(written) is None
    files.add_evaluation(written, EVALUATION)
    assert not list(written.glob(".*"))


def test_each_bit_of_an_evaluation_is_guarded(written):
    file = written / files.EVALUATION
    whole = file.read_bytes()
    for place in range(len(whole)):
        file.write_bytes(whole[:place])
        assert files.damage(written) == "evaluation.json was modified or corrupted"
        for bit in range(8):
            file.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            assert files.damage(written) == "evaluation.json was modified or corrupted"


# Damage


def refusal(path: Path) -> str:
    found = {"policy": module(5), "critic": module(6)}
    before = snapshot(found)
    with pytest.raises(ConfigError) as caught:
        files.read(path, found)
    torch.testing.assert_close(snapshot(found), before, rtol=0, atol=0)
    return str(caught.value)


def contents(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file())


def test_200_damaged_checkpoints_are_refused_with_nothing_loaded(written, tmp_path):
    rng = random.Random(0)
    for case in range(200):
        damaged = shutil.copytree(written, tmp_path / "damaged" / f"frames_{case}")
        file = rng.choice(contents(damaged))
        data = bytearray(file.read_bytes())
        place = rng.randrange(len(data))
        if case % 2:
            data[place] ^= 1 << rng.randrange(8)
        else:
            del data[place:]
        file.write_bytes(data)
        said = refusal(damaged)
        assert said.startswith(f"The checkpoint {damaged} is damaged: "), file
        assert "Nothing of it was loaded." in said
        shutil.rmtree(damaged)


def test_a_refusal_names_the_file_and_the_newest_whole_checkpoint_beside_it(written):
    newer = shutil.copytree(written, written.parent / "frames_64")
    (file,) = (file for file in contents(newer) if "critic" in str(file) and file.name == "state.pt")
    file.write_bytes(b"")
    assert refusal(newer) == (
        f"The checkpoint {newer} is damaged: {file.relative_to(newer)} was modified or corrupted. Nothing of it was "
        f"loaded. The newest intact checkpoint beside it is {written}."
    )


@pytest.mark.parametrize("name", ["manifest.json", files.CHECKSUMS])
def test_a_checkpoint_that_lacks_a_file_is_refused(written, name):
    (written / name).unlink()
    assert f"is damaged: {name} is missing." in refusal(written)


def test_what_others_put_into_a_checkpoint_is_neither_damage_nor_loaded(written):
    component = next(written.rglob("state.pt")).parent
    for place in (written / ".DS_Store", written / "notes" / "manifest.json", component / "state.tdz"):
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(b"\0")
    (component / "state").symlink_to("/")
    os.mkfifo(written / ".nfs000000000000")
    found = {"policy": module(3)}
    files.read(written, found)
    torch.testing.assert_close(snapshot(found), snapshot({"policy": module(1)}), rtol=0, atol=0)


# What is removed


def others(folder: Path, outside: Path) -> list[Path]:
    """Puts entries of other programs into a folder, which point to a file and a folder elsewhere, and returns them."""
    ours = set(folder.rglob("*"))
    (outside / "folder").mkdir(parents=True)
    (outside / "folder" / "state.pt").touch()
    (folder / ".git" / "objects").mkdir(parents=True)
    (folder / ".git" / "objects" / "state.pt").touch()
    (folder / ".frames_32").mkdir()
    for name in (".DS_Store", ".nfs000000000000", "notes.txt", ".state.pt.tmp"):
        (folder / name).write_text(name)
    (folder / "link").symlink_to(outside / "folder")
    (folder / ".link").symlink_to(outside / "folder")
    (folder / "dangling").symlink_to(outside / "nothing")
    os.mkfifo(folder / ".fifo")
    return [path for path in (*folder.rglob("*"), *outside.rglob("*")) if path not in ours]


def unchanging(path: Path) -> tuple[int, ...]:
    """Of a file that nobody changes: not when it was last read."""
    found = path.lstat()
    return (found.st_ino, found.st_mode, found.st_nlink, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def test_saving_touches_nothing_of_others_in_the_folder(tmp_path):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    there = [*others(folder, tmp_path / "outside")]
    for path in (unfinished(folder / "mine"), folder / "frames_mine"):
        path.symlink_to(tmp_path / "outside" / "folder")
    stage = unfinished(folder / "frames_1")
    stage.mkdir()
    (stage / "keep.txt").touch()
    (stage / "frames_1").symlink_to(tmp_path / "outside" / "folder")
    (folder / f"{UNFINISHED}mine").mkdir()
    before = {path: unchanging(path) for path in [*there, *folder.glob(f"{UNFINISHED}*"), *stage.iterdir()]}
    del before[stage]  # its time changes
    files.write(folder / "frames_1", {"policy": module()}, {})
    files.remove(folder / "frames_1")
    assert {path: unchanging(path) for path in before} == before
    assert not (folder / "frames_1").exists()


def test_checkpoints_may_lie_on_another_disk_that_a_link_points_to(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "checkpoints").symlink_to(tmp_path / "disk")
    path = tmp_path / "checkpoints" / "frames_1"
    files.write(path, {"policy": module(1)}, {"frames": 1})
    assert files.checkpoints_in(path.parent) == [path]
    assert files.metadata(tmp_path / "disk" / "frames_1") == {"frames": 1}
    files.remove(path)
    assert list((tmp_path / "disk").iterdir()) == []


def test_a_checkpoint_that_holds_files_of_others_is_not_removed(written, tmp_path):
    there = others(written, tmp_path / "outside")
    files.remove(written)
    assert files.damage(written) is None
    assert [path for path in there if not os.path.lexists(path)] == []


def test_a_checkpoint_that_is_replaced_leaves_the_files_of_others_where_they_are(written, tmp_path):
    there = others(written, tmp_path / "outside")
    files.write(written, {"policy": module(7)}, {"frames": 33})
    assert files.metadata(written) == {"frames": 33}
    assert [path for path in there if not os.path.lexists(path)] == []
    assert list(written.parent.glob(".*")) == []


@pytest.mark.parametrize("kind", ["folder", "link", "file"])
def test_what_is_not_a_checkpoint_is_neither_replaced_nor_removed_nor_listed(written, kind):
    path = written.parent / "frames_64"
    if kind == "folder":
        path.mkdir()
        (path / "video.mp4").touch()
    elif kind == "link":
        path.symlink_to(written)
    else:
        path.touch()
    before = unchanging(path)
    with pytest.raises(FileExistsError, match="not a checkpoint"):
        files.write(path, {"policy": module()}, {})
    files.remove(path)
    assert unchanging(path) == before
    # A link to a checkpoint can be loaded, and stays where it is.
    assert files.checkpoints_in(path.parent) == ([written, path] if kind == "link" else [written])


# Strangers


class Code:
    """Runs a function when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("run",)


def with_checksums(path: Path) -> None:
    (path / files.CHECKSUMS).write_text(files._canonical(files._checksums(path)), encoding="utf-8")


def test_a_strangers_checkpoint_runs_no_code(written, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (file,) = (file for file in contents(written) if "critic" in str(file) and file.name == "state.pt")
    file.write_bytes(pickle.dumps(Code(), protocol=2))
    with_checksums(written)
    assert "does not fit this configuration" in refusal(written)
    assert not (tmp_path / "run").exists()


def test_a_strangers_checkpoint_in_another_format_of_torchrl_is_refused(tmp_path, monkeypatch):
    path = Checkpoint(policy=module(1)).save(tmp_path / "frames_32", metadata={})
    with_checksums(path)
    with pytest.raises(ConfigError, match=r"state\.pt is missing"):
        files.read(path, {"policy": module(2)})


@pytest.mark.parametrize(
    "text",
    ["", "{}\n", "[]", "null", "[" * 100_000, '{"a": ' * 5_000, "9" * 5_000, "\udcff", '{"manifest.json": 3}\n', "NaN"],
)
@pytest.mark.parametrize("name", [files.MANIFEST, files.CHECKSUMS])
def test_a_strangers_checkpoint_of_malformed_files_is_refused(written, name, text):
    (written / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    if name == files.MANIFEST:
        with_checksums(written)
    assert " is damaged: " in refusal(written)


@pytest.mark.parametrize("metadata", [[], None, 3, "frames"])
def test_a_strangers_checkpoint_of_other_values_is_refused(written, metadata):
    manifest = json.loads((written / files.MANIFEST).read_text())
    (written / files.MANIFEST).write_text(json.dumps({**manifest, "metadata": metadata}))
    with_checksums(written)
    assert f" is damaged: {files.MANIFEST} is not in the format that runs write." in refusal(written)


def test_what_would_wait_or_lies_elsewhere_is_not_read(written, tmp_path):
    for place in (written / files.CHECKSUMS, written / files.MANIFEST, next(written.rglob("state.pt"))):
        contents = place.read_bytes()
        (tmp_path / "elsewhere").write_bytes(contents)
        place.unlink()
        os.mkfifo(place)
        assert " is damaged: " in refusal(written)
        if place.name != files.CHECKSUMS:
            place.unlink()
            place.symlink_to(tmp_path / "elsewhere")
            assert f"{place.name} is missing" in refusal(written)
        place.unlink()
        place.write_bytes(contents)
    assert files.damage(written) is None


def test_a_state_of_other_shapes_is_named_in_one_line(written):
    with pytest.raises(ConfigError) as caught:
        files.read(written, {"policy": torch.nn.Linear(5, 2)})
    assert "'policy': 1 of its tensors differ in shape; the first, weight, is 2×3 in it and 2×5 here." in str(
        caught.value
    )
