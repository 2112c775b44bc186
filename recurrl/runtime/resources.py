"""Error messages for missing resources: disk space, memory, permissions."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from recurrl.errors import RunError, message_of

_DIRECTORY = "Set a writable directory with hydra.run.dir=..., hydra.sweep.dir=..., --output or --video."
_FREE = "Earlier checkpoints are intact. Free some space, then continue with resume=auto in the same hydra.run.dir."
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
    except (MemoryError, RuntimeError) as error:
        import torch  # here, so that commands without a run need not wait for it

        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and _OUT_OF_MEMORY not in str(error):
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise RunError(
            f"Out of memory: {reason.rstrip('.')}. Set a smaller frames_per_batch, minibatch_slices, "
            "cell.hidden_size, encoder.sizes or env.num_envs; recompute=full also needs less."
        ) from error


def os_error_message(error: OSError) -> str:
    """The message for an error of the operating system, with what to do."""
    where, advice = (f": {error.filename}", _DIRECTORY) if error.filename else ("", "HYDRA_FULL_ERROR=1 shows where.")
    reason = error.strerror or message_of(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        reason, advice = f"The disk is full ({reason})", _FREE
    return f"{reason}{where}. {advice}"
