"""What a video shows of an episode: pictures of the environment, and what the policy does, sees and remembers.

Shape legend: T steps, U units of a state, D entries of the observation that are hidden.
"""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np
from PIL import Image

from recurrl.config import EnvConfig
from recurrl.envs.batched import Tensors
from recurrl.envs.checks import Array
from recurrl.envs.policy_env import PolicyEnv
from recurrl.envs.source import GymnasiumSource, source_of
from recurrl.envs.spaces import dicts_to_tuples
from recurrl.errors import ConfigError, message_of, require
from recurrl.keys import OBSERVATION, nested, path_of
from recurrl.policy.policy import Policy, StepOutput

PICTURES = "rgb_array"
"""The ``render_mode`` in which Gymnasium's environments return pixels."""
MAX_STEPS = 3000
"""The most steps that are recorded of an episode."""
_MAX_CURVES = 16


@dataclass(frozen=True)
class Episode:
    """The first T steps of an episode.

    Attributes:
        title: the environment and its seed.
        pictures: T + 1 PNG files, the last one after the last step.
        actions: T actions as the environment received them.
        returns: the running return after each step, ``[T]``.
        hidden: numbers of the observation that the policy does not see, by their place, ``[T]`` each.
        states: the recurrent states after each step by name, ``[T, U]`` each.
        values: the critic's values, ``[T]``; None without a critic.
        fps: steps per second, as the environment says.
    """

    title: str
    pictures: Sequence[bytes]
    actions: Sequence[Any]
    returns: Array
    hidden: dict[int | str, Array]
    states: dict[str, Array]
    values: Array | None
    fps: float


class Recorder:
    """Records the first episode of an evaluation's first environment; its ``observer``.

    Args:
        policy: the policy that acts.
        mask: what the policy does not see: indices of a vector observation, or names of a dict's entries.
        title: the episode's title.
    """

    def __init__(self, policy: Policy, mask: Sequence[int | str], title: str) -> None:
        self._keys, self._mask, self._title = policy.trunk.state_keys, mask, title
        self._shown: list[tuple[bytes, dict[int | str, Array]]] = []
        self._steps: list[tuple[Any, ...]] = []
        self._fps, self._is_over = 30.0, False

    def __call__(self, env: PolicyEnv, output: StepOutput | None, after: Tensors) -> None:
        """Records a step, unless the episode is over."""
        if self._is_over:
            return
        raw: Any = env.raw  # single environments, because others draw no pictures
        shown = raw.envs[0]
        self._shown.append((picture_of(shown), _hidden_entries(raw.observed(), self._mask)))
        if output is None:
            # In this order, NaN becomes 1.
            self._fps = min(max(1.0, float(shown.metadata.get("render_fps") or self._fps)), 1000.0)
            return
        parts = env.interface.env_action(output.action.to(env.device))
        first = {path: part[0].numpy()[()] for path, part in parts.items()}
        action = first[()] if () in first else dicts_to_tuples(shown.action_space, nested(first))
        value = None if output.value is None else output.value[0].item()
        states = [output.state[key][0].flatten().numpy(force=True).copy() for key in self._keys]
        self._steps.append((action, after["reward"][0].item(), value, *states))
        self._is_over = bool(after["done"][0]) or len(self._steps) == MAX_STEPS

    def episode(self) -> Episode:
        """The episode, once the evaluation has ended."""
        pictures, hidden = zip(*self._shown, strict=True)
        actions, rewards, values, *states = zip(*self._steps, strict=True)
        return Episode(
            self._title,
            pictures,
            actions,
            # Rounded to float32, as are the rewards that the evaluation adds up.
            np.cumsum(np.array(rewards, np.float32), dtype=np.float64),
            dict(_curves(hidden[:-1])),
            {path_of(key)[-1]: np.stack(each) for key, each in zip(self._keys, states, strict=True)},
            None if values[0] is None else np.array(values),
            self._fps,
        )


def _hidden_entries(observed: Tensors, mask: Sequence[Any]) -> dict[int | str, Array]:
    """What is hidden of the first environment's observation: numbers of a vector, or entries of a dict."""
    if OBSERVATION in observed:
        return {key: observed[OBSERVATION][0, key].numpy() for key in mask}
    return {key: observed[OBSERVATION, str(key)][0].numpy() for key in mask if (OBSERVATION, str(key)) in observed}


def _curves(steps: Sequence[dict[int | str, Array]]) -> Iterator[tuple[int | str, Array]]:
    """The hidden numbers, ``[T]`` each, with the place of each; the first few of a large entry."""
    for key in steps[0]:
        values_TD = np.stack([step[key].ravel() for step in steps])
        for i, values_T in enumerate(values_TD.T[:_MAX_CURVES]):
            yield key if values_TD.shape[1] == 1 else f"{key}.{i}", values_T


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
    env = source.plain()
    takes_mode = "kwargs" in source.supported_options and env.render_mode != PICTURES
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
