"""Errors addressed to the user, also for missing resources: disk space, memory, permissions."""

import errno
import inspect
from collections.abc import Iterator
from contextlib import contextmanager

_MAX_LENGTH = 500
"""Longer messages of other code are cut off: some list every tensor."""
_DIRECTORY = "Set a writable directory with hydra.run.dir=..., hydra.sweep.dir=..., --output or --video."
_FREE = "Checkpoints are intact. Free some space and retry; a run continues with resume=auto in the same hydra.run.dir."
_OUT_OF_MEMORY = "DefaultCPUAllocator: "
"""The beginning of torch's plain RuntimeError when memory runs out on the CPU."""


class ConfigError(ValueError):
    """A request that cannot be honoured. The message says what was requested, why it cannot be, and what to do instead.

    The command line prints only the message, without a traceback.
    """


def require(condition: bool, message: str) -> None:
    """Raises unless ``condition`` holds.

    Raises:
        ConfigError: with the message.
    """
    if not condition:
        raise ConfigError(message)


def check_method(what: str, part: object, base: type, name: str) -> None:
    """Rejects a method of a custom part that cannot be called as the base class declares it.

    Raises:
        ConfigError: the message begins with ``what`` and says how the method is called.
    """
    arguments = list(inspect.signature(getattr(base, name)).parameters)[1:]
    needed = f"{what} must have {name}({', '.join(arguments)})"
    try:
        method = getattr(part, name)
        inspect.signature(method).bind(*arguments)
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"{needed}: {error}.") from error
    require(not inspect.iscoroutinefunction(method), f"{needed}, and not as a coroutine. Remove async.")


def message_of(error: BaseException) -> str:
    """The message of an exception raised by other code, on one line, without its final full stop; its type if empty."""
    try:
        return " ".join(str(error).split())[:_MAX_LENGTH].rstrip(".") or type(error).__name__
    except Exception as raised:  # __str__ may fail too
        return f"({type(raised).__name__} in its __str__)"


@contextmanager
def naming(source: object) -> Iterator[None]:
    """Prefixes a ConfigError of the block with the source of the offending value, such as a file or a key.

    Raises:
        ConfigError: the prefixed error.
    """
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error


@contextmanager
def user_code(what: str, advice: str = "") -> Iterator[None]:
    """Turns any exception of a user's code that is called before training into a message that names what failed.

    Raises:
        ConfigError: the exception's type and message, between ``what`` and ``advice``.
    """
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        failed = f"{what} with {type(error).__name__}: {message_of(error)}."
        raise ConfigError(" ".join(filter(None, (failed, advice, "HYDRA_FULL_ERROR=1 shows where.")))) from error


class ConsistencyError(ConfigError):
    """The rollout recorded something other than the update would see, so learning would be wrong."""


class RunError(Exception):
    """A run cannot continue; the message says why and what to do.

    The command line prints only the message; with HYDRA_FULL_ERROR=1 also the traceback.
    """


class NonFiniteError(RunError):
    """Training produced NaN or Inf."""


class EnvError(RunError):
    """An environment misbehaved; the message says which one and at which step."""


class UnsavableError(ValueError):
    """An environment's state is not made of plain values."""


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
