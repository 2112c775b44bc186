"""A collector that steps on plain tensors where the environment does.

Shape legend: N environments, T steps.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase, unravel_key
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.collectors import Collector
from torchrl.envs import (
    Compose,
    EnvBase,
    ExplorationType,
    InitTracker,
    RewardSum,
    StepCounter,
    TensorDictPrimer,
    Transform,
    TransformedEnv,
)

from recurrl.collector import collector_state
from recurrl.envs import TensorEnv
from recurrl.envs.episode_return import EpisodeReturn
from recurrl.errors import NonFiniteError
from recurrl.keys import ACTION, LOG_PROB, OBSERVATION, VALUE, nested, path_of
from recurrl.policy import Policy, PolicyModule

logger = logging.getLogger(__name__)
_TRAJECTORY = ("collector", "traj_ids")


Tensors = dict[NestedKey, Tensor]


class _NeedsTensorDictsError(Exception):
    """A rollout on plain tensors is not possible; the message says why."""


class LeanCollector(Collector):
    """TorchRL's collector, several times as fast for a :class:`PolicyModule` in an environment that steps on tensors.

    Use it like ``torchrl.collectors.Collector``, also as ``collector_class`` of multi-process collectors. Its fast
    rollout makes no TensorDict per step: it calls the policy and the environment on plain tensors, keeps track of
    episode starts, recurrent states, step counts and returns itself, and writes each entry of the batch once. With
    other policies, environments and options it uses TorchRL's rollout, and a warning says why. Both yield the same
    batches, bit for bit.

    Attributes:
        why_general: the reason for using TorchRL's rollout; None for the fast one.
    """

    why_general: str | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._choose_path()

    def _choose_path(self) -> None:
        self._transforms = _transforms(self.env)
        try:
            self._check_options()
            self.tensor_rollout = TensorRollout(self.env, self._wrapped_policy, self._final_rollout, self.policy_device)
            self.why_general = None
            logger.info("Collection steps on plain tensors.")
        except _NeedsTensorDictsError as reason:
            self.why_general = str(reason)
            logger.warning("Collection falls back to TorchRL's slower rollout: %s.", reason)

    def _check_options(self) -> None:
        refused = {
            "replay_buffer": self.replay_buffer is not None,
            "use_buffers=False": not self._use_buffers,
            "compile_policy": self.compiled_policy,
            "cudagraph_policy": self.cudagraphed_policy,
            "interruptor": self.interruptor is not None,
            f"exploration_type={self.exploration_type}": self.exploration_type is not ExplorationType.RANDOM,
            "compact_obs": bool(self._compact_next_keys),
        }
        asked = [name for name, is_asked in refused.items() if is_asked]
        if asked:
            raise _NeedsTensorDictsError(f"the collector was asked for {', '.join(asked)}")

    @torch.no_grad()
    def rollout(self) -> TensorDictBase:
        """A rollout of rows ``[N, T]`` that continues from the previous one."""
        if _transforms(self.env) != self._transforms:
            self._choose_path()
        if self.why_general is not None or self._should_use_random_frames():
            batch_NT = super().rollout()
            _check_log_probs(batch_NT)
            return batch_NT
        if self.pre_collect_hook is not None:
            self.pre_collect_hook()
        if self.reset_at_each_iter:
            self._carrier.update(self.env.reset())
            self._start_new_trajectories()
        self.tensor_rollout.run(self._carrier, self._next_trajectories if self.track_traj_ids else None)
        return self._maybe_set_truncated(self._final_rollout)

    def metrics(self) -> dict[str, float]:
        """No metrics."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """The unfinished episodes, without weights and random numbers; see :mod:`recurrl.collector.collector_state`."""
        return collector_state.episodes_of(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores them. Those that could not be saved are restarted, and the log says why.

        Raises:
            UnsavableError: the environments are constructed differently from the saved ones.
        """
        collector_state.warn_if_lost(state)
        collector_state.restore_episodes(self, state)

    def _next_trajectories(self, ended: Tensors) -> Tensor:
        """The trajectory number of each environment, with new ones for trajectories that ended."""
        self._update_traj_ids({"next": TensorDict({key: ended[key] for key in self.env.done_keys}, [self.n_env])})
        return self._carrier[_TRAJECTORY]


class TensorRollout:
    """A rollout on plain tensors, into given memory.

    Args:
        env: a :class:`TensorEnv` with transforms that mark episode starts, count steps, sum rewards and carry states.
        module: the policy.
        batch_NT: the memory of one batch; its entries are what is stored.
        policy_device: the policy's device; None for the environment's.
    """

    def __init__(self, env: EnvBase, module: Any, batch_NT: TensorDictBase, policy_device: torch.device | None) -> None:
        if type(module) is not PolicyModule:
            raise _NeedsTensorDictsError(f"the policy is of type {type(module).__name__}, not a PolicyModule")
        if type(module.policy).step is not Policy.step:
            raise _NeedsTensorDictsError(f"the policy overrides step, {type(module.policy).__name__}.step")
        self.policy = module.policy
        self.env, marks = _parts(env)
        self.batch_NT = batch_NT
        self.policy_device = policy_device or self.env.device
        self._moves = self.policy_device != self.env.device
        self.observation_keys = list(self.env.observation_spec.keys(True, True))
        self.init_key, self.count_key, self.return_key, self.state_keys = marks
        self.kept_keys = self._check_entries()
        shape = (*self.env.batch_size, 1)
        self._nobody = torch.zeros(shape, dtype=torch.bool, device=self.policy_device)

    def _check_entries(self) -> list[NestedKey]:
        """The entries of a step that are stored, after checking that the fast rollout provides all of them."""
        if set(self.state_keys) != set(self.policy.carried_keys):
            raise _NeedsTensorDictsError(
                f"the environment carries the states {self.state_keys}, the policy has {self.policy.carried_keys}"
            )
        observed = [*self.observation_keys, self.count_key, self.return_key]
        after = {_next(key) for key in (*observed, "reward", *self.env.done_keys)}
        acted = {*self.env.full_action_spec.keys(True, True), LOG_PROB, VALUE, *map(_next, self.state_keys)}
        given = {*observed, self.init_key, *self.state_keys, *acted, _TRAJECTORY}
        stored = set(self.batch_NT.keys(True, True))
        unknown = stored - given - after - {_next(self.init_key), *self.env.done_keys}
        if unknown:
            raise _NeedsTensorDictsError(f"batches hold {sorted(map(str, unknown))}")
        return list(stored & given)

    def run(self, carrier: TensorDictBase, next_trajectories: Callable[[Tensors], Tensor] | None) -> None:
        """Fills the batch.

        Args:
            carrier: the input of the first step; afterwards, of the first step of the next batch.
            next_trajectories: numbers trajectories after some have ended; None to leave them unnumbered.
        """
        now = self._starting(carrier)
        if next_trajectories is not None:
            now[_TRAJECTORY] = carrier.get(_TRAJECTORY)
        steps: list[Tensors] = []
        for _ in range(self.batch_NT.batch_size[-1]):
            noise_NZ = torch.randn(*self.env.batch_size, self.policy.noise_size, device=self.policy_device)
            action = self.act(now, noise_NZ)
            after: Tensors = dict(self.env.step_tensors(action.to(self.env.device) if self._moves else action))
            after[self.count_key] = now[self.count_key] + 1
            after[self.return_key] = now[self.return_key] + after["reward"]
            # Only stored entries: memory that is freed at once is reused while still in the cache.
            steps.append({key: now[key] for key in self.kept_keys} | {_next(key): after[key] for key in after})
            now = self._following(now, after, next_trajectories)
        # Copies, because resetting the collector writes into the carrier.
        carrier.update({key: value.clone() for key, value in now.items()})
        self.store(steps)
        _check_log_probs(self.batch_NT)

    def _starting(self, carrier: TensorDictBase) -> Tensors:
        """The input of the first step."""
        now: Tensors = {key: carrier.get(key) for key in (*self.observation_keys, self.count_key, self.return_key)}
        self._to_policy(now)
        now[self.init_key] = is_init = carrier.get(self.init_key).to(self.policy_device)
        state = {key: carrier.get(key).to(self.policy_device) for key in self.state_keys}
        return now | self.policy.reset(state, is_init)

    def act(self, now: Tensors, noise_NZ: Tensor) -> Any:
        """Samples actions, and adds the policy's outputs to ``now``, whose states are already reset."""
        state = {key: now[key] for key in self.state_keys}
        action, now[LOG_PROB], value, new_state, _ = self.policy.step(
            _nested(now, self.observation_keys), state, None, noise_NZ
        )
        if isinstance(action, Tensor):
            now[ACTION] = action
        else:
            now.update({unravel_key((ACTION, key)): part for key, part in action.items(True, True)})
        if value is not None:
            now[VALUE] = value
        for key in self.state_keys:
            now["next", key] = new_state[key]
        return action

    def _following(
        self, now: Tensors, after: Tensors, next_trajectories: Callable[[Tensors], Tensor] | None
    ) -> Tensors:
        """The input of the next step; where an episode ended, the first one of the next episode."""
        following = {key: after[key] for key in (*self.observation_keys, self.count_key, self.return_key)}
        states = {key: now["next", key] for key in self.state_keys}
        following[self.init_key] = self._nobody
        if next_trajectories is not None:
            following[_TRAJECTORY] = now[_TRAJECTORY]
        done = after["done"]
        if done.any():
            following.update(self.env.reset_tensors(done))
            following[self.init_key] = is_init = done.to(self.policy_device)
            following[self.count_key] = after[self.count_key].masked_fill(done, 0)
            following[self.return_key] = after[self.return_key].masked_fill(done, 0.0)
            states = self.policy.reset(states, is_init)
            if next_trajectories is not None:
                following[_TRAJECTORY] = next_trajectories(after)
        following.update(states)
        self._to_policy(following)
        return following

    def _to_policy(self, data: Tensors) -> None:
        if self._moves:
            data.update({key: data[key].to(self.policy_device) for key in self.observation_keys})

    def store(self, steps: list[Tensors]) -> None:
        """Writes each entry of the batch from the entries of its steps. Flags that no step sets are zero already."""
        for key, out in self.batch_NT.items(True, True):
            if key in steps[0]:
                _stack_into(out, [step[key] for step in steps])


def _check_log_probs(batch_NT: TensorDictBase) -> None:
    log_probs_NT = batch_NT.get(LOG_PROB, None)
    if log_probs_NT is not None and not log_probs_NT.isfinite().all():
        raise NonFiniteError(
            "The policy produced non-finite action probabilities. A smaller lr or algorithm.max_grad_norm may help; so "
            "may normalised or clipped observations."
        )


def _nested(leaves: Tensors, keys: Iterable[NestedKey]) -> Any:
    """The entry that contains these leaves: a tensor, or nested dicts."""
    if OBSERVATION in leaves:
        return leaves[OBSERVATION]
    return nested({path_of(key): leaves[key] for key in keys})[OBSERVATION]


@cache
def _next(key: NestedKey) -> tuple[str, ...]:
    return ("next", *path_of(key))


def _stack_into(out_NT: Tensor, tensors_N: list[Tensor]) -> None:
    if tensors_N[0].device == out_NT.device:
        torch.stack(tensors_N, 1, out=out_NT)
    else:
        out_NT.copy_(torch.stack(tensors_N, 1))


def _parts(env: EnvBase) -> tuple[TensorEnv, tuple[NestedKey, NestedKey, NestedKey, list[NestedKey]]]:
    """The inner environment, and the keys its transforms write: starts, step count, return, states."""
    if not isinstance(env, TransformedEnv) or not isinstance(env.base_env, TensorEnv):
        kind = type(env.base_env if isinstance(env, TransformedEnv) else env).__name__
        raise _NeedsTensorDictsError(f"the environment is of type {kind}, which steps on TensorDicts")
    found: dict[type, Transform] = {}
    states: list[NestedKey] = []
    for transform in _transforms(env):
        cls: type = RewardSum if type(transform) is EpisodeReturn else type(transform)
        if not _is_known(transform) or cls in found:
            raise _NeedsTensorDictsError(f"the environment has the transform {transform}")
        if type(transform) is TensorDictPrimer:
            states += list(transform.primers.keys(True, True))
        else:
            found[cls] = transform
    missing = {InitTracker, StepCounter, RewardSum} - set(found)
    if missing:
        raise _NeedsTensorDictsError(
            f"the environment has no {' and no '.join(sorted(kind.__name__ for kind in missing))}"
        )
    keys = (found[InitTracker].init_key, found[StepCounter].step_count_key, found[RewardSum].out_keys[0], states)
    return env.base_env, keys


def _transforms(env: EnvBase) -> list[Transform]:
    transform = env.transform if isinstance(env, TransformedEnv) else None
    if isinstance(transform, Compose):
        return list(transform)
    return [] if transform is None else [transform]


def _is_known(transform: Transform) -> bool:
    """True if :class:`TensorRollout` does everything that a transform does."""
    if type(transform) is StepCounter:
        return transform.max_steps is None
    if type(transform) in (RewardSum, EpisodeReturn):
        return list(transform.in_keys) == ["reward"]
    if type(transform) is TensorDictPrimer:
        values = transform.default_value
        return not transform.random and isinstance(values, dict) and all(value == 0.0 for value in values.values())
    return type(transform) is InitTracker
