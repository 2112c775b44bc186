"""Checks of the configured environment, before it is trained in."""

from contextlib import closing
from dataclasses import replace

import torch
from tensordict import TensorDictBase

from recurrl.config import EnvConfig
from recurrl.envs.groups import Groups
from recurrl.envs.random_actions import act_at_random
from recurrl.envs.source import source_of
from recurrl.errors import ConfigError


def check_rows(config: EnvConfig, steps_per_row: int) -> None:
    """Rejects rows that begin with a reset and may be shorter than an episode, whose later steps would never be seen.

    Raises:
        ConfigError: with a row length that works.
    """
    limit = source_of(config).episode_limit()
    if limit is not None and steps_per_row < limit:
        raise ConfigError(
            f"With algorithm=grpo every row begins with a reset, and rows have {steps_per_row} steps (frames_per_batch "
            f"/ env.num_envs), but an episode of {config.id} may have {limit}: later steps would never be seen. Give "
            f"frames_per_batch={limit * config.num_envs}, and a slice_len that divides {limit}; or, if shorter "
            f"episodes are meant, env.max_episode_steps={steps_per_row}."
        )


def check_seeds(config: EnvConfig, groups: Groups, episodes: int = 4, steps: int = 8) -> None:
    """Rejects an environment that ignores reset seeds, by resetting and stepping two copies alike.

    Stepping reveals hidden state: different states behind equal observations show in later ones.

    Raises:
        ConfigError: the copies differ.
    """
    alike = replace(groups, size=2, steps_per_row=steps)
    with closing(source_of(config).make_groups(2, alike)) as env:
        for episode in range(episodes):
            current = env.reset()
            _compare_copies(config, current, "observation", f"after reset {episode + 1}")
            for step in range(steps):
                acted = act_at_random(env, current)
                acted["action"][1] = acted["action"][0]
                stepped, current = env.step_and_maybe_reset(acted)
                for key in ("observation", "reward", "done"):
                    _compare_copies(config, stepped["next"], key, f"{step + 1} steps after reset {episode + 1}")


def _compare_copies(config: EnvConfig, tensordict: TensorDictBase, key: str, when: str) -> None:
    # Compare leaves, because an observation may be nested.
    entry = tensordict.select(key)
    for name in entry.keys(True, True):
        first, second = entry[name]
        if not torch.equal(first.nan_to_num(), second.nan_to_num()):
            raise ConfigError(
                f"env.id={config.id} ignores reset seeds: two copies with the same seeds and actions differ in "
                f"{name!r} {when}. algorithm=grpo compares episodes that start from the same state. Have the "
                "environment draw from the generator seeded by reset(seed=...) (Gymnasium's self.np_random), or "
                "choose algorithm=ppo."
            )
