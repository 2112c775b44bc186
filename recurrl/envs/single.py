"""One environment of TorchRL with Gymnasium's interface."""

from typing import Any

import gymnasium
import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.envs import EnvBase

from recurrl.envs.spaces import space_of
from recurrl.keys import ACTION, ACTION_MASK, OBSERVATION


class SingleEnv(gymnasium.Env[Any, Any]):
    """The first environment of a batch, as a Gymnasium environment; any others take its actions too."""

    def __init__(self, env: EnvBase) -> None:
        self._env = env
        self.observation_space = space_of(env.observation_spec[0][OBSERVATION])
        self.action_space = space_of(env.full_action_spec[0][ACTION])
        self._current: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode, and returns its first observation and an info."""
        if seed is not None:
            self._env.set_seed(seed)
        self._current = self._env.reset()
        return self._observed()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Steps with an action of :attr:`action_space`."""
        self._current[ACTION] = _tensor(action).expand(
            *self._env.batch_size, *self._env.full_action_spec[0][ACTION].shape
        )
        after = self._env.step(self._current)["next"]
        self._current = after.exclude("reward")
        reward, ended, cut = (after[key][0].item() for key in ("reward", "terminated", "truncated"))
        after["done"][0] = False
        if after["done"].any():
            self._env.maybe_reset(after)
        observation, info = self._observed()
        return observation, reward, ended, cut, info

    def _observed(self) -> tuple[Any, dict[str, Any]]:
        """The observation, and in the info the mask of actions if the environment gives one beside it."""
        masks = self._current.select(ACTION_MASK, strict=False)
        return _array(self._current[OBSERVATION][0]), {key: _array(mask[0]) for key, mask in masks.items()}

    def close(self) -> None:
        """Closes the environment."""
        self._env.close(raise_if_closed=False)  # as TorchRL's are before they are reset


def _array(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.cpu().numpy()[()]
    return {key: _array(entry) for key, entry in value.items()}


def _tensor(action: Any) -> Any:
    if isinstance(action, dict):
        return TensorDict({key: _tensor(part) for key, part in action.items()}, [1])
    return torch.as_tensor(np.asarray(action))[None]
