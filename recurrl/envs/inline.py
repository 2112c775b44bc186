"""Single Gymnasium environments as one batched environment.

Shape legend: N environments.
"""

from collections.abc import Sequence
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from recurrl.envs.batched import BatchedEnv, Tensors
from recurrl.envs.checks import Array, EnvChecks, Observations, unpacked
from recurrl.envs.saved_state import UnsavableError, restore, state_of
from recurrl.envs.spaces import spec_of
from recurrl.keys import OBSERVATION
from recurrl.runtime.seeds import seeds


class InlineEnv(BatchedEnv):
    """Gymnasium environments stepped in turn in this process, as one environment of batch size ``[N]``.

    Args:
        envs: the environments.
        env_id: their id, for errors.

    Attributes:
        envs: the environments.
    """

    checks: EnvChecks

    def __init__(self, envs: Sequence[gymnasium.Env[Any, Any]], env_id: str) -> None:
        first, count = envs[0], len(envs)
        space, action_space = first.observation_space, first.action_space
        super().__init__(count, {OBSERVATION: spec_of(space, count)}, spec_of(action_space, count))
        self.envs = list(envs)
        # A separate object, because setting an attribute of an EnvBase takes as long as a light environment's step.
        self.checks = EnvChecks(env_id, count)
        self._reader = Observations(self.checks, space, count, action_space)
        # The last observation of each environment, by entry: what environments write into, and a copy to return.
        self._last = self._reader.zeros_N
        self._returned: Tensors = {}
        self._plain = next(iter(self._last.values()))
        self._dtype, self._shape = self._plain.dtype, self._plain.shape[1:]
        # What the reset seeds of groups derive from: the seed, the group, the number of resets of all, the episode.
        self._groups_N4: Array | None = None

    def start_in_groups(self, size: int, seed: int) -> None:
        """Resets the members of a group with the same seeds."""
        count = len(self.envs)
        self._groups_N4 = np.zeros((count, 4), np.int64)
        self._groups_N4[:, 0], self._groups_N4[:, 1] = seed, np.arange(count) // size

    def reset_tensors(self, mask: Tensor | None) -> Tensors:
        """Resets them one by one."""
        begun_N = np.ones(len(self.envs), bool) if mask is None else mask.numpy().reshape(-1)
        if self._returned and not begun_N.any():
            return dict(self._returned)
        if self._groups_N4 is not None and mask is None:
            self._groups_N4 += (0, 0, 1, 0)
            self._groups_N4[:, 3] = 0
        for i in begun_N.nonzero()[0].tolist():
            self.checks.at = i
            seed = None if self._groups_N4 is None else _reset_seed(self._groups_N4[i])
            self._store(i, unpacked("reset", self.envs[i].reset(seed=seed))[0])
        return self._observed(begun_N)

    def step_tensors(self, action: Tensor | TensorDictBase) -> Tensors:
        """Steps them one by one."""
        actions = _one_by_one(action)
        rewards: list[Any] = []
        terminated_N: list[Any] = []
        truncated_N: list[Any] = []
        checks, store = self.checks, self._store
        for i, env in enumerate(self.envs):
            checks.at = i
            returned = env.step(actions[i])
            # Without calling `unpacked`, which takes as long as all of this.
            if type(returned) is not tuple or len(returned) != 5:
                unpacked("step", returned)
            observation, reward, terminated, truncated, _ = returned
            rewards.append(reward)
            terminated_N.append(terminated)
            truncated_N.append(truncated)
            store(i, observation)
        results = checks.results(rewards, terminated_N, truncated_N)
        return self._observed(~results["done"].numpy()[:, 0]) | results

    def episodes(self) -> dict[str, Any]:
        """The state of each environment, and the last observations."""
        groups = {} if self._groups_N4 is None else {"groups": torch.from_numpy(self._groups_N4.copy())}
        return {"environments": [state_of(env) for env in self.envs], "observed": dict(self._returned), **groups}

    def restore_episodes(self, state: dict[str, Any]) -> None:
        """Restores the state of each environment."""
        if len(state["environments"]) != len(self.envs):
            raise UnsavableError(
                f"{len(state['environments'])} environments were saved, but there are now {len(self.envs)}"
            )
        for env, of_one in zip(self.envs, state["environments"], strict=True):
            restore(env, of_one)
        for key, values in self._last.items():
            values[...] = state["observed"][key].numpy()
        self._returned.update(state["observed"])
        if self._groups_N4 is not None:
            self._groups_N4[...] = state["groups"].numpy()

    def _store(self, i: int, observation: Any) -> None:
        # The common case, without a call: this runs for each environment at every step.
        if type(observation) is np.ndarray and observation.dtype == self._dtype and observation.shape == self._shape:
            self._plain[i] = observation
            return
        for values, entry in zip(self._last.values(), self._reader.read(observation), strict=True):
            values[i] = entry

    def _observed(self, acting_N: Array) -> Tensors:
        """The last observations, checked; the environments in ``acting_N`` act on them next."""
        self._reader.check(self._last, acting_N)
        self._returned.update((key, torch.from_numpy(values.copy())) for key, values in self._last.items())
        return dict(self._returned)

    def _set_seed(self, seed: int | None) -> None:
        chain = [None] * len(self.envs) if seed is None else seeds(seed, len(self.envs))
        for i, (env, own) in enumerate(zip(self.envs, chain, strict=True)):
            self.checks.at = i
            env.reset(seed=own)

    def close(self, **kwargs: Any) -> None:
        """Closes every environment."""
        for i, env in enumerate(self.envs):
            self.checks.at = i
            env.close()
        super().close(**kwargs)


def _one_by_one(action: Tensor | TensorDictBase) -> Sequence[Any]:
    """An action ``[N]`` as N actions for Gymnasium, dicts if it has several parts."""
    if isinstance(action, Tensor):
        return cast(Sequence[Any], action.numpy())
    parts = {key: _one_by_one(part) for key, part in action.items()}
    return [{key: values[i] for key, values in parts.items()} for i in range(action.batch_size[0])]


def _reset_seed(numbers_4: Array) -> int:
    """The seed of one episode; it then counts as begun."""
    # 31 bits, because some environments keep their seed in a signed integer.
    seed = int(np.random.SeedSequence(numbers_4.tolist()).generate_state(1)[0] >> 1)
    numbers_4[3] += 1
    return seed
