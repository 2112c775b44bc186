"""Compiles ``kernel.c`` with the system's C compiler, once for each machine, and loads it."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch

from recurrl.runtime.atomic import replacing

_SOURCE = Path(__file__).with_name("kernel.c")
_NATIVE = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"
# Without -ffast-math, which would let NaN and Inf become anything.
_FLAGS = ("-O3", _NATIVE, "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC", "-pthread", "-x", "c")
_INSTALL = "Install one (on Debian and Ubuntu: apt install gcc libc6-dev), or choose backend=scan."

_log = logging.getLogger(__name__)


class NoKernelError(Exception):
    """The kernel cannot be compiled or loaded here; the message says why and what to do."""


# Whether there is a kernel cannot be traced; the compiler uses what it is at compile time.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def problem() -> str | None:
    """Why there is no kernel on this machine, or None if there is; the first call may compile it, in two seconds."""
    found = kernel(torch.float32)
    return found if isinstance(found, str) else None


@cache
def kernel(dtype: torch.dtype) -> ctypes.CDLL | str:
    """The kernel for float32 or float64, or an error message if it cannot be built or loaded here."""
    try:
        return _load(dtype)
    except NoKernelError as error:
        return str(error)


def _cache_folder() -> Path:
    """``$RECURRL_CACHE_DIR``, ``$XDG_CACHE_HOME/recurrl`` or ``~/.cache/recurrl``; it need not exist."""
    explicit = os.environ.get("RECURRL_CACHE_DIR")
    return Path(explicit) if explicit else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "recurrl"


def _load(dtype: torch.dtype) -> ctypes.CDLL:
    if os.name != "posix":
        raise NoKernelError("backend=native needs Linux or macOS. Choose backend=scan.")
    compiler, flags = _compiler(), (*_FLAGS, *(["-DDOUBLE"] if dtype == torch.float64 else []))
    source = _SOURCE.read_bytes()
    name = f"kernel-{_digest(source, compiler, flags)}.so"
    folder = _cache_folder() / "native"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_private(folder)
        path = folder / name
        if not path.exists():
            with replacing(path) as temporary:
                _compile(source, compiler, flags, temporary)
        _check_private(path)
        return ctypes.CDLL(str(path))
    except OSError as error:
        _log.info("The kernel of backend native is compiled again in each process: %s", error)
    with tempfile.TemporaryDirectory(prefix="recurrl-native-") as private:
        path = Path(private) / name
        _compile(source, compiler, flags, path)
        try:
            return ctypes.CDLL(str(path))  # stays loaded without its file
        except OSError as error:
            raise NoKernelError(f"The kernel of backend=native cannot be loaded: {error}. {_INSTALL}") from error


def _compiler() -> list[str]:
    """The command of the C compiler: ``$CC``, or the first found of ``cc``, ``gcc`` and ``clang``."""
    command = shlex.split(os.environ.get("CC", ""))
    names = [command[0]] if command else ["cc", "gcc", "clang"]
    for name in names:
        found = shutil.which(name)
        if found is not None:
            return [found, *command[1:]]
    raise NoKernelError(f"backend=native needs a C compiler, and there is no {', '.join(names)} in PATH. {_INSTALL}")


def _digest(source: bytes, compiler: list[str], flags: tuple[str, ...]) -> str:
    """Identifies the source, the compiler and the processor; a shared home may serve several machines."""
    path = Path(compiler[0]).resolve()
    changed = path.stat()
    parts = (*compiler, path, changed.st_size, changed.st_mtime_ns, *flags, platform.platform(), _processor())
    return hashlib.sha256(source + "\0".join(map(str, parts)).encode()).hexdigest()[:32]


def _processor() -> str:
    """The model and the instruction sets of the processor."""
    try:
        first, _, _ = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")
    except OSError:
        return f"{platform.processor()} {platform.node()}"
    keys = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    return "\n".join(line for line in first.splitlines() if line.partition("\t")[0].strip(": ") in keys)


def _check_private(path: Path) -> None:
    """Rejects a file or folder that another user could have written.

    Raises:
        PermissionError: another user owns it or may write to it.
    """
    found = path.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{path} belongs to another user or can be written to by others. Delete it.")


def _compile(source: bytes, compiler: list[str], flags: tuple[str, ...], to: Path) -> None:
    try:
        done = subprocess.run([*compiler, *flags, "-", "-o", str(to)], input=source, capture_output=True, check=False)
    except OSError as error:
        raise NoKernelError(f"backend=native needs a C compiler, and {compiler[0]} does not run: {error}.") from error
    if done.returncode != 0:
        output = done.stderr.decode(errors="replace").strip()
        line = next((line for line in output.splitlines() if "error" in line), output)
        raise NoKernelError(
            f"backend=native needs a C compiler, and {shlex.join(compiler)} fails with: {line} Repair it "
            "(on Debian and Ubuntu: apt install gcc libc6-dev), or choose backend=scan."
        )
