"""A search for better hyperparameters with Optuna, as a Hydra sweeper."""

import shlex
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import optuna
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobStatus
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig, OmegaConf
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from recurrl.errors import ConfigError, RunError, message_of, require
from recurrl.returns import return_format
from recurrl.runs.overrides import arguments_of, parsed, prepared
from recurrl.runtime.run_directory import locked


def search(
    options: Mapping[str, Any], arguments: Sequence[str], config: DictConfig, launcher: Launcher, loader: ConfigLoader
) -> None:
    """Runs trials until there are ``n_trials``, and prints the best.

    Args:
        options: the values of ``configs/hydra/sweeper/optuna.yaml``.
        arguments: the overrides of the command line; keys with several values are searched, too.
        config: the sweep's configuration.
        launcher: runs the jobs.
        loader: finds the choices that a pattern such as ``cell=glob(gr*)`` stands for.

    Raises:
        ConfigError: an option or a search space is wrong, or the folder holds another search.
        RunError: trials failed; the others were run nonetheless.
    """
    overrides = [*(f"{key}={value}" for key, value in (options["params"] or {}).items()), *arguments]
    config_dir = arguments_of(sys.argv[1:]).config_dir
    yamls = [] if config_dir is None else [f"--config-dir={config_dir}"]
    overrides = prepared(["-m", *yamls, *overrides])[1 + len(yamls) :]
    fixed, space = _space(overrides, loader)
    require(
        bool(space),
        "hydra/sweeper=optuna has nothing to search. Use hparams_search=ppo, or values such as "
        "'lr=tag(log,interval(1e-4,1e-2))' or cell=gru,lstm.",
    )
    at_once = options["n_jobs"] or OmegaConf.select(config, "hydra.launcher.n_jobs", default=1)
    for key, value in (("sweeper.n_trials", options["n_trials"]), ("sweeper.n_jobs or hydra.launcher.n_jobs", at_once)):
        require(isinstance(value, int) and value > 0, f"hydra.{key} must be a positive integer (got {value}).")
    folder = Path(config.hydra.sweep.dir).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        study = _study(folder, options, at_once, overrides)
        while (count := min(at_once, options["n_trials"] - len(_ended(study)))) > 0:
            trials = [study.ask(space) for _ in range(count)]
            jobs = [[*fixed, *_overrides(trial), f"hydra.sweep.subdir={trial.number}"] for trial in trials]
            results = launcher.launch(jobs, initial_job_idx=trials[0].number)
            for trial, job in zip(trials, results, strict=True):
                trial.set_user_attr("status", job.status.name)
                value = job.return_value if job.status == JobStatus.COMPLETED else None
                study.tell(trial, value, TrialState.FAIL if value is None else TrialState.COMPLETE)
        _report(study, [*yamls, *fixed])


def _space(overrides: Sequence[str], loader: ConfigLoader) -> tuple[list[str], dict[str, BaseDistribution]]:
    """The overrides that all trials share, and the distribution of each other key; a key's last override counts."""
    last = {override.get_key_element().lstrip("+"): override for override in parsed(overrides)}
    fixed = [str(override.input_line) for override in last.values() if not override.is_sweep_override()]
    searched = [replace(override, config_loader=loader) for override in last.values() if override.is_sweep_override()]
    try:
        return fixed, {each.get_key_element(): _distribution(each) for each in searched}
    except ValueError as error:
        raise ConfigError(f"The search space is invalid: {message_of(error)}.") from error


def _distribution(override: Override) -> BaseDistribution:
    value: Any = override.value()
    if override.is_interval_sweep():
        are_integers = isinstance(value.start, int) and isinstance(value.end, int)
        distribution: Any = IntDistribution if are_integers else FloatDistribution
        return distribution(value.start, value.end, log="log" in value.tags)
    ends = (value.start, value.stop, value.step) if override.is_range_sweep() else ()
    if ends and all(isinstance(each, int) for each in ends) and value.step > 0:
        return IntDistribution(value.start, value.stop - 1, step=value.step)
    return CategoricalDistribution(list(override.sweep_string_iterator()))


def _study(folder: Path, options: Mapping[str, Any], at_once: int, overrides: list[str]) -> optuna.Study:
    """Loads the study in a folder, or creates one."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    storage = f"sqlite:///{quote(str(folder))}/study.db"  # quoted, because it may hold a question mark
    try:
        study = optuna.create_study(study_name="recurrl", storage=storage, direction="maximize", load_if_exists=True)
    except SQLAlchemyError as error:
        why = message_of(error).partition(" [SQL")[0]
        raise RunError(
            f"{folder}/study.db cannot be used: {why}. Move it away, or use another folder with hydra.sweep.dir=..."
        ) from error
    # A resumed search takes another seed: with the same one it would repeat its first proposals.
    seed = options["seed"] + len(study.trials)
    study.sampler = optuna.samplers.TPESampler(
        n_startup_trials=8, seed=seed, multivariate=True, constant_liar=at_once > 1
    )
    before = study.user_attrs.get("overrides", overrides)
    require(
        before == overrides,
        f"{folder} holds a search with other values: {shlex.join(before)}. Use the same ones, or another folder with "
        "hydra.sweep.dir=...",
    )
    study.set_user_attr("overrides", overrides)
    for trial in study.get_trials(states=(TrialState.RUNNING,)):  # of a search that was interrupted
        study.tell(trial.number, state=TrialState.FAIL)
        study.enqueue_trial(trial.params)
    return study


def _ended(study: optuna.Study) -> list[FrozenTrial]:
    """The trials whose jobs have ended, well or not."""
    return [trial for trial in study.trials if "status" in trial.user_attrs]


def _overrides(trial: Any) -> list[str]:
    """The values of a trial as overrides, with all digits: rounded, they would differ from the values recorded."""
    return [f"{key}={value}" for key, value in trial.params.items()]


def _report(study: optuna.Study, fixed: Sequence[str]) -> None:
    """Prints the best trial and the command line that repeats it; the sweep's own table lists all trials."""
    ended = _ended(study)
    failed = [trial.number for trial in ended if trial.state == TrialState.FAIL]
    if len(failed) < len(ended):
        best, value = study.best_trial, study.best_value
        fixed_values = [text for text in fixed if not text.lstrip("+").startswith("hparams_search=")]
        sys.stdout.write(
            f"\nThe best of {len(ended)} trials is {best.number}, with a return of {value:{return_format(value)}}.\n"
            f"To repeat it: recurrl-train {shlex.join([*fixed_values, *_overrides(best)])}\n"
            "The best of many trials looks better than it will with other seeds: add -m and seed=1,2,3 to find out.\n"
        )
    if failed:
        raise RunError(f"{len(failed)} of {len(ended)} trials failed or have no return: {failed}. See their logs.")
