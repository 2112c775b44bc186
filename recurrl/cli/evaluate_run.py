"""Deterministic episodes with the policy of a run."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from recurrl import checkpoint
from recurrl.build import make_policy_for, set_process_state
from recurrl.cli.run_config import config_of, source_of, trusted
from recurrl.config.composed import plain
from recurrl.errors import ConfigError
from recurrl.evaluation import KEPT, evaluate
from recurrl.runtime.resources import resource_errors_as_messages
from recurrl.runtime.time_limit import time_limit
from recurrl.validation import check_config


@resource_errors_as_messages()
def evaluate_run(
    path: Path,
    episodes: int | None = None,
    seed: int | None = None,
    device: str | None = None,
    states: Sequence[str] = (KEPT,),
    trust_packages: bool = False,
) -> dict[str, list[float]]:
    """Returns of deterministic episodes of a run's policy in the environment it was trained in, for each of ``states``.

    Args:
        path: a checkpoint, or a run directory for its newest one.
        episodes: number of episodes; default: as in the run's own evaluation.
        seed: of the environments; default: the run's.
        device: where the policy runs; default: the run's.
        states: treatments of the recurrent states between steps, see :func:`recurrl.evaluation.evaluate`.
        trust_packages: import the packages that the run's configuration names.

    Raises:
        ConfigError: the path is not a run, its configuration names untrusted packages, its environment or device is not
            available here, or its policy has no states.
    """
    saved = checkpoint.Checkpoint(checkpoint.find(path))
    settings = config_of(saved)
    config = trusted(settings, source_of(saved), trust_packages)
    config = replace(config, resume=None, device=device or config.device)
    check_config(config)
    set_process_state(config)
    episodes = config.evaluation.episodes if episodes is None else episodes
    if episodes < 1:
        raise ConfigError(f"--episodes {episodes} is too small. Give at least 1.")
    seed = config.seed if seed is None else seed
    with time_limit(config.collector.timeout_s):
        policy = make_policy_for(config)
        saved.load_policy(policy, plain(settings))
        if set(states) != {KEPT} and not policy.state_keys:
            raise ConfigError(f"--memory concerns recurrent states, but the policy of {path} has none. Leave it out.")
        return {each: evaluate(config.env, policy, episodes, seed, each) for each in states}
