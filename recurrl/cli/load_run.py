"""Runs that exist: resumed with a command line's changes, opened by other commands, or loaded from Python."""

import logging
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recurrl import __version__, checkpoint
from recurrl.agent import Agent
from recurrl.build import make_policy_for
from recurrl.cli.overrides import overridden_keys, parsed, text_of
from recurrl.cli.saved_config import check_code, code_named, config_within, saved_config
from recurrl.cli.signature import is_signed
from recurrl.config import TrainConfig
from recurrl.config.composed import as_schema, plain, typed, value_of
from recurrl.config.keys import differences
from recurrl.config.plugins import PRESETS
from recurrl.envs.passed import id_of, with_maker
from recurrl.errors import ConfigError, naming
from recurrl.evaluation import random_numbers_restored
from recurrl.policy import Policy
from recurrl.runtime.resources import resource_errors_as_messages
from recurrl.runtime.run_directory import CONFIG_FILE, run_directory_of
from recurrl.validation import check_config, check_values

logger = logging.getLogger(__name__)
WITHOUT_EFFECT = ("num_envs", "reward_scale", "normalize_reward", "normalize_observation")
"""Options of environments that do not concern an evaluation, or belong to the policy."""


def with_resumed(
    composed: DictConfig, overrides: Sequence[str], run_dir: Path
) -> tuple[DictConfig, TrainConfig, checkpoint.Checkpoint | None]:
    """The configuration of the run to resume with this command line's overrides, the same with types, the checkpoint.

    With ``resume=auto`` where there is no checkpoint it is ``composed``, and the checkpoint None.

    Raises:
        ConfigError: there is no such run, its configuration does not fit, or an override has no effect in it.
    """
    resume = value_of(composed, "resume")
    with naming(f"resume={resume}"):
        start = checkpoint.to_resume(resume, run_dir)
    if resume == checkpoint.AUTO:
        found = f"resuming from {start.path}" if start else f"{run_dir} holds no checkpoint, starting a new run"
        logger.info("resume=auto: %s", found)
    if start is None:
        return composed, as_schema(composed), None
    effective, source = settings_of(start)
    before, trusts = plain(effective), is_signed(effective, source)
    for override in parsed(overrides):
        key = override.key_or_group
        if key in PRESETS:
            raise ConfigError(
                f"{key}= cannot be combined with resume=, which keeps its run's settings. Leave it out, or start a new "
                f"run with its weights: init_from={start.path} instead of resume."
            )
        OmegaConf.update(effective, key, value_of(composed, key), merge=False, force_add=True)
    if before.get("schedule_frames") is None and "schedule_frames" not in overridden_keys(overrides):
        # With other total_frames the schedules would otherwise jump back up.
        total = before.get("total_frames")
        effective.schedule_frames = None if OmegaConf.select(effective, "total_frames") == total else total
    if not trusts:
        _check_code(effective, composed, source)
    changes = differences(before, plain(effective))
    for key, (was, now) in changes.items():
        if key != "resume":
            logger.info("resuming with %s=%s, which was %s", key, now, was)
    config = _checked(effective, composed, source)
    if "schedule_frames" in changes:
        logger.info(
            "The schedules end at %d frames, as before. schedule_frames=%d stretches them over the whole run.",
            *(config.schedule_frames, config.total_frames),
        )
    _check_changes(config, changes, start.path)
    return effective, config, start


def _check_code(effective: DictConfig, composed: DictConfig, source: Path) -> None:
    """Raises ConfigError if code would be imported that this command line does not name too."""
    allowed = set().union(*code_named(composed, "command line").values())
    unnamed = {key: left for key, texts in code_named(effective, source).items() if (left := texts - allowed)}
    check_code(unnamed, source, f"name it on this command line too: {shlex.join(as_overrides(effective, unnamed))}")


def as_overrides(config: DictConfig, keys: Iterable[str]) -> list[str]:
    """Values of a configuration as a command line sets them."""
    return [f"{key}={text_of(value_of(config, key))}" for key in keys]


def _checked(effective: DictConfig, composed: DictConfig, source: Path) -> TrainConfig:
    """The configuration with its types, and values in their ranges."""
    try:
        config = as_schema(effective)
        check_values(config)
    except ConfigError:
        # What this command line gets wrong must not be reported as the file's error.
        check_values(as_schema(composed))
        with naming(source):
            raise
    return config


def _check_changes(config: TrainConfig, changes: Mapping[str, tuple[Any, Any]], start: Path) -> None:
    """Rejects changes of settings that a resumed run takes from its checkpoint."""
    kept = {"seed": "its random number generators are restored", "init_from": "its weights are restored"}
    kept |= {f"pretrain.{name}": "its weights are restored" for name in ("folder", "epochs")}
    if config.lr_schedule == "adaptive" and "lr_schedule" not in changes:
        kept["lr"] = "lr_schedule=adaptive resumes from its last learning rate"
    for key in kept.keys() & changes.keys():
        raise ConfigError(
            f"{key}={changes[key][1]} has no effect in a resumed run, where it was {changes[key][0]}: {kept[key]}. "
            f"Leave it out, or start a new run with these weights: init_from={start} instead of resume."
        )


def settings_of(saved: checkpoint.Checkpoint) -> tuple[DictConfig, Path]:
    """The configuration of a checkpoint's run, and its place: the run's directory, or a lone checkpoint itself."""
    if saved.is_alone:
        return config_within(saved.settings, saved.path), saved.path
    return saved_config(saved.path), run_directory_of(saved.path) / CONFIG_FILE


def check_trusted(config: DictConfig, source: Path) -> None:
    """Rejects a saved configuration that names code to import, unless a run of this user wrote it as and where it is.

    Raises:
        ConfigError: with the code.
    """
    if is_signed(config, source):
        return
    check_code(code_named(config, source), source, "add --trust-packages (trust_packages=True in Python)")


@dataclass(frozen=True)
class OpenedRun:
    """A checkpoint of a run, and its configuration.

    Attributes:
        saved: the checkpoint.
        config: checked, with changes for this use.
        settings: as the run saved it.
    """

    saved: checkpoint.Checkpoint
    config: TrainConfig
    settings: DictConfig

    def make_policy(self) -> Policy:
        """The policy with its learned parameters, on ``config.device``.

        Raises:
            ConfigError: the checkpoint does not fit the configuration.
        """
        # Its first parameters are drawn, which must not change what the caller draws.
        with random_numbers_restored():
            policy = make_policy_for(self.config)
        with _naming_version(self.saved):
            self.saved.load_policy(policy, plain(self.settings))
        return policy

    def described(self, directory: str) -> dict[str, Any]:
        """Where the policy comes from, for ``policy.json``."""
        saved, config = self.saved, self.config
        return {
            "directory": directory,
            "checkpoint": saved.path.name,
            "frames": saved.frames,
            "eval_return_mean": (saved.evaluation or {}).get("eval/return_mean"),
            "env": config.env.id,
            "cell": config.cell.name,
            "hidden_size": config.cell.hidden_size,
            "seed": config.seed,
        }


def open_run(
    path: Path,
    which: str = checkpoint.BEST,
    device: str | None = None,
    trust_packages: bool = False,
    overrides: Sequence[str] = (),
    env: Any = None,
) -> OpenedRun:
    """A checkpoint of a run.

    Args:
        path: a run directory or a checkpoint.
        which: of a run directory: ``best`` by the return of its evaluation, or ``last``.
        device: instead of the run's.
        trust_packages: import the packages that the run's configuration names.
        overrides: ``env.key=value``, changes of its environment.
        env: what makes its environment, as for :func:`recurrl.train`.

    Raises:
        ConfigError: the path is not a run, its configuration names untrusted packages, its environment or device is not
            available here, or an override does not fit.
    """
    saved = checkpoint.Checkpoint(checkpoint.find(path, which))
    settings, source = settings_of(saved)
    if not trust_packages:
        # Before the overrides: what the command line names is trusted, what the file names is not.
        check_trusted(settings, source)
    _change(settings, overrides if env is None else [f"env.id={text_of(id_of(env))}", *overrides])
    with _naming_version(saved), naming(f"{source} with {' '.join(overrides)}" if overrides else source):
        config = typed(settings)
    if device not in (None, config.device):
        # The backend of another device may not run on this one, nor does acting need it.
        backend = replace(config.backend, name="reference")
        config = replace(config, device=device, backend=backend, recompute="none", compile=False)
    config = replace(config, resume=None, env=with_maker(config.env, env))
    check_config(config)
    return OpenedRun(saved, config, settings)


@contextmanager
def _naming_version(saved: checkpoint.Checkpoint) -> Iterator[None]:
    """Adds to an error that another version wrote the checkpoint."""
    try:
        yield
    except ConfigError as error:
        if saved.version == __version__:
            raise
        by = f"recurrl {saved.version}" if saved.version else "a version of recurrl that did not note its number"
        raise ConfigError(
            f"{error} The checkpoint was written by {by}, and this is recurrl {__version__}: install that version to "
            "use it."
        ) from error


def _change(settings: DictConfig, overrides: Sequence[str]) -> None:
    for override in parsed(overrides):
        group, _, key = override.key_or_group.partition(".")
        if group != "env" or not key or override.is_delete():
            raise ConfigError(
                f"{override.input_line} does not change the environment of the run. Give env.key=value, such as "
                "env.kwargs.length=20."
            )
        if key in WITHOUT_EFFECT:
            raise ConfigError(f"{override.input_line} has no effect on returns. Leave it out.")
        OmegaConf.update(settings, override.key_or_group, override.value(), merge=False, force_add=True)


@resource_errors_as_messages()
def load(
    run: str | Path,
    which: str = checkpoint.BEST,
    *,
    device: str = "cpu",
    trust_packages: bool = False,
    env: Callable[..., Any] | str | None = None,
) -> Agent:
    """The policy of a run, ready to act.

        agent = recurrl.load("outputs/<date>/<time>")
        env, state = agent.make_env(), agent.initial_state()
        action, state = agent.act(env.reset()[0], state)

    Nothing of the process changes: neither its random numbers nor torch's settings.

    Args:
        run: a run directory, or a checkpoint.
        which: of a run directory: ``best``, the checkpoint with the best evaluation, or ``last``.
        device: where the policy computes.
        trust_packages: import the packages that the run's configuration names, which executes their code.
        env: what makes its environment, as for :func:`recurrl.train`, if the run cannot name it.

    Raises:
        ConfigError: it is not a run, it has no such checkpoint, it names packages that are not trusted, or its
            environment is not available here.
    """
    opened = open_run(Path(run), which, device, trust_packages, env=env)
    return Agent(opened.make_policy(), opened.config.env)
