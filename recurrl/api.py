"""The Python interface: training a policy, and loading the policy of a run."""

import logging
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton

from recurrl.agent import Agent
from recurrl.callbacks import Callback, IterationCallback
from recurrl.checkpoint import AUTO, BEST
from recurrl.config.composed import value_of
from recurrl.envs.passed_env import id_of
from recurrl.errors import ConfigError, message_of, require, resource_errors_as_messages
from recurrl.runs.directories import run_directory
from recurrl.runs.job import run as run_job
from recurrl.runs.launcher import launch
from recurrl.runs.open_run import open_run
from recurrl.runs.overrides import compose, overridden_keys, overrides_of, parsed, text_of
from recurrl.runtime.ranks import launched_size
from recurrl.runtime.run_summary import read_summary
from recurrl.runtime.seeds import random_numbers_restored
from recurrl.runtime.signals import stop_request


@dataclass(frozen=True)
class Run:
    """A run that has ended.

    Attributes:
        directory: the run's directory, with everything that it wrote.
        summary: the content of its ``summary.json``; ``status`` is ``completed``, or ``stopped`` by a callback.
        env: the argument ``env`` of :func:`train`.
    """

    directory: Path
    summary: Mapping[str, Any]
    env: Any = field(default=None, repr=False)

    def load(self, which: str = "best", device: str | torch.device = "cpu") -> Agent:
        """The run's policy, ready to act; see :func:`recurrl.load`. Packages that the run names are imported."""
        return load(self.directory, which, device=device, trust_packages=True, env=self.env)


@resource_errors_as_messages()
def train(
    config: str | Sequence[str] | Mapping[str, Any] = (),
    run_dir: str | Path | None = None,
    callbacks: Sequence[Callback | IterationCallback] = (),
    config_dir: str | Path | None = None,
    env: Callable[..., Any] | str | None = None,
) -> Run:
    """Trains a policy: the same run, with the same files, as the command ``recurrl-train``.

    It logs to ``recurrl.log`` in the run's directory, and to the logger ``recurrl``, which the caller may set up.
    Random numbers, torch's settings, loggers, signal handlers and Hydra are left as they were. Ctrl-C,
    SIGTERM and SIGUSR1 end the run after its iteration, with a checkpoint, and raise a ``KeyboardInterrupt`` with the
    attribute ``exit_code``.

    Args:
        config: overrides as on the command line, ``"cell=lstm seed=1"`` or ``["cell=lstm", "env.num_envs=32"]``; or a
            mapping of keys to values, nested or with dots. Values of a mapping that have no effect are not rejected,
            because it may be the whole configuration of another run.
        run_dir: the run's directory; default: ``outputs/<date>/<time>``, or the directory of the run to resume.
        callbacks: callbacks of the run; see :class:`recurrl.Callback` for when each method is called.
        config_dir: a folder with your own YAML files.
        env: used in place of ``env.id``: an id, or a class or function that makes environments of Gymnasium or TorchRL,
            all at once if it has a parameter ``num_envs``, otherwise one per call. An object that cannot be imported,
            such as a lambda or a class of a notebook, must be passed again to resume or load the run.

    Raises:
        ConfigError: the configuration is invalid. A new run's directory is removed again.
        RunError: the run failed.
    """
    if launched_size() > 1:
        raise ConfigError(
            f"recurrl.train must run in one process (got {launched_size()} from torchrun). Start recurrl-train with "
            "torchrun, or this program without it."
        )
    started = time.monotonic()
    try:
        config = shlex.split(config) if isinstance(config, str) else config
    except ValueError as error:
        raise ConfigError(f"{config} is not a command line: {message_of(error)}. Close it, or pass a list.") from error
    overrides = overrides_of(config) if isinstance(config, Mapping) else list(config)
    if env is not None:
        if any(text.startswith("env.id='<") for text in overrides):  # of a saved run, to which env was passed too
            overrides = [each for each in overrides if each.split("=")[0] not in ("env", "env.source", "env.id")]
        overrides = [*_choice_of(env, overrides), *overrides]
    if run_dir is not None:
        overrides = [*overrides, f"hydra.run.dir={text_of(run_dir)}"]
    with stop_request() as request, random_numbers_restored(), _process_settings_restored(), _isolated_hydra():
        with request.deferred():  # Hydra turns an interruption while it opens a file into another error
            composed = compose(overrides, config_dir)
        hydra_config: Any = HydraConfig.get()
        directory = Path(value_of(hydra_config, "run.dir")).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        with run_directory(directory, composed), _log_to_file(directory / "recurrl.log"):
            launch(composed)
            # A mapping may be a whole configuration, with values that have no effect.
            run_job(composed, directory, started, callbacks, env, strict=not isinstance(config, Mapping))
    return Run(directory, read_summary(directory), env)


@resource_errors_as_messages()
def load(
    run: str | Path,
    which: str = BEST,
    *,
    device: str | torch.device = "cpu",
    trust_packages: bool = False,
    env: Callable[..., Any] | str | None = None,
) -> Agent:
    """The policy of a run, ready to act.

        agent = recurrl.load("outputs/<date>/<time>")
        env, state = agent.make_env(), agent.initial_state()
        action, state = agent.act(env.reset()[0], state)

    The process's random numbers and torch's settings are left as they were.

    Args:
        run: a run directory, or a checkpoint.
        which: of a run directory, the ``best`` checkpoint, by the return of its evaluation, or the ``last``.
        device: the policy's device.
        trust_packages: import the packages that the run's configuration names, which executes their code.
        env: the object that was passed to :func:`recurrl.train`, if it cannot be imported by a name.

    Raises:
        ConfigError: ``run`` is not a run, has no such checkpoint, names packages that are not trusted, or its
            environment is not available here.
    """
    opened = open_run(Path(run), which, str(device), trust_packages, env=env)
    return Agent(opened.make_policy(), opened.config.env)


def _choice_of(env: Any, overrides: Sequence[str]) -> list[str]:
    """The overrides that choose the environment passed as ``env``. A resumed run keeps its other options.

    Raises:
        ConfigError: ``env`` does not make environments, or the overrides choose one too.
    """
    both = " and ".join(sorted({"env.source", "env.id"} & overridden_keys(overrides)))
    require(not both, f"env was passed to recurrl.train, but the configuration sets {both} too. Leave one of them out.")
    resumed = [each.value() for each in parsed(overrides) if each.key_or_group == "resume"]
    is_new = not resumed or resumed[-1] in (None, AUTO)
    return [*(["env=gym"] if is_new else []), f"env.id={text_of(id_of(env))}"]


@contextmanager
def _isolated_hydra() -> Iterator[None]:
    """Gives the block a fresh global state of Hydra, and restores the previous one afterwards."""
    state = Singleton.get_state()
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        Singleton.set_state(state)


@contextmanager
def _process_settings_restored() -> Iterator[None]:
    threads, dtype, torchrl = torch.get_num_threads(), torch.get_default_dtype(), logging.getLogger("torchrl")
    level, matmul, cudnn = torchrl.level, torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.set_default_dtype(torch.float32)  # whatever the caller's: another process may resume the run
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)
        torchrl.setLevel(level)
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, cudnn


@contextmanager
def _log_to_file(path: Path) -> Iterator[None]:
    """Logs to a file too, in the format of the command, and prints warnings if the caller has set up no logging."""
    ours = logging.getLogger("recurrl")
    handlers: list[logging.Handler] = [logging.FileHandler(path, delay=True)]
    level = ours.level
    if not ours.hasHandlers():
        handlers.append(logging.StreamHandler())
        handlers[-1].setLevel(logging.WARNING)
    ours.setLevel(logging.INFO)
    for handler in handlers:
        handler.setFormatter(logging.Formatter("[%(asctime)s][%(name)s][%(levelname)s] - %(message)s"))
        ours.addHandler(handler)
    try:
        yield
    finally:
        ours.setLevel(level)
        for handler in handlers:
            ours.removeHandler(handler)
            handler.close()
