"""Gymnasium's vector environments, which step all their environments in one call."""

from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from recurrl.config.env import DISABLED, NEXT_STEP, SAME_STEP
from recurrl.envs.batched import Tensors
from recurrl.envs.checks import EnvChecks, Observations, UnnamedEnvError, mask_in, unpacked
from recurrl.envs.saved_state import restore, state_of
from recurrl.envs.spaces import raw_specs
from recurrl.envs.vec_env import VecEnv
from recurrl.errors import ConfigError, require
from recurrl.keys import ACTION_MASK

_RESETS = {AutoresetMode.SAME_STEP: SAME_STEP, AutoresetMode.DISABLED: DISABLED, AutoresetMode.NEXT_STEP: NEXT_STEP}


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

    def episodes(self) -> dict[str, Any]:
        """The state of the vector environment, and what this class keeps from one step to the next."""
        lasting = {"observed": dict(self._observed), "inserted_next": self._inserted_next}
        return {"environment": state_of(self._env), **lasting}

    def restore_episodes(self, state: dict[str, Any]) -> None:
        """Restores what :meth:`episodes` returned."""
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
