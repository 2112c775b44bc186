"""Pictures of what happens in an environment, and its observations before anything is hidden."""

import io
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from PIL import Image

from recurrl.config import EnvConfig
from recurrl.envs.checks import Array, unpacked
from recurrl.envs.inline import InlineEnv
from recurrl.envs.policy_env import PolicyEnv
from recurrl.envs.source import GymnasiumSource, source_of
from recurrl.errors import ConfigError, require

PICTURES = "rgb_array"
"""Gymnasium's ``render_mode``."""
MAX_STEPS = 3000
"""Of an episode that are kept."""


class Watched(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Keeps what an environment shows, from :meth:`begin` to the end of the episode.

    Attributes:
        pictures: as PNG, because thousands of them would fill the memory otherwise; one more than actions.
        observations: as the environment returned them; as many as pictures.
        actions: as the environment received them.
        rewards: after each action.
        is_over: the episode has ended, or has had :data:`MAX_STEPS`.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.pictures: list[bytes] = []
        self.observations: list[Any] = []
        self.actions: list[Any] = []
        self.rewards: list[Any] = []
        self.is_over = False
        self._observation: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Like ``gymnasium.Env.reset``; also notes the first observation."""
        self._observation, info = unpacked("reset", self.env.reset(seed=seed, options=options))
        self.is_over = bool(self.pictures)
        return self._observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Like ``gymnasium.Env.step``; also keeps what the environment shows."""
        returned = unpacked("step", self.env.step(action))
        if self.pictures and not self.is_over:
            self.actions.append(action)
            self.rewards.append(returned[1])
            self._show(returned[0])
            self.is_over = len(self.actions) == MAX_STEPS
        return returned

    def begin(self) -> None:
        """Keeps what happens from now on, an episode's first step."""
        self._show(self._observation)

    def _show(self, observation: Any) -> None:
        self.observations.append(observation)
        self.pictures.append(_as_png(self._picture()))

    def _picture(self) -> Any:
        try:
            return self.env.render()
        except Exception as error:  # the environment's code
            raise ConfigError(
                f"The environment cannot be drawn: its render raised {type(error).__name__}: {error}. Leave out "
                "--video, or install what its rendering needs: pip install 'recurrl[video]' for Gymnasium's classic "
                "control; without a screen, MuJoCo needs MUJOCO_GL=egl."
            ) from error


def watched(config: EnvConfig) -> EnvConfig:
    """The environment drawing pictures, within a :class:`Watched`. One copy is made to see whether it can.

    Raises:
        ConfigError: it cannot.
    """
    video, without = f"A video of env.id={config.id} was requested, but", "Leave out --video."
    source = source_of(config)
    require(
        isinstance(source, GymnasiumSource),
        f"{video} env.source={config.source} makes environments of tensors, which nothing draws. {without}",
    )
    takes_mode = "kwargs" in source.supported_options
    env = source.plain()
    modes, mode = env.metadata.get("render_modes") or (), env.render_mode
    env.close()
    require(
        PICTURES in modes,
        f"{video} it cannot be drawn: its render modes are {', '.join(map(str, modes)) or 'none'}, and {PICTURES} is "
        f"needed. {without}",
    )
    require(
        takes_mode or mode == PICTURES,
        f"{video} env.source={config.source} makes it with render_mode={mode}. Have it give render_mode={PICTURES}.",
    )
    kwargs = {**config.kwargs, "render_mode": PICTURES} if takes_mode else config.kwargs
    return replace(config, kwargs=kwargs, wrappers=[*config.wrappers, f"{__name__}:{Watched.__name__}"])


def first_watched(envs: PolicyEnv) -> Watched:
    """The first environment of those that :func:`recurrl.envs.make_batched_env` made.

    Raises:
        ConfigError: the environment's source does not make single environments.
    """
    raw = envs.raw
    if not isinstance(raw, InlineEnv):
        raise ConfigError(
            f"A video was requested, but the environment's source makes a {type(raw).__name__}, not single "
            "environments. Leave out --video."
        )
    env: Any = raw.envs[0]
    while not isinstance(env, Watched):
        env = env.env
    return env


def _as_png(picture: Any) -> bytes:
    array: Array = np.asarray(picture)
    if array.ndim != 3 or array.shape[-1] != 3 or array.dtype != np.uint8:
        what = f"an array of {array.dtype} of shape {array.shape}" if array.ndim else f"a {type(picture).__name__}"
        raise ConfigError(
            f"The environment cannot be drawn: its render returned {what}. Have it return pixels [height, width, 3] of "
            "uint8, or leave out --video."
        )
    file = io.BytesIO()
    Image.fromarray(array).save(file, "png", compress_level=1)
    return file.getvalue()
