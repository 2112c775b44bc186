"""Compiles the C sources of this folder with the system's C compiler, once per machine, and loads the library."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor

from recurrl.errors import message_of
from recurrl.runtime.atomic import replacing

_SOURCES = [Path(__file__).with_name(name) for name in ("kernel.c", "recurrence.c")]
_FUNCTIONS = [name + direction for name in ("", "recurrence_", "memories_") for direction in ("forward", "backward")]
_FIELDS = 48  # at least as many as any struct has; long is as wide as a pointer on Linux and macOS
_NATIVE = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"
# Without -ffast-math, which would let NaN and Inf become anything.
_MATHS = ("-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd")
_FLAGS = ("-O3", _NATIVE, *_MATHS, "-shared", "-fPIC", "-pthread", "-x", "c")
_INSTALL = "Install one (on Debian and Ubuntu: apt install gcc libc6-dev), or choose backend=scan."

_log = logging.getLogger(__name__)


class NoKernelError(Exception):
    """The kernel cannot be compiled or loaded here; the message says why and what to do."""


# Building and loading the kernel cannot be traced; the compiler takes the answer at compile time as a constant.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def unavailable_reason() -> str | None:
    """Why there is no kernel on this machine; None if there is one. The first call may take two seconds to build it."""
    loaded = kernel(torch.float32)
    return loaded if isinstance(loaded, str) else None


@cache
def kernel(dtype: torch.dtype) -> ctypes.CDLL | str:
    """The kernel for float32 or float64, or an error message if it cannot be built or loaded here."""
    try:
        return _load(dtype)
    except NoKernelError as error:
        return str(error)
    except OSError as error:
        return (
            f"The kernel of backend=native cannot be stored and loaded: {message_of(error)}. Set TMPDIR to a folder "
            "with space that programs may be loaded from, or choose backend=scan."
        )


def run(function: str, dtype: torch.dtype, *fields: int | Tensor | None) -> None:
    """Calls a function of the kernel with a pointer to a struct of numbers and pointers.

    Args:
        function: the function's name.
        dtype: the dtype that it computes in.
        fields: the first fields of the struct, in its order; the others are zero.

    Raises:
        RuntimeError: there is no kernel.
        MemoryError: there is no memory for the function's working space.
    """
    loaded = kernel(dtype)
    if isinstance(loaded, str):
        raise RuntimeError(loaded)
    values = [each.data_ptr() if isinstance(each, Tensor) else each or 0 for each in fields]
    if getattr(loaded, function)((ctypes.c_long * _FIELDS)(*values)):
        raise MemoryError("backend=native: no memory for the recurrent layer's working space.")


def _cache_folder() -> Path:
    """``$RECURRL_CACHE_DIR``, ``$XDG_CACHE_HOME/recurrl`` or ``~/.cache/recurrl``; it need not exist.

    Raises:
        FileNotFoundError: neither is set, and there is no home directory.
    """
    if explicit := os.environ.get("RECURRL_CACHE_DIR"):
        return Path(explicit)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "recurrl"
    except RuntimeError as error:
        raise FileNotFoundError(f"{error} Set RECURRL_CACHE_DIR to a folder for the kernel") from error


def _load(dtype: torch.dtype) -> ctypes.CDLL:
    """Loads the kernel from the cache, building it if necessary; without a usable cache, from a temporary folder.

    Raises:
        NoKernelError: it cannot be compiled.
        OSError: it cannot be stored or loaded.
    """
    if os.name != "posix":
        raise NoKernelError("backend=native needs Linux or macOS. Choose backend=scan.")
    compiler, flags = _compiler(), (*_FLAGS, *(["-DDOUBLE"] if dtype == torch.float64 else []))
    source = _source()
    name, compiled = _digest(source, compiler, flags), cache(partial(_compiled, source, compiler, flags))
    try:
        return _load_from(_cache_folder() / "native", name, compiled)
    except OSError as error:
        _log.info("backend=native has no usable cache, so each process compiles the kernel: %s", error)
    with tempfile.TemporaryDirectory(prefix="recurrl-native-") as folder:
        return _load_from(Path(folder), name, compiled)  # stays loaded without its file


def _load_from(folder: Path, name: str, compiled: Callable[[], bytes]) -> ctypes.CDLL:
    """Loads the kernel from a folder that only this user can write to; stores it there first if there is none.

    Raises:
        NoKernelError: it cannot be compiled.
        OSError: it cannot be stored or loaded.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_private(folder)
    for path in folder.glob(f"kernel-{name}-*.so"):
        try:
            return _loaded(path)
        except OSError as error:
            _log.info("backend=native compiles its kernel again: %s", error)
    content = compiled()
    path = folder / f"kernel-{name}-{_sha256(content)}.so"
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    return _loaded(path)


def _source() -> bytes:
    """All sources, joined into one compilation unit."""
    return b"\n".join(path.read_bytes() for path in _SOURCES)


def _loaded(path: Path) -> ctypes.CDLL:
    """Loads the kernel from a file, after comparing its content with the hash in its name: loading a file that was cut
    short would kill the process.

    Raises:
        OSError: the content does not match, another user could have written it, or it is not the kernel.
    """
    _check_private(path)
    if _sha256(path.read_bytes()) != path.stem.rpartition("-")[2]:
        raise OSError(f"{path} was modified or cut short")
    library = ctypes.CDLL(str(path))
    if not all(hasattr(library, name) for name in _FUNCTIONS):
        raise OSError(f"{path} is another library")
    return library


def _compiler() -> list[str]:
    """The command of the C compiler: ``$CC``, or the first found of ``cc``, ``gcc`` and ``clang``."""
    command = shlex.split(os.environ.get("CC", ""))
    names = [command[0]] if command else ["cc", "gcc", "clang"]
    for name in names:
        if path := shutil.which(name):
            return [path, *command[1:]]
    raise NoKernelError(f"backend=native needs a C compiler, and there is no {', '.join(names)} in PATH. {_INSTALL}")


def _digest(source: bytes, compiler: list[str], flags: tuple[str, ...]) -> str:
    """Identifies the source, the compiler and the processor; a shared home may serve several machines."""
    path = Path(compiler[0]).resolve()
    changed = path.stat()
    parts = (*compiler, path, changed.st_size, changed.st_mtime_ns, *flags, platform.platform(), _processor())
    return _sha256(source + "\0".join(map(str, parts)).encode())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def _processor() -> str:
    """The model and the instruction sets of the processor."""
    try:
        first, _, _ = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")
    except OSError:
        return f"{platform.processor()} {platform.node()}"
    keys = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    return "\n".join(line for line in first.splitlines() if line.partition("\t")[0].strip(": ") in keys)


def _check_private(path: Path) -> None:
    """Rejects a path that is neither a file nor a folder, or that another user could have written.

    Raises:
        OSError: the path belongs to another user, others can write to it, or it is neither a file nor a folder.
    """
    status = path.stat()
    if not (path.is_file() or path.is_dir()):
        raise OSError(f"{path} is not a file")
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"{path} belongs to another user or can be written to by others. Delete it.")


def _compiled(source: bytes, compiler: list[str], flags: tuple[str, ...]) -> bytes:
    """The library's content.

    Raises:
        NoKernelError: the compiler does not run, or fails.
        OSError: there is no space for its output.
    """
    with tempfile.TemporaryDirectory(prefix="recurrl-native-") as folder:
        to = Path(folder) / "kernel.so"
        try:
            command, english = [*compiler, *flags, "-", "-o", str(to)], {**os.environ, "LC_ALL": "C"}
            done = subprocess.run(command, input=source, capture_output=True, check=False, env=english)
        except OSError as error:
            name = compiler[0]
            raise NoKernelError(f"backend=native needs a C compiler, and {name} does not run: {error}.") from error
        if done.returncode == 0:
            return to.read_bytes()
    output = done.stderr.decode(errors="replace").strip()
    for number in (errno.ENOSPC, errno.EDQUOT):
        if os.strerror(number) in output:
            raise OSError(number, os.strerror(number), folder)
    line = next((line for line in output.splitlines() if "error" in line), output)
    raise NoKernelError(
        f"backend=native needs a C compiler, and {shlex.join(compiler)} fails with: {line} Repair it "
        "(on Debian and Ubuntu: apt install gcc libc6-dev), or choose backend=scan."
    )
