"""``recurrl-check``: checks a run without training, or diagnoses one that produced NaN or Inf."""

import argparse
import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from recurrl.cli.messages import errors_as_messages
from recurrl.cli.overrides import TRUST, compose, overridden_keys
from recurrl.config.composed import as_schema, resolved
from recurrl.errors import ConfigError


def check_main() -> None:
    """``recurrl-check``: checks that the update would see what the rollout saw, and trains nothing."""
    parser = argparse.ArgumentParser(
        prog="recurrl-check",
        description="Collects a first batch and checks that the update would see what the rollout saw. Trains nothing "
        "and writes no files.",
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="as for recurrl-train")
    parser.add_argument("--config-dir", type=Path, help="a folder of your yamls, as for recurrl-train")
    parser.add_argument(
        "--not-finite",
        type=Path,
        metavar="PATH",
        help="instead, examine the batch that a run saved when training produced NaN or Inf, and report where they "
        "appear",
    )
    parser.add_argument("--trust-packages", action="store_true", help=f"with --not-finite: {TRUST}")
    arguments = parser.parse_args()
    with errors_as_messages():
        if arguments.not_finite is None:
            line = check_run(arguments.overrides, arguments.config_dir)
        else:
            line = "\n".join(diagnose_run(arguments.not_finite, arguments.trust_packages))
    sys.stdout.write(line + "\n")


def check_run(overrides: Sequence[str], config_dir: Path | None = None) -> str:
    """The result of the start-up check for the run that ``recurrl-train`` would start with these overrides.

    Raises:
        ConfigError: the run would be rejected, or the check fails.
    """
    config, explicit = as_schema(compose(overrides, config_dir)), overridden_keys(overrides)
    if config.resume is not None:
        raise ConfigError("recurrl-check checks new runs; a resumed run checks itself. Leave resume out.")
    # With torch, which typos need not wait for.
    from recurrl.build import make_collector, make_consistency_check, make_policy_for, set_process_state, warm_start
    from recurrl.collector.restarts import why_not_resumable
    from recurrl.runtime.resources import resource_errors_as_messages
    from recurrl.runtime.time_limit import time_limit
    from recurrl.validation import check_config

    logging.getLogger("torchrl").setLevel(logging.WARNING)
    # Nothing is trained, so that any number of frames will do.
    config.total_frames = max(config.total_frames, config.frames_per_batch)
    with resource_errors_as_messages(), time_limit(config.collector.timeout_s):
        check_config(resolved(config), explicit)
        set_process_state(config)
        policy = make_policy_for(config, explicit)
        # One epoch reads all recordings.
        warm_start(replace(config, pretrain=replace(config.pretrain, epochs=1)), policy, explicit)
        collector = make_collector(config, policy)
        try:
            line = make_consistency_check(config)(policy, collector.collect())
            why_not = why_not_resumable(collector)
            lost = f"\nCheckpoints cannot hold unfinished episodes; a resumed run starts new ones. {why_not}."
            return line if why_not is None else line + lost
        finally:
            collector.shutdown()


def diagnose_run(path: Path, trust_packages: bool = False) -> list[str]:
    """A diagnosis of the last batch of a run that ended because training produced NaN or Inf.

    Args:
        path: the path in the run's error message.
        trust_packages: import the packages that the run's configuration names.

    Raises:
        ConfigError: the path is not such a batch, or it is damaged.
    """
    from recurrl.build import make_algorithm, make_policy_for, set_process_state
    from recurrl.checkpoint import not_finite
    from recurrl.cli.load_run import trusted
    from recurrl.cli.saved_config import saved_config
    from recurrl.runtime.resources import resource_errors_as_messages
    from recurrl.runtime.run_directory import CONFIG_FILE, run_directory_of
    from recurrl.validation import check_config

    with resource_errors_as_messages():
        # One pass over a few minibatches is not worth compiling, and should show the loss as written.
        source = run_directory_of(path) / CONFIG_FILE
        config = replace(trusted(saved_config(path), source, trust_packages), compile=False)
        check_config(config)
        set_process_state(config)
        return list(not_finite.diagnose(make_algorithm(config, make_policy_for(config)), path))
