"""Gymnasium's environments as one batched environment: single ones stepped in turn, or a vector environment.

Both check what every step and reset returns, and save the state of unfinished episodes. Shape legend: N environments.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, iterate
from tensordict import TensorDictBase
from torch import Tensor

from recurrl.config.env import DISABLED, NEXT_STEP, SAME_STEP
from recurrl.envs.batched import BatchedEnv, Tensors
from recurrl.envs.checks import Array, EnvChecks, Observations, UnnamedEnvError, mask_in, unpacked
from recurrl.envs.saved_state import restore, state_of
from recurrl.envs.spaces import Space, dicts_to_tuples, parts_of, raw_specs
from recurrl.envs.vec_env import VecEnv
from recurrl.errors import ConfigError, require
from recurrl.keys import ACTION_MASK
from recurrl.runtime.seeds import derive_seed, seeds

_RESETS = {AutoresetMode.SAME_STEP: SAME_STEP, AutoresetMode.DISABLED: DISABLED, AutoresetMode.NEXT_STEP: NEXT_STEP}


class InlineEnv(BatchedEnv):
    """Gymnasium environments stepped in turn in this process, as one environment of batch size ``[N]``.

    Args:
        envs: the environments.
        env_id: their id, for errors.
        masked: true if their info has an action mask, the entry ``action_mask``.

    Attributes:
        envs: the environments.

    Raises:
        ConfigError: policies do not support their spaces.
    """

    checks: EnvChecks
    action_space: Space

    def __init__(self, envs: Sequence[gymnasium.Env[Any, Any]], env_id: str, masked: bool = False) -> None:
        space, self.action_space, count = envs[0].observation_space, envs[0].action_space, len(envs)
        super().__init__(count, *raw_specs(env_id, space, self.action_space, count, masked))
        self.envs, self._actions_space = list(envs), batch_space(self.action_space, count)
        # A separate object, because setting an attribute of an EnvBase takes as long as a light environment's step.
        self.checks = EnvChecks(env_id, count)
        self._reader, self._masked = Observations(space), masked
        # The last observation of each environment, by entry. Steps write into it; copies are returned.
        self._last = {key: values.numpy() for key, values in self.observation_spec.zero().items(True, True)}
        self._plain = next(iter(self._last.values()))
        self._dtype, self._shape = self._plain.dtype, None if parts_of(space) else self._plain.shape[1:]
        # Reset seeds of groups derive from: the seed, the group, the number of full resets, the episode.
        self._groups_N4: Array | None = None

    def start_in_groups(self, size: int, seed: int) -> None:
        """Resets the members of a group with the same seeds."""
        count = len(self.envs)
        self._groups_N4 = np.zeros((count, 4), np.int64)
        self._groups_N4[:, 0], self._groups_N4[:, 1] = seed, np.arange(count) // size

    def reset_tensors(self, mask: Tensor | None) -> Tensors:
        """Resets the environments one by one."""
        begun_N = np.ones(len(self.envs), bool) if mask is None else mask.numpy().reshape(-1)
        if self._groups_N4 is not None and mask is None:
            self._groups_N4 += (0, 0, 1, 0)
            self._groups_N4[:, 3] = 0
        for i in begun_N.nonzero()[0].tolist():
            self.checks.at = i
            seed = None
            if self._groups_N4 is not None:
                seed = derive_seed(self._groups_N4[i].tolist())
                self._groups_N4[i, 3] += 1
            self._store(i, *unpacked("reset", self.envs[i].reset(seed=seed)))
        return self.observed()

    def step_tensors(self, action: Tensor | TensorDictBase) -> Tensors:
        """Steps the environments one by one."""
        batch = action.numpy() if isinstance(action, Tensor) else dicts_to_tuples(self.action_space, action.numpy())
        actions = iterate(self._actions_space, batch)
        rewards: list[Any] = []
        terminated_N: list[Any] = []
        truncated_N: list[Any] = []
        checks, store = self.checks, self._store
        for i, (env, own) in enumerate(zip(self.envs, actions, strict=True)):
            checks.at = i
            returned = env.step(own)
            # Checked here, because calling `unpacked` would take as long as the rest of the loop.
            if type(returned) is not tuple or len(returned) != 5:
                unpacked("step", returned)
            observation, reward, terminated, truncated, info = returned
            rewards.append(reward)
            terminated_N.append(terminated)
            truncated_N.append(truncated)
            store(i, observation, info)
        return self.observed() | checks.results(rewards, terminated_N, truncated_N)

    def save_episodes(self) -> dict[str, Any]:
        """The state of each environment, and the last observations."""
        groups = {} if self._groups_N4 is None else {"groups": torch.from_numpy(self._groups_N4.copy())}
        return {"environments": [state_of(env) for env in self.envs], "observed": self.observed(), **groups}

    def restore_episodes(self, state: dict[str, Any]) -> None:
        """Restores the state of each environment."""
        for env, saved in zip(self.envs, state["environments"], strict=True):
            restore(env, saved)
        for key, values in self._last.items():
            values[...] = state["observed"][key].numpy()
        if self._groups_N4 is not None:
            others = [0, 2, 3]  # not the group: a resumed run may have groups of another size
            self._groups_N4[:, others] = state["groups"].numpy()[:, others]

    def _store(self, i: int, observation: Any, info: Any) -> None:
        if self._masked:
            masks = self._last[ACTION_MASK]
            masks[i] = mask_in(info, masks.shape[1:])
        # The common case, without a call: this runs for each environment at every step.
        if type(observation) is np.ndarray and observation.dtype == self._dtype and observation.shape == self._shape:
            self._plain[i] = observation
            return
        for key, entry in self._reader.read(observation).items():
            self._last[key][i] = entry

    def observed(self) -> Tensors:
        """The last observations of all environments, in new memory."""
        return {key: torch.from_numpy(values.copy()) for key, values in self._last.items()}

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


class GymnasiumVectorEnv(VecEnv):
    """A vector environment of Gymnasium, in any autoreset mode that its ``metadata["autoreset_mode"]`` declares.

    Args:
        vector: the vector environment.
        env_id: its id, for errors.
        masked: true if its info has the entry ``action_mask``, an action mask for each environment.

    Raises:
        ConfigError: it declares no autoreset mode, or policies do not support its spaces.
    """

    checks: EnvChecks

    def __init__(self, vector: VectorEnv[Any, Any, Any], env_id: str, masked: bool = False) -> None:
        mode: Any = vector.metadata.get("autoreset_mode")
        require(
            mode in _RESETS,
            f"The vector environment of env.id={env_id} must declare when it resets, metadata['autoreset_mode'] (got "
            f"{mode}). Choose one of {', '.join(map(str, _RESETS))}.",
        )
        count, space, action = vector.num_envs, vector.single_observation_space, vector.single_action_space
        super().__init__(vector, _RESETS[mode], action, count, *raw_specs(env_id, space, action, count, masked))
        self.checks, self._masked = EnvChecks(env_id, count), masked
        self._reader = Observations(space)

    def reset_tensors(self, mask: Tensor | None) -> Tensors:
        """Resets environments. If they reset themselves, ``mask`` may only select those whose episodes have ended.

        Raises:
            ConfigError: the mask selects others.
        """
        if mask is not None and self._resets != DISABLED and (mask & ~self._ended).any():
            raise ConfigError(
                f"{self.checks.env_id} resets its environments automatically when their episodes end, and cannot "
                "reset others. Have it reset by options['reset_mask'] (AutoresetMode.DISABLED)."
            )
        return super().reset_tensors(mask)

    def save_episodes(self) -> dict[str, Any]:
        """The state of the vector environment, and what this class keeps from one step to the next."""
        lasting = {"observed": dict(self._observed), "inserted_next": self._inserted_next}
        return {"environment": state_of(self._env), **lasting}

    def restore_episodes(self, state: dict[str, Any]) -> None:
        """Restores what :meth:`save_episodes` returned."""
        restore(self._env, state["environment"])
        self._observed, self._inserted_next = dict(state["observed"]), state["inserted_next"]

    def _results(self, returned: Any) -> tuple[Any, Tensors, Any]:
        observation, rewards, terminated, truncated, info = unpacked("step", returned)
        return observation, self.checks.results(rewards, terminated, truncated), info

    def _read(self, observation: Any, info: Any) -> Tensors:
        entries = self._reader.read(observation, tuple(self.batch_size))
        copies: Tensors = {key: torch.from_numpy(entry.copy()) for key, entry in entries.items()}
        if self._masked:
            copies[ACTION_MASK] = torch.from_numpy(mask_in(info, self.observation_spec[ACTION_MASK].shape))
        return copies

    def _final_observations(self, before: Tensors, step: Tensors, info: Any) -> Tensors:
        which = step["done"].squeeze(-1).nonzero().squeeze(-1).tolist()
        if not which:
            return {}
        final = info.get("final_obs")
        if final is None:
            raise UnnamedEnvError(
                "ended episodes without info['final_obs'], which autoreset mode SAME_STEP requires. Have step put "
                "each episode's last observation there."
            )
        filled = {key: values.clone() for key, values in self._observed.items()}
        try:
            # An observation per environment, or one batch of all.
            if isinstance(final, np.ndarray) and final.dtype == object:
                for i in which:
                    for key, entry in self._reader.read(final[i]).items():
                        filled[key][i] = torch.as_tensor(entry)
            else:
                for key, values in self._read(final, info).items():
                    filled[key][which] = values[which]
        except (UnnamedEnvError, IndexError) as error:
            raise UnnamedEnvError(
                "returned an info['final_obs'] that is neither a batch of observations nor an array of objects, one "
                f"observation per environment whose episode ended: {error}"
            ) from error
        return filled

    def close(self, **kwargs: Any) -> None:
        """Closes the vector environment."""
        self.shut_down()
