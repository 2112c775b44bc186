"""Error messages for missing resources: disk space, memory, permissions."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from recurrl.errors import RunError

_KEYS = "hydra.run.dir=..., for a sweep hydra.sweep.dir=..., for the frames of replay buffer.folder=..."
"""Those of the directories that a run writes to."""
_FULL = (
    "The disk is full",
    "Earlier checkpoints are intact. Free some space, then continue with resume=auto in the same hydra.run.dir.",
)
_FORBIDDEN = ("Permission denied by the operating system", f"Give a writable directory with {_KEYS}")
_IMPOSSIBLE = ("The operating system cannot make or find a file", f"Give another directory with {_KEYS}")
_IN_THE_WAY = ("Something is in the way", f"Move it away, or give another directory with {_KEYS}")
_ADVICE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), _FULL),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR), _FORBIDDEN),
    **dict.fromkeys((errno.ENOENT, errno.ENAMETOOLONG, errno.EINVAL), _IMPOSSIBLE),
    **dict.fromkeys((errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENOTEMPTY), _IN_THE_WAY),
}
_OUT_OF_MEMORY = "DefaultCPUAllocator: "
"""The beginning of torch's plain RuntimeError when memory runs out on the CPU."""


@contextmanager
def resource_errors_as_messages() -> Iterator[None]:
    """Converts errors of the operating system and of memory to errors printed without a traceback.

    Raises:
        RunError: such an error.
    """
    try:
        yield
    except OSError as error:
        raise RunError(os_error_message(error)) from error
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise RunError(_too_large(error)) from error
    except RuntimeError as error:
        if _OUT_OF_MEMORY not in str(error):
            raise
        raise RunError(_too_large(error)) from error


def os_error_message(error: OSError) -> str:
    """The operating system's error, and what to do."""
    unknown = f"The operating system reports {type(error).__name__}", "HYDRA_FULL_ERROR=1 shows where."
    what, advice = _ADVICE.get(error.errno or 0, unknown)
    where = f" for {error.filename}" if error.filename else ""
    return f"{what}: {error.strerror or error}{where}. {advice}"


def _too_large(error: Exception) -> str:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return (
        f"Out of memory: {reason.rstrip('.')}. Give a smaller frames_per_batch, minibatch_slices, cell.hidden_size, "
        "encoder.sizes or env.num_envs; recompute=full also needs less."
    )
