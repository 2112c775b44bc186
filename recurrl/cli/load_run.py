"""Opening what a run has learned."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recurrl import __version__, checkpoint
from recurrl.agent import Agent
from recurrl.build import make_policy_for
from recurrl.cli.overrides import parsed
from recurrl.cli.run_config import check_trusted, config_of, source_of, trusted
from recurrl.config import TrainConfig
from recurrl.config.composed import plain
from recurrl.errors import ConfigError
from recurrl.evaluation import random_numbers_restored
from recurrl.policy import Policy
from recurrl.runtime.resources import resource_errors_as_messages
from recurrl.validation import check_config

WITHOUT_EFFECT = ("num_envs", "reward_scale", "normalize_reward", "normalize_observation")
"""Options of environments that do not concern an evaluation, or belong to the policy."""


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
    which: str = checkpoint.LAST,
    device: str | None = None,
    trust_packages: bool = False,
    overrides: Sequence[str] = (),
) -> OpenedRun:
    """A checkpoint of a run.

    Args:
        path: a run directory or a checkpoint.
        which: of a run directory: ``last``, or ``best`` by the return of its evaluation.
        device: instead of the run's.
        trust_packages: import the packages that the run's configuration names.
        overrides: ``env.key=value``, changes of its environment.

    Raises:
        ConfigError: the path is not a run, its configuration names untrusted packages, its environment or device is not
            available here, or an override does not fit.
    """
    saved = checkpoint.Checkpoint(checkpoint.find(path, which))
    settings = config_of(saved)
    if not trust_packages:
        # Before the overrides: what the command line names is trusted, what the file names is not.
        check_trusted(settings, source_of(saved))
    _change(settings, overrides)
    with _naming_version(saved):
        config = trusted(settings, source_of(saved), trust_packages=True)
    if device not in (None, config.device):
        # The backend of another device may not run on this one, nor does acting need it.
        backend, recompute = replace(config.backend, name="reference"), replace(config.recompute, name="none")
        config = replace(config, device=device, backend=backend, recompute=recompute, compile=False)
    config = replace(config, resume=None)
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
def load(run: str | Path, which: str = checkpoint.BEST, *, device: str = "cpu", trust_packages: bool = False) -> Agent:
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

    Raises:
        ConfigError: it is not a run, it has no such checkpoint, it names packages that are not trusted, or its
            environment is not available here.
    """
    opened = open_run(Path(run), which, device, trust_packages)
    return Agent(opened.make_policy(), opened.config.env)
