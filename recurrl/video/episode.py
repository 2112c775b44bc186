"""What a video shows of an episode.

Shape legend: T steps, U units of a state, D entries of the observation that are hidden.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from recurrl.envs import BatchedEnv
from recurrl.keys import path_of
from recurrl.policy import Policy
from recurrl.policy.policy import StepOutput
from recurrl.video.recording import Watched, first_watched

Array = np.ndarray[Any, Any]
_MAX_CURVES = 16


@dataclass(frozen=True)
class Episode:
    """The first T steps of an episode.

    Attributes:
        title: the environment and its seed.
        pictures: as PNG; T + 1, the last one after the last step.
        actions: as the environment received them; T.
        returns: the running return after each step, ``[T]``.
        hidden: numbers of the observation that the policy does not see, by their place, ``[T]`` each.
        states: the recurrent states after each step by name, ``[T, U]`` each.
        values: the critic's, ``[T]``; None without a critic.
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
    """Records the first episode of the first environment of an evaluation, see :data:`recurrl.evaluation.Watch`.

    Args:
        policy: that acts.
        mask: what it does not see: indices of a vector observation, or names of a dict's entries.
        title: of the episode.
    """

    def __init__(self, policy: Policy, mask: Sequence[int | str], title: str) -> None:
        self._keys, self._mask, self._title = policy.trunk.state_keys, mask, title
        self._watched: Watched | None = None
        self._states: list[list[Array]] = []
        self._values: list[float] = []

    def __call__(self, env: BatchedEnv, output: StepOutput) -> None:
        """Stores the policy's states and values, unless the episode is over."""
        if self._watched is None:
            self._watched = first_watched(env)
            self._watched.begin()
        if self._watched.is_over:
            return
        self._states.append([output.state[key][0].flatten().numpy(force=True).copy() for key in self._keys])
        if output.value is not None:
            self._values.append(output.value[0].item())

    def episode(self) -> Episode:
        """The episode, once the evaluation has ended."""
        watched = self._watched
        assert watched is not None
        steps = len(watched.actions)
        states = [np.stack(each) for each in zip(*self._states[:steps], strict=True)]
        return Episode(
            self._title,
            watched.pictures,
            watched.actions,
            # Rounded as those that the evaluation adds up.
            np.cumsum(np.array(watched.rewards, np.float32).reshape(-1), dtype=np.float64),
            {place: values for key in self._mask for place, values in _curves(key, watched.observations[:steps])},
            {path_of(key)[-1]: values for key, values in zip(self._keys, states, strict=True)},
            np.array(self._values[:steps]) if self._values else None,
            float(watched.metadata.get("render_fps") or 30),
        )


def _curves(key: int | str, observations: list[Any]) -> Iterator[tuple[int | str, Array]]:
    """The numbers of an entry of observations, ``[T]`` each, with the place of each; the first few of a large entry."""
    values_TD = np.stack([np.ravel(each[key]) for each in observations])
    if values_TD.dtype.kind in "biuf":
        for i, values_T in enumerate(values_TD.T[:_MAX_CURVES]):
            yield key if values_TD.shape[1] == 1 else f"{key}.{i}", values_T
