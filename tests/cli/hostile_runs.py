"""Run directories as a stranger, another program or a broken disk may leave them, drawn from a seed."""

# ruff: noqa: SIM905 (lists of words)

import json
import os
import pickle
import random
import shutil
import stat
from pathlib import Path

import yaml
from checkpoint_files import Code, resealed

from recurrl.checkpoint import files
from recurrl.runtime.atomic import UNFINISHED

PACKAGE = "package_of_a_stranger"
TEXTS = (
    b"",
    *rb"""[1, 2|{|- a
- b|3|null|a: 1|a: &x [*x]|x: [|a: &b {c: 1}
d: *b|? [a]
: 1|a: 2001-99-99|!!python/object/apply:os.mkdir [marker]|{}|frames|frames,a
1,2,3|frames,a
x,1|frames
"1|a: ${oc.env:HOME}|a: ${a}|{"status": 1}|%PDF-1.4""".split(b"|"),
    *(b"\0" * 64, b"\xff\xfe\x00", b"\t", b"frames\n" + 400 * b"9" + b"\n", b"[" * 5_000, b"a: " + b"9" * 5_000),
)
VALUES = (
    *(None, True, -1, 0, 1.5, 10**18, 10**30, 1e300, float("nan"), float("inf"), "", "x", "???", "${seed}", "${x}"),
    *("${oc.env:HOME}", "${${x}:y}", [], [1, 2], [[1]], {}, {"a": 1}, "\ud800", "a\nb", "x" * 10_000, b"bytes"),
)
WITH_CODE = (
    *({"packages": names} for names in ([PACKAGE], [PACKAGE, "os"], [f"{PACKAGE}.sub"], ["popgym", PACKAGE])),
    {"id": f"{PACKAGE}:Some-v0"},
    {"id": "GymV26Environment-v0", "kwargs": {"env_id": f"{PACKAGE}:Some-v0"}},
    {"source": PACKAGE},
    {"kwargs": {"_target_": f"{PACKAGE}.run", "entry_point": f"{PACKAGE}:run"}},
)
"""Environments whose code is a stranger's."""
OURS = ("config.yaml", "metrics.csv", "summary.json", "learning_curve.png")


class Drawn:
    """One directory in the making.

    Args:
        draws: random numbers.
        run: the directory, a copy of a good run.
        outside: where links point to.
        marker: what exists once code of the stranger has run.
    """

    def __init__(self, draws, run, outside, marker):
        self.draws, self.run, self.outside, self.marker = draws, run, outside, marker
        self.foreign = [outside, *outside.rglob("*")]

    def place(self):
        """A folder in the run directory."""
        folders = [path for path in (self.run, *self.run.rglob("*")) if path.is_dir() and not path.is_symlink()]
        return self.draws.choice([self.run, self.run / "checkpoints", *folders])

    def new(self, path):
        """A place for something foreign, which is noted."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(path):
            path = path.with_name(f"{path.name}{self.draws.random()}")
        self.foreign.append(path)
        return path

    def named(self):
        """A new place with a name of somebody else's, or one that resembles ours."""
        names = [
            *".DS_Store .nfs0000001 .git .snapshot notes.txt .frames_000000000096 .metrics.csv.1.tmp".split(),
            *"frames_video state frames_ frames_-1 frames_١٢ state.tdz components frames_000000000096 -rf *".split(),
            *("a\nb", os.fsdecode(b"\xff\xfe"), "x" * 255, UNFINISHED, f"{UNFINISHED}x"),
        ]
        return self.new(self.place() / self.draws.choice(names))

    def target(self):
        """What a link points to."""
        return self.draws.choice([self.outside, *self.outside.rglob("*"), Path("/dev/zero"), Path("loop"), Path("..")])

    def ours(self):
        """A file of the run, of its checkpoints too."""
        return self.draws.choice([*(self.run / name for name in OURS), *filter(Path.is_file, self.run.rglob("*"))])

    def checkpoint(self):
        """A checkpoint, most often the newest."""
        checkpoints = files.checkpoints_in(self.run / "checkpoints")
        return self.draws.choice((checkpoints[0], checkpoints[-1], checkpoints[-1]))


def foreign_file(drawn):
    drawn.named().write_bytes(drawn.draws.choice(TEXTS))


def foreign_folder(drawn):
    folder = drawn.named()
    for name in ("", "objects", "checkpoints", "frames_000000000001"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for part in ("state-policy.pt", "manifest.json", "config"):
            (folder / name / part).write_bytes(b"theirs")
    drawn.foreign += folder.rglob("*")


def foreign_link(drawn):
    drawn.named().symlink_to(drawn.target())


def foreign_special(drawn):
    os.mknod(drawn.named(), 0o600 | drawn.draws.choice((stat.S_IFIFO, stat.S_IFSOCK)))


def ours_is_something_else(drawn):
    path = drawn.ours()
    path.unlink(missing_ok=True)
    drawn.foreign += (path, path / "theirs")
    kind = drawn.draws.choice(("link", "link", "folder", "pipe", "nothing"))
    if kind == "link":
        path.symlink_to(drawn.target())
    elif kind == "folder":
        (path / "theirs").mkdir(parents=True)
    elif kind == "pipe":
        os.mkfifo(path)


def ours_is_malformed(drawn):
    path = drawn.ours()
    if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
        return  # something else by an earlier change; opening a pipe would wait
    data = path.read_bytes() if path.exists() else b""
    cut_off = data[: drawn.draws.randrange(len(data) + 1)]
    path.write_bytes(drawn.draws.choice((cut_off, drawn.draws.choice(TEXTS))))


def folder_is_something_else(drawn):
    path = drawn.run / drawn.draws.choice(("checkpoints", "tensorboard"))
    shutil.rmtree(path, ignore_errors=True)
    drawn.foreign.append(path)
    if drawn.draws.random() < 0.5:
        path.write_bytes(b"theirs")
    else:
        path.symlink_to(drawn.target())


def _changed(drawn, values):
    """A configuration with a value that does not fit, or one that names code."""
    if drawn.draws.random() < 0.4:
        return values | {"env": values.get("env", {}) | drawn.draws.choice(WITH_CODE)}
    key = drawn.draws.choice(sorted(values))
    inner = values[key]
    if isinstance(inner, dict) and inner and drawn.draws.random() < 0.8:
        inner[drawn.draws.choice(sorted(inner))] = drawn.draws.choice(VALUES)
    elif drawn.draws.random() < 0.2:
        del values[key]
    else:
        values[drawn.draws.choice((key, key, "nonesuch", ""))] = drawn.draws.choice(VALUES)
    return values


def configuration_differs(drawn):
    path = drawn.run / "config.yaml"
    values = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() and not path.is_symlink() else None
    if isinstance(values, dict) and values:
        path.write_text(yaml.dump(_changed(drawn, values)), encoding="utf-8", errors="surrogatepass")


def values_of_a_checkpoint_differ(drawn):
    path = drawn.checkpoint()
    plain = [value for value in VALUES if not isinstance(value, bytes)]

    def change(values):
        if drawn.draws.random() < 0.5:
            # So that what the checkpoint itself holds is what counts.
            (drawn.run / "config.yaml").unlink(missing_ok=True)
            values["settings"] = _changed(drawn, values["settings"])
        else:
            values[drawn.draws.choice(("frames", "metrics", "tracker_ids", "settings"))] = drawn.draws.choice(plain)
        values |= json.loads(json.dumps(values, default=str))

    resealed(path, change)


def payload_is_a_pickle(drawn):
    path = drawn.checkpoint()
    state = drawn.draws.choice(sorted(path.glob("state-*.pt")))
    payloads = (pickle.dumps(Code(drawn.marker), protocol=2), pickle.dumps(Code(drawn.marker)), b"PK\x03\x04", b"")
    state.write_bytes(drawn.draws.choice(payloads))
    resealed(path)


def checkpoint_of_other_number(drawn):
    path = drawn.checkpoint()
    name = drawn.draws.choice(("frames_999999999999", "frames_0", "frames_" + "9" * 200, "frames_000000000048"))
    if not path.with_name(name).exists():
        shutil.copytree(path, path.with_name(name))


OF_CHECKPOINTS = (values_of_a_checkpoint_differ, payload_is_a_pickle, checkpoint_of_other_number)
CHANGES = (
    *(foreign_file, foreign_folder, foreign_link, foreign_special, foreign_link, ours_is_something_else),
    *(ours_is_malformed, ours_is_malformed, configuration_differs, configuration_differs, folder_is_something_else),
    *OF_CHECKPOINTS,
)


def draw(seed, good, run, outside, marker):
    """Makes a hostile run directory of a good one: the changes by name, and what is not the run's, and stays untouched.

    Args:
        seed: the same gives the same directory.
        good: a finished run.
        run: the directory to make.
        outside: a folder to make, which links point to.
        marker: a path that code of the stranger makes when it runs.
    """
    draws = random.Random(seed)
    (outside / "folder").mkdir(parents=True)
    for name in ("file", "state-policy.pt", "folder/state-policy.pt", "folder/config.yaml", "folder/manifest.json"):
        (outside / name).write_bytes(b"theirs")
    (outside / "loop").symlink_to("loop")
    kept = draws.choice(("all", "all", "all", "no metrics", "nothing"))
    left_out = {"all": (), "no metrics": ("metrics.csv", "summary.json", "learning_curve.png"), "nothing": ("*",)}[kept]
    shutil.copytree(good, run, ignore=shutil.ignore_patterns(*left_out, "*.log", ".hydra"))
    drawn = Drawn(draws, run, outside, marker)
    names = [f"run with {kept}"]
    for change in draws.choices(CHANGES, k=draws.choice((1, 1, 2, 3))):
        # A pipe that an earlier change left there would be waited for.
        piped = any(path.is_fifo() for path in run.rglob("*"))
        if change in OF_CHECKPOINTS and (piped or not files.checkpoints_in(run / "checkpoints")):
            continue
        try:
            change(drawn)
        except (OSError, ValueError, yaml.YAMLError, RecursionError):
            # An earlier change left nothing that this one could be made to.
            continue
        names.append(change.__name__)
    return names, [path for path in dict.fromkeys(drawn.foreign) if os.path.lexists(path)]


def fingerprints(paths, run):
    """What must not change of each path: what it is, and what it holds; wherever its checkpoint was moved to."""
    return {path: _fingerprint(_moved(path, run)) for path in paths}


def _moved(path, run):
    checkpoints, replaced = run / "checkpoints", run / "replaced"
    if os.path.lexists(path) or not path.is_relative_to(checkpoints) or not replaced.is_dir():
        return path
    candidates = (folder / path.relative_to(checkpoints) for folder in replaced.iterdir())
    return next(filter(os.path.lexists, candidates), path)


def _fingerprint(path):
    if not os.path.lexists(path):
        return None
    found = path.lstat()
    written = None if path.is_dir() else found.st_mtime_ns
    content = os.readlink(path) if path.is_symlink() else path.is_file() and path.read_bytes()
    return found.st_ino, found.st_mode, found.st_uid, found.st_gid, written, content
