"""``recurrl-check``: checks a run without training."""

import argparse
import logging
from dataclasses import replace
from pathlib import Path

from recurrl.cli.messages import print_result
from recurrl.config.composed import as_schema, resolved
from recurrl.errors import require
from recurrl.runs.launcher import launch
from recurrl.runs.overrides import compose, overridden_keys


def check_main() -> None:
    """Collects a first batch, checks that the update would see what the rollout saw, and tries the algorithm on it.
    Writes no files.
    """
    parser = argparse.ArgumentParser(prog="recurrl-check", description=check_main.__doc__)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="as for recurrl-train")
    parser.add_argument("--config-dir", type=Path, help="a folder of your YAML files, as for recurrl-train")
    print_result(parser, _check)


def _check(arguments: argparse.Namespace) -> str:
    """The result of the start-up check for the run that ``recurrl-train`` would start with these overrides.

    Raises:
        ConfigError: the run would be rejected, or the check fails.
    """
    composed = compose(arguments.overrides, arguments.config_dir)
    launch(composed)
    config, explicit_keys = as_schema(composed), overridden_keys(arguments.overrides)
    require(config.resume is None, "recurrl-check checks new runs; a resumed run checks itself. Leave resume out.")
    # These import torch, which messages about typos need not wait for.
    from recurrl.algorithms.metrics import SKIPPED, STEPS
    from recurrl.build import make_algorithm, make_collector, make_policy_for, set_process_state, warm_start
    from recurrl.consistency import check_consistency
    from recurrl.runtime.time_limit import time_limit
    from recurrl.validation import check_config

    logging.getLogger("torchrl").setLevel(logging.WARNING)
    # Nothing is trained, so any number of frames will do.
    config.total_frames = max(config.total_frames, config.frames_per_batch)
    with time_limit(config.collector.timeout_s):
        check_config(resolved(config), explicit_keys)
        set_process_state(config)
        policy = make_policy_for(config, explicit_keys)
        # One epoch reads all recordings.
        warm_start(replace(config, pretrain=replace(config.pretrain, epochs=1)), policy, explicit_keys)
        collector = make_collector(config, policy)
        try:
            batch = collector.collect()
            line = check_consistency(policy, batch, config)
            metrics = make_algorithm(replace(config, epochs=1), policy).update(batch, 0.0)
            name, advice = config.algorithm.name, "Set a smaller lr, or look for NaN in observations and rewards."
            require(not metrics.get(SKIPPED), f"algorithm={name}: loss or gradient is not finite. {advice}")
            terms = ", ".join(f"{name} {value:.3g}" for name, value in metrics.items() if name.startswith("loss/"))
            line += f"\none update by algorithm={name}: {metrics[STEPS]:.0f} gradient steps; {terms}"
            reason = collector.state_dict()["unsavable_reason"]
            lost = f"Checkpoints cannot hold unfinished episodes; a resumed run starts new ones. {reason}.\n"
            return f"{line}\n" if reason is None else f"{line}\n{lost}"
        finally:
            collector.shutdown()
