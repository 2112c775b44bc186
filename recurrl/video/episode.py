"""What a video shows of an episode.

Shape legend: T steps, U units of a state, D entries of the observation that are hidden.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from recurrl.envs.batched import Tensors
from recurrl.envs.policy_env import PolicyEnv
from recurrl.envs.spaces import without_names
from recurrl.keys import OBSERVATION, nested, path_of
from recurrl.policy import Policy
from recurrl.policy.policy import StepOutput
from recurrl.video.rendering import picture_of

Array = np.ndarray[Any, Any]
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
    pictures: list[bytes]
    actions: list[Any]
    returns: Array
    hidden: dict[int | str, Array]
    states: dict[str, Array]
    values: Array | None
    fps: float


class Recorder:
    """Records the first episode of an evaluation's first environment; an ``EvaluationObserver``.

    Args:
        policy: the policy that acts.
        mask: what the policy does not see: indices of a vector observation, or names of a dict's entries.
        title: the episode's title.
    """

    def __init__(self, policy: Policy, mask: Sequence[int | str], title: str) -> None:
        self._keys, self._mask, self._title = policy.trunk.state_keys, mask, title
        self._pictures: list[bytes] = []
        self._hidden: list[dict[int | str, Array]] = []
        self._actions: list[Any] = []
        self._rewards: list[float] = []
        self._states: list[list[Array]] = []
        self._values: list[float] = []
        self._fps, self._is_over = 30.0, False

    def begin(self, env: PolicyEnv) -> None:
        """Records the first picture."""
        # In this order, NaN becomes 1.
        self._fps = min(max(1.0, float(self._show(env).metadata.get("render_fps") or self._fps)), 1000.0)

    def step(self, env: PolicyEnv, output: StepOutput, after: Tensors) -> None:
        """Records a step, unless the episode is over."""
        if self._is_over:
            return
        self._states.append([output.state[key][0].flatten().numpy(force=True).copy() for key in self._keys])
        if output.value is not None:
            self._values.append(output.value[0].item())
        parts = env.interface.env_action(output.action.to(env.device))
        first = {path: part[0].numpy()[()] for path, part in parts.items()}
        self._rewards.append(after["reward"][0].item())
        action_space = self._show(env).action_space
        self._actions.append(first[()] if () in first else without_names(action_space, nested(first)))
        self._is_over = bool(after["done"][0]) or len(self._actions) == MAX_STEPS

    def _show(self, env: PolicyEnv) -> gymnasium.Env[Any, Any]:
        """Records the picture and the hidden entries of the first environment, which it returns."""
        raw: Any = env.raw  # single environments, because others draw no pictures
        self._pictures.append(picture_of(raw.envs[0]))
        self._hidden.append(_hidden_entries(raw.observed(), self._mask))
        return raw.envs[0]

    def episode(self) -> Episode:
        """The episode, once the evaluation has ended."""
        states = [np.stack(each) for each in zip(*self._states, strict=True)]
        return Episode(
            self._title,
            self._pictures,
            self._actions,
            # Rounded to float32, as are the rewards that the evaluation adds up.
            np.cumsum(np.array(self._rewards, np.float32), dtype=np.float64),
            dict(_curves(self._hidden[:-1])),
            {path_of(key)[-1]: values for key, values in zip(self._keys, states, strict=True)},
            np.array(self._values) if self._values else None,
            self._fps,
        )


def _hidden_entries(observed: Tensors, mask: Sequence[Any]) -> dict[int | str, Array]:
    """What is hidden of the first environment's observation: numbers of a vector, or entries of a dict."""
    if OBSERVATION in observed:
        return {key: observed[OBSERVATION][0, key].numpy() for key in mask}
    return {key: observed[OBSERVATION, str(key)][0].numpy() for key in mask if (OBSERVATION, str(key)) in observed}


def _curves(steps: list[dict[int | str, Array]]) -> Iterator[tuple[int | str, Array]]:
    """The hidden numbers, ``[T]`` each, with the place of each; the first few of a large entry."""
    for key in steps[0]:
        values_TD = np.stack([step[key].ravel() for step in steps])
        for i, values_T in enumerate(values_TD.T[:_MAX_CURVES]):
            yield key if values_TD.shape[1] == 1 else f"{key}.{i}", values_T
