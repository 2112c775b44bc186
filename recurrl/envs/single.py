"""A TorchRL environment with Gymnasium's interface."""

from typing import Any

import gymnasium
import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.envs import EnvBase

from recurrl.envs.batched import BatchedEnv, Tensors, TorchRLEnv, observation_in
from recurrl.envs.spaces import space_of
from recurrl.keys import ACTION, ACTION_MASK, OBSERVATION


class SingleEnv(gymnasium.Env[Any, Any]):
    """The first environment of a batch, as a Gymnasium environment; the others, if any, get the same actions."""

    def __init__(self, env: EnvBase) -> None:
        self._env = env if isinstance(env, BatchedEnv) else TorchRLEnv(env)
        self.observation_space = space_of(self._env.observation_spec[0][OBSERVATION])
        self.action_space = space_of(self._env.full_action_spec[0][ACTION])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode, and returns its first observation and an info."""
        if seed is not None:
            self._env.set_seed(seed)
        return _shown(self._env.reset_tensors(None))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Steps with an action of :attr:`action_space`."""
        shape = (*self._env.batch_size, *self._env.full_action_spec[0][ACTION].shape)
        after = self._env.step_tensors(_tensor(action).expand(shape))
        reward, ended, cut = (after[key][0].item() for key in ("reward", "terminated", "truncated"))
        others = after["done"].clone()
        others[0] = False
        if others.any():
            self._env.reset_tensors(others)
        observation, info = _shown(after)
        return observation, float(reward), bool(ended), bool(cut), info

    def close(self) -> None:
        """Closes the environment."""
        self._env.close(raise_if_closed=False)  # TorchRL's are closed before their first reset


def _shown(entries: Tensors) -> tuple[Any, dict[str, Any]]:
    """The observation, and an info with the action mask if the environment has one."""
    info = {ACTION_MASK: _array(entries[ACTION_MASK])} if ACTION_MASK in entries else {}
    return _array(observation_in(entries)), info


def _array(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value[0].cpu().numpy()[()]
    return {key: _array(entry) for key, entry in value.items()}


def _tensor(action: Any) -> Any:
    if isinstance(action, dict):
        return TensorDict({key: _tensor(part) for key, part in action.items()}, [1])
    return torch.as_tensor(np.asarray(action))[None]
