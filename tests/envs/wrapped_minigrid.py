"""MiniGrid's memory task as an image, without its mission, which is text. Named by ``env.packages``."""

from __future__ import annotations

from typing import Any

import gymnasium
from minigrid.wrappers import ImgObsWrapper

WRAPPED = "recurrl-test/MiniGrid-MemoryS7-v0"


def make(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    return ImgObsWrapper(gymnasium.make("MiniGrid-MemoryS7-v0", disable_env_checker=True, **kwargs))


gymnasium.register(WRAPPED, entry_point=make)
