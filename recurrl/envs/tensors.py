"""Environments that step on plain tensors as well as on TorchRL's TensorDicts.

Shape legend: N environments.
"""

from abc import abstractmethod
from typing import Any

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Categorical, Composite, TensorSpec, Unbounded
from torchrl.envs import EnvBase

from recurrl.envs.faults import Faults
from recurrl.envs.saved_state import UnsavableError


class TensorEnv(EnvBase):
    """An environment of batch size ``[N]`` that returns plain tensors; its action is a tensor or has several parts.

    A TensorDict costs more time than a step of a light environment. A collector that knows this class steps it without
    them; other code steps it like any TorchRL environment, with the same results.

    Args:
        num_envs: environments, N.
        observation: the spec of each entry of the observation, of all environments; composite where it is nested.
        action: the spec of the action, of all environments; composite where it has several parts.
        device: where the tensors live.

    Attributes:
        faults: names the environment at fault in errors, if this one knows which it is; ``make_env`` counts its steps.
    """

    faults: Faults | None = None

    def __init__(
        self, num_envs: int, observation: dict[str, TensorSpec], action: TensorSpec, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(device=device, batch_size=[num_envs])
        self.observation_spec = Composite(observation, shape=self.batch_size, device=device)
        self.full_action_spec = Composite(action=action, shape=self.batch_size, device=device)
        self.reward_spec = Unbounded(shape=(num_envs, 1), dtype=torch.float32, device=device)
        done = Categorical(2, shape=(num_envs, 1), dtype=torch.bool, device=device)
        self.full_done_spec = Composite(
            done=done, terminated=done.clone(), truncated=done.clone(), shape=self.batch_size, device=device
        )

    @abstractmethod
    def step_tensors(self, action: Tensor | TensorDictBase) -> dict[NestedKey, Tensor]:
        """One step of every environment.

        Args:
            action: ``[N, ...]``, or a TensorDict of its parts.

        Returns:
            In memory that later steps leave alone: the entries of the observation ``[N, ...]``; ``reward`` ``[N, 1]``;
            ``terminated``, ``truncated`` and ``done``, which is either, ``[N, 1]``.
        """

    @abstractmethod
    def reset_tensors(self, chosen: Tensor | None) -> dict[NestedKey, Tensor]:
        """Starts a new episode in the chosen environments ``[N, 1]``, or in all.

        Returns:
            In memory that later steps leave alone, the observation of every environment, the chosen and the others.
        """

    def episodes(self) -> dict[str, Any]:
        """The state of the unfinished episodes, as plain values and tensors.

        Raises:
            UnsavableError: the environment does not expose it; with the reason.
        """
        raise UnsavableError(f"{type(self).__name__} does not expose its state")

    def restore_episodes(self, state: dict[str, Any]) -> None:
        """Restores the episodes that :meth:`episodes` returned.

        Raises:
            UnsavableError: this environment was constructed differently.
        """
        raise UnsavableError(f"{type(self).__name__} cannot restore a state")

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return TensorDict(self.step_tensors(tensordict["action"]), self.batch_size)

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        chosen = None if tensordict is None else tensordict.get("_reset", None)
        return TensorDict(self.reset_tensors(chosen), self.batch_size)
