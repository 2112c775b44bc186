"""Opens a run for use: its configuration and its policy, from one of its checkpoints."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recurrl import checkpoint
from recurrl.build import make_policy_for, set_process_state
from recurrl.config import TrainConfig
from recurrl.config.composed import plain, resolved, typed
from recurrl.config.keys import flat
from recurrl.config.options import SEED
from recurrl.envs.passed_env import id_of, with_maker
from recurrl.errors import ConfigError, naming, require
from recurrl.evaluation import KEPT, evaluate
from recurrl.policy import Policy
from recurrl.runs.overrides import parsed, text_of
from recurrl.runs.saved_config import SavedConfig, check_trusted, config_within, saved_config
from recurrl.runtime.seeds import random_numbers_restored
from recurrl.runtime.time_limit import time_limit
from recurrl.validation import check_config

WITHOUT_EFFECT = ("num_envs", "reward_scale", "normalize_reward", "normalize_observation")
"""Options of environments that do not change an evaluation, or that are part of the policy."""
DEFAULT_EPISODES = 20
"""The episodes of an evaluation, if the run itself evaluated none."""


def config_of(saved: checkpoint.Checkpoint) -> SavedConfig:
    """The configuration of a checkpoint's run, from its directory; of a lone checkpoint, from itself."""
    return config_within(saved.settings, saved.path) if saved.is_alone else saved_config(saved.path)


@dataclass(frozen=True)
class OpenedRun:
    """A checkpoint of a run, and its configuration.

    Attributes:
        saved: the checkpoint.
        config: the configuration, checked and adapted to acting without training.
        settings: the configuration as the run saved it, with the changes of its environment.
    """

    saved: checkpoint.Checkpoint
    config: TrainConfig
    settings: DictConfig

    def make_policy(self) -> Policy:
        """The policy with its learned parameters, on ``config.device``.

        Raises:
            ConfigError: the checkpoint does not fit the configuration.
        """
        # Initialising the policy draws random numbers, which must not change those that the caller draws.
        with random_numbers_restored():
            policy = make_policy_for(self.config)
        self.saved.load_policy(policy, plain(self.settings))
        return policy

    def evaluate(
        self,
        episodes: int | None = None,
        seed: int | Sequence[int] | None = None,
        states: Sequence[str] = (KEPT,),
        deterministic: bool = True,
        video: Sequence[Path] = (),
    ) -> dict[str, list[float]]:
        """Returns of episodes of the policy in its environment, for each of ``states``.

        Args:
            episodes: number of episodes for each seed; default: as in the run's own evaluation, or 20 if it had none.
            seed: the environments' seed, or several; default: the run's.
            states: treatments of the recurrent states between steps, see :func:`recurrl.evaluation.evaluate`.
            deterministic: play the most probable actions; False to sample them.
            video: files to write, as :func:`recurrl.video.writing.files_of` names them: the first episode of each seed,
                with unchanged states.

        Raises:
            ConfigError: the environment is not available here or cannot be drawn, or the policy has no states.
        """
        from recurrl.video.episode import Recorder, drawable
        from recurrl.video.writing import write

        config = self.config
        set_process_state(config)
        episodes = (config.evaluation.episodes or DEFAULT_EPISODES) if episodes is None else episodes
        require(episodes >= 1, f"--episodes must be at least 1 (got {episodes}).")
        seeds = [config.seed] if seed is None else [seed] if isinstance(seed, int) else seed
        fits = len(set(seeds)) == len(seeds) and all(map(SEED.holds, seeds))
        require(fits, f"--seed must be {SEED.words}, each of several a different one (got {list(seeds)}).")
        with time_limit(config.collector.timeout_s):
            policy = self.make_policy()
            require(
                set(states) == {KEPT} or bool(policy.state_keys),
                f"--memory needs recurrent states, but the policy of {self.saved.path} has none. Leave it out.",
            )
            env = drawable(config.env) if video else config.env
            recorders = [Recorder(policy, env.mask, f"{env.id}, seed {each}") for each in seeds] if video else []
            returns: dict[str, list[float]] = {each: [] for each in states}
            for state, played in returns.items():
                for each, recorder in zip_longest(seeds, recorders if state == KEPT else ()):
                    played += evaluate(
                        env, policy, episodes, each, state, deterministic=deterministic, observer=recorder
                    )
        if video:
            write([each.episode() for each in recorders], video)
        return returns

    def described(self, directory: str) -> dict[str, Any]:
        """Where the policy comes from, for ``policy.json``."""
        saved, config = self.saved, self.config
        return {
            "directory": directory,
            "checkpoint": saved.path.name,
            "frames": saved.frames,
            "eval_return_mean": saved.metrics.get(checkpoint.RETURN_MEAN),
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
    """Opens a checkpoint of a run.

    Args:
        path: a run directory or a checkpoint.
        which: the ``best`` checkpoint of a run directory, by the return of its evaluation, or the ``last``.
        device: where the policy runs; default: the run's device.
        trust_packages: import the packages that the run's configuration names.
        overrides: ``env.key=value``, changes of the run's environment.
        env: what makes the environment, as for :func:`recurrl.train`.

    Raises:
        ConfigError: the path is not a run, its configuration names untrusted packages, its environment or device is not
            available here, or an override does not fit.
    """
    saved = checkpoint.Checkpoint(checkpoint.find(path, which))
    run_config = config_of(saved)
    # Before the overrides: what the command line names is trusted, what the file names is not.
    check_trusted(run_config, trust_packages)
    _change(run_config.config, overrides if env is None else [f"env.id={text_of(id_of(env))}", *overrides])
    with naming(f"{run_config.source} with {' '.join(overrides)}" if overrides else run_config.source):
        config = typed(run_config.config)
    # The run's backend may not be available here, and acting does not need it. fast keeps tf32 in the other layers, on
    # a GPU that has it.
    config = replace(
        resolved(replace(config, device=device or config.device)),
        backend=replace(config.backend, name="reference"),
        precision="fast" if config.precision in ("fast", "tf32") else "ieee",
        recompute="none",
        compile="none",
        resume=None,
        env=with_maker(config.env, env),
    )
    check_config(config)
    return OpenedRun(saved, config, run_config.config)


def _change(settings: DictConfig, overrides: Sequence[str]) -> None:
    for override in parsed(overrides):
        group, _, key = override.key_or_group.partition(".")
        if group != "env" or not key or override.is_delete() or override.is_sweep_override():
            raise ConfigError(
                f"{override.input_line} does not change the environment of the run. Use env.key=value with one value, "
                "such as env.kwargs.length=20."
            )
        masks = "env.action_mask_from_info must stay what the policy was trained with. Leave it out."
        require(key != "action_mask_from_info", masks)
        require(key not in WITHOUT_EFFECT, f"{override.input_line} has no effect on returns. Leave it out.")
        for path, value in flat({override.key_or_group: override.value()}).items():
            OmegaConf.update(settings, path, value, merge=False, force_add=True)
