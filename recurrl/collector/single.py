"""The rollout: a policy acts in a batched environment, and its steps are written into rows of fixed length.

Shape legend: N environments, T steps, Z noise of an action.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torch.nn import functional

from recurrl.collector.collector import FAILED, RolloutSpec
from recurrl.config import CollectorConfig
from recurrl.envs import make_batched_env
from recurrl.envs.batched import Tensors, observation_in
from recurrl.errors import NonFiniteError, UnsavableError
from recurrl.keys import ACTION, EPISODE_LENGTH, EPISODE_RETURN, IS_INIT, LOG_PROB, PRIVILEGED, VALUE, path_of
from recurrl.policy.policy import NewState, State
from recurrl.recurrent.linear_recurrence import scan_from_zero
from recurrl.runtime.compiling import compiled
from recurrl.runtime.serialization import state_copy

logger = logging.getLogger(__name__)


class SingleCollector:
    """Collects rollouts ``[N, T]`` in this process: ``collector=single``, and the core of each worker.

    Args:
        spec: what to collect.
    """

    def __init__(self, spec: RolloutSpec) -> None:
        self.spec, self.policy = spec, spec.policy

        def act(observation: Any, state: State, noise_NZ: Tensor) -> tuple[Any, Tensor, Tensor | None, NewState]:
            return self.policy.step(observation, state, None, noise_NZ)[:4]

        self._act = compiled(act, self.policy.device, cuda_graph=True) if spec.cuda_graph else act
        self._steps = spec.frames // spec.env.num_envs
        self._metrics: dict[str, float] = {}
        # Copied after each rollout, because an evaluation in the same simulator may change it.
        self._curriculum: Any = {}
        self._start()

    def _start(self) -> None:
        spec, privileged = self.spec, PRIVILEGED in self.policy.critic_only
        self.env = make_batched_env(spec.env, spec.env.num_envs, spec.seed, spec.group_size, privileged)
        self.begin_episodes()

    def begin_episodes(self) -> None:
        """Resets all environments, and the recurrent states with them."""
        batch, device, policy = self.env.batch_size[0], self.env.device, self.policy
        if self._curriculum:
            # A copy, because the simulator may change what it is given.
            self.env.raw.stateful.load_state_dict(deepcopy(self._curriculum))
        self._current: Tensors = {
            **self.env.reset_tensors(None),
            **policy.initial_state(batch),
            IS_INIT: torch.ones(batch, 1, dtype=torch.bool, device=device),
            EPISODE_LENGTH: torch.zeros(batch, 1, dtype=torch.int64, device=device),
            EPISODE_RETURN: torch.zeros(batch, 1, dtype=torch.float64, device=device),
        }

    # Not inference_mode: buffers that a custom module updates as it acts must stay usable in training.
    @torch.no_grad()
    def collect(self) -> TensorDictBase:
        """The next rollout ``[N, T]``, on the policy's device.

        Raises:
            EnvError: an environment failed.
            NonFiniteError: the policy's action probabilities are not finite.
        """
        if self.env.was_reset_elsewhere:
            logger.info("Restarting all training episodes: something else, such as an evaluation, used the simulator.")
            self.env.raw.metrics()  # drop what it logged meanwhile
            # Each evaluation seeds the simulator in the same way; training would repeat its episodes after each.
            self.env.set_seed(int(torch.randint(2**31, ())))
        if self.spec.group_size is not None or self.env.was_reset_elsewhere:
            self.begin_episodes()
        # Looked up once: finding a policy's device takes as long as a small layer.
        policy, env, device = self.policy, self.env, self.policy.device
        before, self._current = self._current, {}  # should an environment fail, there is nothing to continue from
        state_keys, observation_keys = list(policy.state_shapes), list(env.observation_spec.keys(True, True))
        current, steps = before, list[Tensors]()
        for noise_NZ in torch.randn(self._steps, *env.batch_size, policy.noise_size, device=device):
            is_init = current[IS_INIT].to(device)
            state = {key: current[key] for key in state_keys}
            if device.type != "cpu" or is_init.any():  # any() would synchronise a GPU
                state = policy.reset(state, is_init.squeeze(-1))
            observation = {key: current[key].to(device) for key in observation_keys}
            action, log_prob, value, new_state = self._act(observation_in(observation), state, noise_NZ)
            after = env.step_tensors(action.to(env.device))
            steps.append(
                {**observation, **state, ACTION: action, IS_INIT: is_init, LOG_PROB: log_prob}
                | ({} if value is None else {VALUE: value})
                | {("next", *path_of(key)): entry for key, entry in (*after.items(), *new_state.items())}
            )
            current = {**env.reset_tensors(after["done"]), **new_state, IS_INIT: after["done"]}
        entries_NT = {key: torch.stack([step[key] for step in steps], 1).to(device) for key in steps[0]}
        totals = _add_totals(entries_NT, before)
        rows_NT = TensorDict(entries_NT, entries_NT[LOG_PROB].shape, device=device)
        env.check_rows(rows_NT)
        self._current = current | totals
        self._metrics, self._curriculum = env.raw.metrics(), state_copy(env.raw.stateful, self.spec.env.id)
        if not rows_NT[LOG_PROB].isfinite().all():
            raise NonFiniteError(
                "The policy produced non-finite action probabilities. Before the first update, look at a custom "
                "encoder or cell: its divisions, logarithms and roots. Later a smaller lr or algorithm.max_grad_norm "
                "may help; so may normalised or clipped observations."
            )
        return rows_NT

    def metrics(self) -> dict[str, float]:
        """What the environments logged during the last rollout."""
        return self._metrics

    def state_dict(self) -> dict[str, Any]:
        """The unfinished episodes as plain values and tensors, or ``unsavable_reason``; and the curriculum, if any."""
        state: dict[str, Any] = {"curriculum": self._curriculum} if self._curriculum else {}
        if not self._current:
            return {**state, "unsavable_reason": FAILED}
        try:
            episodes = self.env.save_episodes()
        except UnsavableError as reason:
            return {**state, "unsavable_reason": str(reason)}
        return {**state, "unsavable_reason": None, "episodes": episodes, "carrier": dict(self._current)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores unfinished episodes. Those that could not be saved are restarted.

        Raises:
            UnsavableError: the environments are constructed differently from the saved ones.
        """
        self._curriculum = state.get("curriculum", {})
        if self._curriculum:
            self.begin_episodes()
        if state["unsavable_reason"] is None:
            saved, now = len(state["carrier"][IS_INIT]), self.env.batch_size[0]
            if saved != now:
                raise UnsavableError(f"{saved} environments were saved, but there are now {now}")
            self.env.restore_episodes(state["episodes"])
            self._current = {
                key: value.to(self._current[key].device, copy=True) for key, value in state["carrier"].items()
            }

    def restart(self, seed: int) -> None:
        """Replaces the environments with new ones, after an error.

        Args:
            seed: the new environments' seed.
        """
        # Environments that failed may also fail to close.
        self.shutdown(raise_on_error=False)
        self.spec = replace(self.spec, seed=seed)
        self._start()

    def shutdown(self, *, raise_on_error: bool = True) -> None:
        """Closes the environments."""
        with suppress(*([] if raise_on_error else [Exception])):
            if not self.env.is_closed:
                self.env.close()


def make(options: CollectorConfig, spec: RolloutSpec) -> SingleCollector:
    """Makes the collector of this process. It reads no options: callers apply those that all collectors have."""
    return SingleCollector(spec)


def _add_totals(entries_NT: Tensors, before: Tensors) -> Tensors:
    """Adds each step's return and length of its episode so far, and returns those that the next rollout starts with.

    Rewards become single precision, after they were added up.

    Args:
        entries_NT: the entries of a rollout.
        before: the return and length, ``[N, 1]``, of the episodes under way as the rollout began.
    """
    reward_NT1, done_NT1 = entries_NT["next", "reward"], entries_NT["next", "done"]
    entries_NT["next", "reward"] = reward_NT1.float()
    # 0 at the first step of an episode, else 1; the entry before the first step is that of the total so far.
    continues = functional.pad((~done_NT1[:, :-1]).double(), (0, 0, 2, 0), value=1.0)
    after: Tensors = {}
    for key, amount_NT1 in ((EPISODE_RETURN, reward_NT1), (EPISODE_LENGTH, torch.ones_like(reward_NT1))):
        start_N11 = before[key].to(reward_NT1.device).unsqueeze(1)
        sums = scan_from_zero(continues, torch.cat((start_N11.double(), amount_NT1.double()), 1))
        totals = sums[:, 1:].to(start_N11.dtype)
        entries_NT["next", key], after[key] = totals, totals[:, -1].masked_fill(done_NT1[:, -1], 0)
    return after
