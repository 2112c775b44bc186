"""Pictures of environments."""

import io
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from PIL import Image

from recurrl.config import EnvConfig
from recurrl.envs.checks import Array
from recurrl.envs.source import GymnasiumSource, source_of
from recurrl.errors import ConfigError, message_of, require

PICTURES = "rgb_array"
"""The ``render_mode`` in which Gymnasium's environments return pixels."""


def drawable(config: EnvConfig) -> EnvConfig:
    """The options with which an environment draws pictures. One copy is made to see whether it can.

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
    modes = env.metadata.get("render_modes") or ()
    env.close()
    require(
        PICTURES in modes,
        f"{video} it cannot be drawn: its render modes are {', '.join(map(str, modes)) or 'none'}, and {PICTURES} is "
        f"needed. {without}",
    )
    return replace(config, kwargs={**config.kwargs, "render_mode": PICTURES}) if takes_mode else config


def picture_of(env: gymnasium.Env[Any, Any]) -> bytes:
    """The picture that an environment draws, as PNG: thousands of uncompressed ones would fill the memory.

    Raises:
        ConfigError: the environment returns something else, or raises.
    """
    try:
        array: Array = np.asarray(picture := env.render())
    except Exception as error:  # the environment's code
        raise ConfigError(
            f"The environment cannot be drawn: its render raised {type(error).__name__}: {message_of(error)}. Leave "
            "out --video, or install what its rendering needs: pip install 'recurrl[video]' for Gymnasium's classic "
            "control; without a screen, MuJoCo needs MUJOCO_GL=egl."
        ) from error
    if array.ndim != 3 or array.shape[-1] != 3 or array.dtype != np.uint8 or not array.size:
        what = f"an array of {array.dtype} of shape {array.shape}" if array.ndim else f"a {type(picture).__name__}"
        raise ConfigError(
            f"The environment cannot be drawn: its render returned {what}. Have it return pixels [height, width, 3] of "
            "uint8, or leave out --video."
        )
    file = io.BytesIO()
    Image.fromarray(array).save(file, "png", compress_level=1)
    return file.getvalue()
