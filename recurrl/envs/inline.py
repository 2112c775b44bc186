"""Single Gymnasium environments as one environment of TorchRL.

Shape legend: N environments.
"""

from collections.abc import Sequence
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torchrl._utils import seed_generator

from recurrl.envs.faults import Faults, unpacked
from recurrl.envs.observations import Observations
from recurrl.envs.saved_state import UnsavableError, restore, state_of
from recurrl.envs.spaces import spec_of
from recurrl.envs.tensors import TensorEnv
from recurrl.keys import ACTION, OBSERVATION


class InlineEnv(TensorEnv):
    """Gymnasium environments stepped one after the other in this process, as one environment of batch size ``[N]``.

    Args:
        envs: the environments.
        env_id: their id, for errors.

    Attributes:
        envs: the environments.
    """

    faults: Faults

    def __init__(self, envs: Sequence[gymnasium.Env[Any, Any]], env_id: str) -> None:
        first, count = envs[0], len(envs)
        space, self._composite_observation = _within(first.observation_space, OBSERVATION)
        action_space, self._composite_action = _within(first.action_space, ACTION)
        super().__init__(count, {OBSERVATION: spec_of(space, count)}, spec_of(action_space, count))
        self.envs = list(envs)
        # A separate object, because setting an attribute of an EnvBase takes as long as a light environment's step.
        self.faults = Faults(env_id, count)
        self._reader = Observations(self.faults, space, count, action_space)
        # The last observation of each environment, by entry.
        self._last = self._reader.zeros_N
        self._plain = next(iter(self._last.values()))
        self._dtype, self._shape = self._plain.dtype, self._plain.shape[1:]

    def reset_tensors(self, chosen: Tensor | None) -> dict[NestedKey, Tensor]:
        """Resets them one by one."""
        begun_N = np.ones(len(self.envs), bool) if chosen is None else chosen.numpy().reshape(-1)
        for i in begun_N.nonzero()[0].tolist():
            self.faults.at = i
            self._take(i, unpacked("reset", self.envs[i].reset())[0])
        return self._observed(begun_N)

    def step_tensors(self, action: Tensor | TensorDictBase) -> dict[NestedKey, Tensor]:
        """Steps them one by one."""
        actions = _one_by_one(action)
        if self._composite_action:
            actions = [{ACTION: parts} for parts in actions]
        rewards: list[Any] = []
        ended: list[Any] = []
        cut: list[Any] = []
        faults, take = self.faults, self._take
        for i, env in enumerate(self.envs):
            faults.at = i
            returned = env.step(actions[i])
            # Without calling `unpacked`, which takes as long as all of this.
            if type(returned) is not tuple or len(returned) != 5:
                unpacked("step", returned)
            observation, reward, terminated, truncated, _ = returned
            rewards.append(reward)
            ended.append(terminated)
            cut.append(truncated)
            take(i, observation)
        results = faults.results(rewards, ended, cut)
        return self._observed(~results["done"].numpy()[:, 0]) | results

    def episodes(self) -> dict[str, Any]:
        """The state of each environment, and the last observations."""
        return {"environments": [state_of(env) for env in self.envs], "observed": self._copies()}

    def restore_episodes(self, state: dict[str, Any]) -> None:
        """Gives each environment its state."""
        if len(state["environments"]) != len(self.envs):
            raise UnsavableError(
                f"{len(state['environments'])} environments were saved, but there are now {len(self.envs)}"
            )
        for env, of_one in zip(self.envs, state["environments"], strict=True):
            restore(env, of_one)
        for key, values in self._last.items():
            values[...] = state["observed"][key].numpy()

    def _take(self, i: int, observation: Any) -> None:
        # The common case, without a call: this runs for each environment at every step.
        if type(observation) is np.ndarray and observation.dtype == self._dtype and observation.shape == self._shape:
            self._plain[i] = observation
            return
        if self._composite_observation:
            observation = observation[OBSERVATION]
        for values, entry in zip(self._last.values(), self._reader.read(observation), strict=True):
            values[i] = entry

    def _observed(self, acting_N: np.ndarray[Any, Any] | None = None) -> dict[NestedKey, Tensor]:
        """The last observations, checked; the environments in ``acting`` act on them next."""
        self._reader.check(self._last, acting_N)
        return self._copies()

    def _copies(self) -> dict[NestedKey, Tensor]:
        return {key: torch.from_numpy(values.copy()) for key, values in self._last.items()}

    def _set_seed(self, seed: int | None) -> None:
        # A reset with the seed and the chain of seeds are TorchRL's way in environments of several processes.
        for i, env in enumerate(self.envs):
            self.faults.at = i
            env.reset(seed=seed)
            seed = None if seed is None else int(seed_generator(seed))

    def close(self, **kwargs: Any) -> None:
        """Closes every environment."""
        for i, env in enumerate(self.envs):
            self.faults.at = i
            env.close()
        super().close(**kwargs)


def _within(space: spaces.Space[Any], key: str) -> tuple[spaces.Space[Any], bool]:
    """What a dict has under its key, and True; of another space, itself and False."""
    return (space[key], True) if isinstance(space, spaces.Dict) else (space, False)


def _one_by_one(action: Tensor | TensorDictBase) -> Sequence[Any]:
    """An action ``[N]`` as N actions for Gymnasium, dicts if it has several parts."""
    if isinstance(action, Tensor):
        return cast(Sequence[Any], action.numpy())
    parts = {key: _one_by_one(part) for key, part in action.items()}
    return [{key: values[i] for key, values in parts.items()} for i in range(action.batch_size[0])]
