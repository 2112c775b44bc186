"""Gymnasium's vector environments, which step all their environments in one call.

Shape legend: N environments.
"""

from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from tensordict import NestedKey, TensorDictBase
from torch import Tensor

from recurrl.envs.batched import BatchedEnv, Tensors
from recurrl.envs.checks import Array, EnvChecks, Observations, UnnamedEnvError, mask_in, unpacked
from recurrl.envs.saved_state import UnsavableError, restore, state_of
from recurrl.envs.spaces import check_supported, raw_specs, without_names
from recurrl.errors import ConfigError
from recurrl.keys import ACTION_MASK

Observed = dict[NestedKey, Array]
Vector = VectorEnv[Any, Any, Any]

ON_DEMAND, AT_ONCE = AutoresetMode.DISABLED, AutoresetMode.SAME_STEP


class GymnasiumVectorEnv(BatchedEnv):
    """A vector environment of Gymnasium as an environment of batch size ``[N]``.

    An episode's last step returns its last observation; the next step is the first of the next episode. The vector
    environment either resets on request (``AutoresetMode.DISABLED``, with ``options["reset_mask"]``), or resets within
    the last step and returns the last observation as ``info["final_obs"]`` (``AutoresetMode.SAME_STEP``).
    ``AutoresetMode.NEXT_STEP`` is rejected, because it inserts a step that is not a transition.

    Args:
        vector: the vector environment.
        env_id: its id, for errors.
        masked: its info has a mask of actions for each environment, the entry ``action_mask``.

    Raises:
        ConfigError: it uses NEXT_STEP autoreset, or the policy cannot handle its spaces.
    """

    checks: EnvChecks

    def __init__(self, vector: Vector, env_id: str, masked: bool = False) -> None:
        _check_mode(vector, env_id)
        count, space, self._action_space = vector.num_envs, vector.single_observation_space, vector.single_action_space
        check_supported(env_id, space, self._action_space)
        super().__init__(count, *raw_specs(space, self._action_space, masked, count))
        self._vector, self._masked = vector, masked
        self._resets_at_once = vector.metadata["autoreset_mode"] == AT_ONCE
        self.checks = EnvChecks(env_id, count)
        self._reader, self._of_one = (Observations(space, count, batched) for batched in (True, False))
        # Not attributes of this object, because setting an attribute of an EnvBase takes microseconds.
        # The arrays are replaced and never written to, because they are handed out.
        self._last: Observed = {}
        self._restarted = np.zeros(count, bool)

    def reset_tensors(self, mask: Tensor | None) -> Tensors:
        """Resets environments; with SAME_STEP those whose episodes ended are reset already, and are only read."""
        begun_N = np.ones(self._vector.num_envs, bool) if mask is None else mask.numpy().reshape(-1)
        if mask is not None and self._resets_at_once:
            if (begun_N & ~self._restarted).any():
                raise ConfigError(
                    f"{self.checks.env_id} resets its environments automatically when their episodes end, and cannot "
                    "reset others. Have it reset by options['reset_mask'] (AutoresetMode.DISABLED)."
                )
        else:
            options = None if mask is None else {"reset_mask": begun_N.copy()}
            first = self._read(*unpacked("reset", self._vector.reset(options=options)))
            for key, values in first.items():
                begins_N = begun_N.reshape(-1, *[1] * (values.ndim - 1))
                self._last[key] = values if mask is None else np.where(begins_N, values, self._last[key])
        self._restarted[...] = False
        return _tensors(self._last)

    def step_tensors(self, action: Tensor | TensorDictBase) -> Tensors:
        """Steps all environments in one call."""
        returned = unpacked("step", self._vector.step(self._batched(action)))
        observation, rewards, terminated, truncated, info = returned
        entries = self._read(observation, info)
        results = self.checks.results(rewards, terminated, truncated)
        self._last.update(entries)
        after = self._observed_after(results["done"].numpy()[:, 0], info)
        return {**_tensors(after), **results}

    def episodes(self) -> dict[str, Any]:
        """The state of the vector environment, and the last observations."""
        return {"environment": state_of(self._vector), "observed": _tensors(self._last)}

    def restore_episodes(self, state: dict[str, Any]) -> None:
        """Restores the state of the vector environment, and the last observations."""
        saved = {len(values) for values in state["observed"].values()}
        if saved != {self._vector.num_envs}:
            raise UnsavableError(f"{saved} environments were saved, but there are now {self._vector.num_envs}")
        restore(self._vector, state["environment"])
        self._last.update({key: values.numpy().copy() for key, values in state["observed"].items()})

    def _observed_after(self, over_N: Array, info: dict[str, Any]) -> Observed:
        """The observations after a step, for finished episodes their last ones."""
        if not self._resets_at_once:
            return self._last
        self._restarted[...] = over_N
        return self._with_final(over_N.nonzero()[0], info) if over_N.any() else self._last

    def _batched(self, action: Tensor | TensorDictBase) -> Any:
        """Actions of all environments in Gymnasium's form, a dict or a tuple if they have several parts."""
        return without_names(self._action_space, action.numpy())

    def _read(self, observation: Any, info: Any) -> Observed:
        """A batch of observations, in new memory, with their masks of actions."""
        entries = self._reader.read(observation)
        copies: Observed = {key: entry.copy() for key, entry in zip(self._reader.keys, entries, strict=True)}
        return copies | ({ACTION_MASK: mask_in(info, self.observation_spec[ACTION_MASK].shape)} if self._masked else {})

    def _with_final(self, which: Array, info: dict[str, Any]) -> Observed:
        """The observations, with those of new episodes replaced by the previous episodes' last ones."""
        final = info.get("final_obs")
        if final is None:
            raise UnnamedEnvError(
                "ended episodes without info['final_obs'], which autoreset mode SAME_STEP requires. Have step put "
                "each episode's last observation there."
            )
        filled = {key: values.copy() for key, values in self._last.items()}
        try:
            # One per environment, or one for all of them.
            if isinstance(final, np.ndarray) and final.dtype == object:
                for i in which:
                    entries = self._of_one.read(final[i])
                    for key, entry in zip(self._reader.keys, entries, strict=True):
                        filled[key][i] = entry
            else:
                for key, values in self._read(final, info).items():
                    filled[key][which] = values[which]
        except (UnnamedEnvError, IndexError) as error:
            raise UnnamedEnvError(
                "returned an info['final_obs'] that is neither a batch of observations nor an array of objects, an "
                f"observation for each environment whose episode ended: {error}"
            ) from error
        return filled

    def _set_seed(self, seed: int | None) -> None:
        self._vector.reset(seed=seed)

    def close(self, **kwargs: Any) -> None:
        """Closes the vector environment."""
        self._vector.close()
        super().close(**kwargs)


def _check_mode(vector: Vector, env_id: str) -> None:
    mode = vector.metadata.get("autoreset_mode")
    if mode not in (ON_DEMAND, AT_ONCE):
        raise ConfigError(
            f"The vector environment of env.id={env_id} does not declare SAME_STEP or DISABLED autoreset "
            f"(metadata['autoreset_mode'] is {mode}). NEXT_STEP autoreset inserts a step that is not a transition. "
            "Implement SAME_STEP or DISABLED and declare it in metadata; or give env=vec_env env.resets=next_step."
        )


def _tensors(observed: Observed) -> Tensors:
    return {key: torch.from_numpy(values) for key, values in observed.items()}
