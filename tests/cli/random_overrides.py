"""Random command lines for ``recurrl-train``: every key and group, with values that are right, at an edge, or wrong."""

# ruff: noqa: SIM905 (lists of words)
from __future__ import annotations

import random
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import recurrl.configs
from recurrl.config.keys import keys_of
from recurrl.config.plugins import GROUPS, PACKAGES, names, packaged

FOUND = [
    *keys_of(),
    *(one for group in PACKAGES for options in packaged(group).values() for one in keys_of(options, f"{group}.")),
]
OPTIONS = [(key, kind, meaning) for key, kind, meaning in FOUND if not is_dataclass(kind)]

SMALL = (
    *("device=cpu", "total_frames=64", "frames_per_batch=32", "env.num_envs=4", "env.max_episode_steps=8"),
    *("slice_len=4", "minibatch_slices=4", "epochs=2", "cell.hidden_size=8", "encoder.sizes=[8]"),
    *("evaluation.episodes=2", "evaluation.memory=false"),
)
"""What is drawn over: two iterations in a fraction of a second."""

GRPO = (*SMALL, "algorithm=grpo", "algorithm.group_size=2")

ODD = (
    *"null '' nonesuch true false 0 -1 1 1.5 nan inf -inf 1e400 -0.0 1e-320 [] [1,2] [null] [[1]] {a:1} {} ???".split(),
    *(str(10**18), str(2**63), str(10**30), str(-(10**18)), "'é\u2028'", "'a b'", "'\\n'"),
    *"${seed} ${nonesuch} '1_0' 0x10 '../..'".split(),
)
"""For every key, whatever its type."""

INTEGERS = (*"0 1 2 3 4 5 8 16 32 64 -1 65537".split(), str(10**12))
SHORT = {"epochs": "0 1 2 3 8 -1".split(), "total_frames": "0 1 31 32 63 64 100 -1".split()}
"""For keys by which a run could become one that does not end."""
FLOATS = "0 1e-45 1e-30 1e-8 0.1 0.5 0.999 1 1.0001 2 1e3 1e8 1e30 1e38 1e300".split()
STRINGS = {
    **{key: meaning.choices for key, _, meaning in OPTIONS if meaning.choices},
    **{f"{group}.name": (*names(group), "nonesuch", "json:dumps") for group in GROUPS},
    "env.source": ("gymnasium", "_spaces", "os"),
    "env.id": (
        "CartPole-v1 Pendulum-v1 Acrobot-v1 MountainCarContinuous-v0 Blackjack-v1 FrozenLake-v1 Taxi-v3 "
        "CliffWalking-v1 Ant-v4 CartPole-v0 CartPole LunarLander-v3 ALE/Pong-v5 phys2d/CartPole-v1 "
        "GymV21Environment-v0 tabular/Blackjack-v0 CarRacing-v3 HalfCheetah-v5"
    ).split(),
    "logger.project": ("mine", "a/b", "'a b'"),
    "logger.id": ("mine", "a/b", "' a'"),
    "logger.mode": ("auto", "online", "offline", "disabled"),
    "resume": ("auto", "/", ".", "/dev/null", "~", "nonesuch/checkpoints"),
    "init_from": ("/", ".", "/dev/null", "nonesuch"),
    "pretrain.folder": ("/", ".", "/dev/null", "nonesuch"),
    "device": "auto cpu cpu:0 cpu:1 cuda cuda:0 cuda:99 meta mps cpu:-1".split(),
}
LISTS = {
    "algorithm.critic_observation": "[] [hidden] [observation] [hidden,observation] [0] [[a]]".split(),
    "encoder.sizes": f"[] [1] [8,4] [0] [-1] [{10**18}] [8,null] [1.5] [a] [[8]]".split(),
    "env.mask": f"[] [0] [0,0] [1,3] [0,1,2,3] [99] [-1] [{10**18}] [1.0] [a] [0,{{a:1}}]".split(),
    "env.packages": (*"[[a]] [] [popgym] [nonesuch] [''] ['.'] [gymnasium.envs] [os.nonesuch]".split(), "['a b']"),
    "env.kwargs": "{} {render_mode:human} {render_mode:nonesuch} {x:1} {g:nan} {sutton_barto_reward:true}".split(),
}
SLOW = ("multi_", "triton", "wandb", "compile=true")
SERVICES = (
    *(("collector=multi_sync",), ("collector=multi_async",), ("collector=multi_async", "collector.num_workers=4")),
    *(("collector=multi_sync", "cell=none")),
    *(("backend=triton",), ("backend=triton", "cell=lstm", "recompute=full"), ("backend=triton", "precision=bf16")),
    *(("compile=true",), ("compile=true", "cell=lstm"), ("compile=true", "cell=mingru", "backend=scan")),
    *(("logger=wandb", "logger.mode=offline"), ("logger=wandb", "logger.id=mine"), ("logger=wandb", "resume=auto")),
)
"""Choices that start processes, compile, or run in an interpreter. They take seconds, so they are drawn rarely."""


def is_slow(overrides: list[str]) -> bool:
    """Whether a command line makes such a choice."""
    return any(name in override for override in overrides for name in SLOW)


def leaf_types() -> dict[str, Any]:
    """The type of each key that takes a value."""
    return {key: kind for key, kind, _ in OPTIONS}


def group_choices() -> dict[str, list[str]]:
    """The choices of each group."""
    folders = [path for path in Path(recurrl.configs.__path__[0]).iterdir() if any(path.glob("*.yaml"))]
    return {folder.name: sorted(path.stem for path in folder.glob("*.yaml")) for folder in sorted(folders)}


def draw(draws: random.Random) -> list[str]:
    """A command line: the small run, and one to four things changed in it."""
    if draws.random() < 0.05:
        return [*SMALL, *draws.choice(SERVICES), *(_override(draws) for _ in range(draws.choice((0, 0, 1, 1, 2))))]
    # Seldom by the choice that measures, which takes seconds for each shape that is new.
    base = (*draws.choice((SMALL, SMALL, SMALL, GRPO)), *draws.choice(((), *5 * (("backend=pad",),))))
    return [*base, *(_override(draws) for _ in range(draws.choice((1, 1, 2, 2, 3, 4))))]


def _override(draws: random.Random) -> str:
    groups, types = group_choices(), leaf_types()
    if draws.random() < 0.12:
        group = draws.choice(sorted(groups))
        return f"{group}={draws.choice([*groups[group], 'nonesuch', 'null', '[gru,lstm]', ''])}"
    if draws.random() < 0.03:
        return draws.choice(
            ("nonesuch=1", "+nonesuch=1", "~seed", "~env", "~algorithm.gamma", "+seed=1", "++seed=1", "seed")
        )
    key = draws.choice(sorted(types))
    return f"{key}={_value(draws, key, types[key])}"


def _value(draws: random.Random, key: str, kind: Any) -> str:
    if draws.random() < 0.25:
        return draws.choice(ODD)
    for values in (STRINGS, LISTS, SHORT):
        if key in values:
            return draws.choice(values[key])
    if kind in (int, int | None):
        return draws.choice(INTEGERS)
    if kind in (float, float | None):
        return draws.choice(FLOATS)
    return draws.choice(("true", "false") if kind is bool else ODD)
