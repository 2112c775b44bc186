"""Checks of a run that is not started, and of one that produced NaN or Inf."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from recurrl.build import (
    make_collector,
    make_learner,
    make_policy_for,
    make_replay_check,
    set_process_state,
    warm_start,
)
from recurrl.checkpoint import not_finite
from recurrl.cli.overrides import compose, given_keys
from recurrl.cli.run_config import trusted
from recurrl.cli.saved_config import saved_config
from recurrl.collector import collector_state
from recurrl.config.composed import typed
from recurrl.errors import ConfigError
from recurrl.runtime.resources import resource_errors_as_messages
from recurrl.runtime.run_directory import CONFIG_FILE, run_directory_of
from recurrl.runtime.time_limit import time_limit
from recurrl.validation import check_config


@resource_errors_as_messages()
def check_run(overrides: Sequence[str], config_dir: Path | None = None) -> str:
    """The result of the start-up check for the run that ``recurrl-train`` would start with these overrides.

    Raises:
        ConfigError: the run would be refused; a :class:`ReplayError` if by the check.
    """
    logging.getLogger("torchrl").setLevel(logging.WARNING)
    composed = compose(overrides, config_dir)
    config = typed(composed)
    if config.resume is not None:
        raise ConfigError("recurrl-check checks new runs; a resumed run checks itself. Leave resume out.")
    given = given_keys(composed, overrides)
    check_config(config, given)
    set_process_state(config)
    with time_limit(config.collector.timeout_s):
        policy = make_policy_for(config, given)
        # One epoch reads all recordings.
        warm_start(replace(config, pretrain=replace(config.pretrain, epochs=1)), policy, given)
        collector = make_collector(config, policy)
        try:
            line = make_replay_check(config, policy)(next(iter(collector)))
            return "\n".join([line, *collector_state.check(collector)])
        finally:
            collector.shutdown()


@resource_errors_as_messages()
def diagnose_run(path: Path, trust_packages: bool = False) -> list[str]:
    """A diagnosis of the last batch of a run that ended because training produced NaN or Inf.

    Args:
        path: the path in the run's error message.
        trust_packages: import the packages that the run's configuration names.

    Raises:
        ConfigError: the path is not such a batch, or it is damaged.
    """
    # One pass over a few minibatches is not worth compiling, and should show the loss as written.
    source = run_directory_of(path) / CONFIG_FILE
    config = replace(trusted(saved_config(path), source, trust_packages), compile=False)
    check_config(config)
    set_process_state(config)
    return list(not_finite.diagnose(make_learner(config, make_policy_for(config)), path))
