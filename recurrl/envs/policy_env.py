"""Environments as policies see them and act in them.

Shape legend: N environments, T steps of a row.
"""

from typing import Any

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Composite

from recurrl.config import EnvConfig
from recurrl.envs.batched import BatchedEnv, Tensors
from recurrl.envs.checks import EnvChecks, allows_actions
from recurrl.envs.interface import Interface
from recurrl.keys import ACTION, ACTION_MASK, FINAL_UNKNOWN, INSERTED, OBSERVATION, PREVIOUS_REWARD, path_of
from recurrl.recurrent.layer import reset_state
from recurrl.runtime.time_limit import limited
from recurrl.specs import limit_of

_RESULTS = ("reward", "terminated", "truncated", "done", INSERTED, FINAL_UNKNOWN)


class PolicyEnv(BatchedEnv):
    """Environments behind the :class:`~recurrl.envs.interface.Interface` to a policy.

    A call takes no longer than :func:`recurrl.runtime.time_limit.time_limit` allows, and errors name the environment.
    Call ``metrics``, ``stateful`` and ``start_in_groups`` on ``raw``: they do not involve the policy. The previous
    reward is zero at an episode's first step. What the policy sees is checked: at every step if the environments can
    say which of them failed (``raw.checks``), else by :meth:`check_rows`, because checking every step would take longer
    than a light environment on tensors, and would synchronise a GPU.

    Args:
        raw: the environments, with their own observations and actions.
        options: the environment's options.
        privileged: add the entry ``privileged`` to observations: what the policy does not see, for the critic.

    Attributes:
        raw: the environments behind the interface.
        interface: the interface between the environments and the policy.

    Raises:
        ConfigError: the options do not fit the environments.
    """

    checks: EnvChecks

    def __init__(self, raw: BatchedEnv, options: EnvConfig, privileged: bool = False) -> None:
        count = raw.batch_size[0]
        if privileged and not options.mask:
            raw.show_privileged()
        interface = Interface(options, raw.observation_spec[0], raw.full_action_spec[0][ACTION], privileged)
        observation, action = interface.observation_spec, interface.action_spec
        specs = Composite({OBSERVATION: observation[OBSERVATION], ACTION: action}).expand(count)
        super().__init__(count, {OBSERVATION: specs[OBSERVATION]}, specs[ACTION], raw.device)
        self.raw, self.checks = raw, raw.checks or EnvChecks(options.id, count)
        self.interface = interface.to(raw.device)
        self._limits = {key: limit_of(spec) for key, spec in observation.items(True, True)}
        self._action = raw.full_action_spec[0][ACTION]
        # These tensors are replaced, never written to.
        self._last: Tensors = {}
        self._token = object()
        previous = {PREVIOUS_REWARD: torch.zeros(count, 1, device=raw.device)}
        self._previous: Tensors = previous if options.previous_reward else {}

    def step_tensors(self, action: Tensor | TensorDictBase) -> Tensors:
        """Steps the environments with the policy's actions."""
        with limited(), self.checks.attributed("step"):
            parts = self.interface.env_action(action)
            after = self.raw.step_tensors(parts[()] if () in parts else TensorDict(parts, self.batch_size))
            results: Tensors = {key: after[key] for key in _RESULTS if key in after}
            if self._previous:
                self._previous[PREVIOUS_REWARD] = results["reward"].float()
            return {**self._observed(after, ~results["done"].squeeze(-1)), **results}

    def reset_tensors(self, mask: Tensor | None) -> Tensors:
        """Resets environments. On a CPU, returns at once if the mask is all false; on a GPU that would synchronise."""
        if mask is not None and self._last and mask.device.type == "cpu" and not mask.any():
            return dict(self._last)
        if mask is None:
            self.raw.last_reset_by = self._token
        for key, value in self._previous.items():
            self._previous[key] = torch.zeros_like(value) if mask is None else reset_state(value, mask.squeeze(-1))
        with limited(), self.checks.attributed("reset"):
            return self._observed(self.raw.reset_tensors(mask), True)

    @property
    def was_reset_elsewhere(self) -> bool:
        """True if another user of the same environments has reset them, which ended the episodes begun here."""
        return self.raw.last_reset_by is not self._token

    def _observed(self, raw: Tensors, acting: Tensor | bool) -> Tensors:
        """The policy's observation, checked; masks must allow an action where ``acting`` ``[N]`` is true."""
        observation = self.interface.observation({**raw, **self._previous})
        if self.raw.checks is not None:
            self.checks.check_values(observation, self._limits)
            mask = observation.get((OBSERVATION, ACTION_MASK))
            if mask is not None:
                self.checks.check_mask(mask, self._action, acting)
        self._last.update(observation)
        return observation

    def check_rows(self, rows_NT: TensorDictBase) -> None:
        """Rejects rows ``[N, T]`` of the last T steps with a reward or an observation that no policy can use.

        Raises:
            EnvError: a value is not finite or out of range, or a mask allows no action; the message names the
                environment and the step.
        """
        if self.raw.checks is not None:
            return
        for key in ("reward", *self._limits):
            self._check(key, rows_NT["next", *path_of(key)], 1 - rows_NT.shape[1])
        for key in self._limits:
            self._check(key, rows_NT[key], -rows_NT.shape[1], acting=True)

    def check_step(self, after: Tensors) -> None:
        """Like :meth:`check_rows`, for what :meth:`step_tensors` or :meth:`reset_tensors` returned last."""
        if self.raw.checks is None:
            for key in after.keys() & {"reward", *self._limits}:
                self._check(key, after[key].unsqueeze(1), 0, acting="done" not in after)

    def _check(self, key: NestedKey, values_NT: Tensor, steps: int, acting: bool = False) -> None:
        limit, conditions = self._limits.get(key), dict[str, Tensor]()
        if values_NT.is_floating_point():
            conditions["a non-finite value of"] = values_NT.isfinite()
        elif limit is not None:
            below = values_NT < torch.tensor(limit, device=values_NT.device)
            conditions["an out-of-range value of"] = below & (values_NT >= 0)
        if acting and key == (OBSERVATION, ACTION_MASK):
            conditions["no allowed action in"] = torch.tensor(allows_actions(values_NT.cpu().numpy(), self._action))
        for what, right in conditions.items():
            if not right.all():
                n, t = (~right).reshape(*right.shape[:2], -1).any(-1).nonzero()[0].tolist()
                self.checks.steps += t + steps
                raise self.checks.error(n, f"returned {what} {path_of(key)[-1]!r}: {values_NT[n, t].tolist()}.")

    def save_episodes(self) -> dict[str, Any]:
        """The state of the environments, and the previous rewards."""
        with limited():
            return {"raw": self.raw.save_episodes(), "previous": dict(self._previous)}

    def restore_episodes(self, state: dict[str, Any]) -> None:
        """Restores what :meth:`save_episodes` returned."""
        with limited():
            self.raw.restore_episodes(state["raw"])
        self._previous.update({key: value.to(self.device) for key, value in state["previous"].items()})
        self._last.clear()

    def _set_seed(self, seed: int | None) -> None:
        with limited(), self.checks.attributed("reset"):
            self.raw.set_seed(seed)

    def close(self, **kwargs: Any) -> None:
        """Closes the environments."""
        with limited(), self.checks.attributed("close"):
            self.raw.close(**kwargs)
        super().close(**kwargs)
