"""Batched environments, stepped on plain tensors by the rollout and the evaluation.

Shape legend: N environments.
"""

from abc import abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import gymnasium
import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from tensordict.utils import expand_as_right
from torch import Tensor
from torchrl.data import Categorical, Composite, TensorSpec, Unbounded
from torchrl.envs import EnvBase
from torchrl.envs.utils import step_mdp

from recurrl.envs.checks import EnvChecks, UnnamedEnvError
from recurrl.envs.spaces import Space, as_dicts, space_of
from recurrl.errors import ConfigError, UnsavableError, require
from recurrl.keys import ACTION, ACTION_MASK, INSERTED, OBSERVATION, PRIVILEGED, name_of, nested, path_of
from recurrl.runtime.serialization import Stateful
from recurrl.specs import choices

Tensors = dict[NestedKey, Tensor]


class BatchedEnv(EnvBase):
    """An environment of batch size ``[N]`` that returns plain tensors; its action is a tensor or has several parts.

    Making a TensorDict takes longer than a step of a light environment, so recurrl's rollout calls :meth:`step_tensors`
    and :meth:`reset_tensors`. TorchRL's collectors step it with TensorDicts, with the same results.

    A batched environment that a source makes has the environment's own observations and actions, in its own units.
    Policies act in it through a :class:`recurrl.envs.policy_env.PolicyEnv`.

    Args:
        num_envs: environments, N.
        observation: the specs of observed entries, for all environments: ``observation``, composite if it is nested;
            and ``action_mask``, if there is one outside the observation.
        action: the spec of the action, for all environments; composite if it has several parts.
        device: the device of all tensors.

    Attributes:
        checks: names the environment that failed, for errors; None if that is unknown.
        action_space: the space of one environment's action, if it has one of Gymnasium's.
        last_reset_by: a token of who last reset all environments, if several users share them.
    """

    checks: EnvChecks | None = None
    action_space: Space | None = None
    last_reset_by: object = None

    def __init__(
        self, num_envs: int, observation: dict[Any, TensorSpec], action: TensorSpec, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(device=device, batch_size=[num_envs])
        self.observation_spec = Composite(observation, shape=self.batch_size, device=device)
        keys = list(self.observation_spec.keys())
        require(
            OBSERVATION in keys,
            f"{type(self).__name__} must have the entry {OBSERVATION!r}, which the policy sees (got {keys}). Rename "
            "the entry that the policy should see.",
        )
        self.full_action_spec = Composite(action=action, shape=self.batch_size, device=device)
        self.reward_spec = Unbounded(shape=(num_envs, 1), dtype=torch.float32, device=device)
        done = Categorical(2, shape=(num_envs, 1), dtype=torch.bool, device=device)
        self.full_done_spec = Composite(
            done=done, terminated=done.clone(), truncated=done.clone(), shape=self.batch_size, device=device
        )

    @abstractmethod
    def step_tensors(self, action: Tensor | TensorDictBase) -> Tensors:
        """One step of every environment.

        Args:
            action: ``[N, ...]``, or a TensorDict of its parts.

        Returns:
            The entries of the observation ``[N, ...]``; ``reward`` ``[N, 1]``; ``terminated``, ``truncated`` and
            ``done``, which is true for either, ``[N, 1]``; and, at every step or never, ``inserted`` and
            ``final_unknown`` ``[N, 1]``, see :mod:`recurrl.keys`. Later steps must not write into these tensors.
        """

    @abstractmethod
    def reset_tensors(self, mask: Tensor | None) -> Tensors:
        """Starts new episodes.

        Args:
            mask: ``[N, 1]``, the environments to reset; on a GPU possibly none of them. None for all.

        Returns:
            The current observation of every environment, reset or not. Later steps must not write into these tensors.
        """

    def start_in_groups(self, size: int, seed: int) -> None:
        """From now on, ``size`` neighbours start their episodes from the same states.

        The j-th episode after a full reset starts from the same state in all members of a group, and from a different
        one in other groups, for other j and after other full resets.

        Raises:
            ConfigError: the environment cannot start episodes in groups.
        """
        raise ConfigError(
            f"{type(self).__name__} must be able to start the episodes of a group from the same state (got "
            f"algorithm.group_size={size}). Choose an algorithm without groups, such as ppo, or a task of single "
            "Gymnasium environments."
        )

    def metrics(self) -> dict[str, float]:
        """What the environments logged since the last call."""
        return {}

    def show_privileged(self) -> None:
        """From now on, adds the entry ``privileged`` to observations: what the policy does not see, if known."""

    def add_privileged(self, privileged: Tensor) -> None:
        """Adds an entry ``privileged`` like this one ``[N, ...]`` to the spec of observations."""
        entries = {**self.observation_spec, PRIVILEGED: Unbounded(privileged.shape, device=self.device)}
        self.observation_spec = Composite(entries, shape=self.batch_size)

    @property
    def stateful(self) -> Stateful:
        """The object whose state outlasts episodes, such as a curriculum's level, for checkpoints."""
        return self

    def save_episodes(self) -> dict[str, Any]:
        """The state of the unfinished episodes, as plain values and tensors.

        Raises:
            UnsavableError: the environment does not expose its state; the message says why.
        """
        raise UnsavableError(f"{type(self).__name__} does not expose its state")

    def restore_episodes(self, state: dict[str, Any]) -> None:
        """Restores the episodes that :meth:`save_episodes` returned.

        Raises:
            UnsavableError: this environment was constructed differently.
        """
        raise UnsavableError(f"{type(self).__name__} cannot restore a state")

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        # Without the graph of a policy's action, as environments of NumPy need it and TorchRL's own do.
        return TensorDict(self.step_tensors(tensordict[ACTION].detach()), self.batch_size)

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        return TensorDict(self.reset_tensors(mask), self.batch_size)


class TorchRLEnv(BatchedEnv):
    """Wraps any environment of TorchRL with the batch size ``[N]``.

    Args:
        env: the environment.
        observed: the environment's key of ``observation``, or of each entry within it.
        action: the environment's key of the action.
        reward: the environment's key of the reward.

    Raises:
        ConfigError: the environment has no entry ``done``, or none of one of the keys.
    """

    def __init__(
        self,
        env: EnvBase,
        observed: Mapping[NestedKey, NestedKey] = MappingProxyType({OBSERVATION: OBSERVATION}),
        action: NestedKey = ACTION,
        reward: NestedKey = "reward",
    ) -> None:
        require(
            "done" in env.done_keys,
            f"The environment's done_spec must have the entry 'done' (got {env.done_keys}). Rename one, for "
            "example with torchrl.envs.RenameTransform.",
        )
        for option, keys, all_keys in (
            ("observation_keys", observed.values(), env.observation_spec.keys(True)),
            ("action_key", [action], env.full_action_spec.keys(True)),
            ("reward_key", [reward], env.full_reward_spec.keys(True, True)),
        ):
            present = sorted(map(name_of, all_keys))
            for name in map(name_of, keys or [""]):
                require(
                    name in present,
                    f"env.{option} must name what the environment has: {', '.join(present) or 'nothing'} (got "
                    f"{name or 'none'}). Choose env=torchrl to name its keys, with dots in a nested one; or rename "
                    "them, for example with torchrl.envs.RenameTransform.",
                )
        rewards = env.full_reward_spec[reward].shape
        require(
            rewards.numel() == env.batch_size[0],
            f"The environment's {name_of(reward)!r} must be one number per environment (got the shape {list(rewards)} "
            f"for {env.batch_size[0]} of them). Combine the numbers, for example with a transform.",
        )
        extra = {key: key for key in (ACTION_MASK, PRIVILEGED) if key in env.observation_spec.keys()}  # noqa: SIM118
        self._keys, self._action, self._reward = {**observed, **extra}, action, reward
        device = env.device or torch.device("cpu")
        entries = {name: env.observation_spec[key].clone().to(device) for name, key in self._keys.items()}
        super().__init__(env.batch_size[0], entries, env.full_action_spec[action], device)
        self._env = env
        self._shapes = {key: list(spec.shape) for key, spec in self.observation_spec.items(True, True)}
        for key, shape in self._shapes.items():
            require(
                len(shape) > 1 or choices(self.observation_spec[key]) is not None,
                f"The environment's {path_of(key)[-1]!r} must have a dimension after the batch's (got the shape "
                f"{shape}). torchrl.envs.UnsqueezeTransform(-1, in_keys=[...]) adds one.",
            )
        self._current = TensorDict(batch_size=env.batch_size)

    def step_tensors(self, action: Tensor | TensorDictBase) -> Tensors:
        """Steps the environment of TorchRL."""
        stepped = self._env.step(self._current.copy().set(self._action, action))
        after, shape = stepped["next"], (*self.batch_size, 1)
        flags = {key: after.get(key, torch.zeros_like(after["done"])) for key in ("done", "terminated", "truncated")}
        self._current = step_mdp(stepped)
        results = {"reward": after[self._reward], **flags}
        return self._observed() | {key: value.reshape(shape).clone() for key, value in results.items()}

    def reset_tensors(self, mask: Tensor | None) -> Tensors:
        """Resets the environment of TorchRL, in part if the mask has both values."""
        if mask is None:
            self._current = self._env.reset()
        else:
            # An environment of several agents also has flags [N, agents, 1].
            flags = {key: self._current[key] for key in self._env.done_keys}
            flags = {key: expand_as_right(mask.squeeze(-1), flag) & flag for key, flag in flags.items()}
            self._current = self._env.maybe_reset(self._current.copy().update({**flags, "done": mask}))
        return self._observed()

    @property
    def stateful(self) -> Stateful:
        """The wrapped environment, whose transforms may have a state."""
        return self._env

    def _observed(self) -> Tensors:
        # Clones, because environments of TorchRL may reuse their memory.
        observed = TensorDict({name: self._current[key].clone() for name, key in self._keys.items()}, self.batch_size)
        entries: Tensors = dict(observed.items(True, True))
        for key, shape in self._shapes.items():
            actual = list(entries[key].shape)
            if actual != shape:
                raise UnnamedEnvError(f"returned {path_of(key)[-1]!r} of shape {actual}; its spec has {shape}.")
        return entries

    def _set_seed(self, seed: int | None) -> None:
        self._env.set_seed(seed)

    def close(self, **kwargs: Any) -> None:
        """Closes the environment of TorchRL."""
        self._env.close(**kwargs)
        super().close(**kwargs)


class SingleEnv(gymnasium.Env[Any, Any]):
    """The first environment of a batch, as a Gymnasium environment; the others, if any, get the same actions."""

    def __init__(self, env: EnvBase) -> None:
        self._env = env if isinstance(env, BatchedEnv) else TorchRLEnv(env)
        self.observation_space = space_of(self._env.observation_spec[0][OBSERVATION])
        self.action_space = self._env.action_space or space_of(self._env.full_action_spec[0][ACTION])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode, and returns its first observation and an info."""
        if seed is not None:
            self._env.set_seed(seed)
        self._env.last_reset_by = self
        return _shown(self._env.reset_tensors(None))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Steps with an action of :attr:`action_space`."""
        actions: Any = self._env.full_action_spec[ACTION].zero()
        own = as_dicts(action)
        actions[:] = TensorDict(own).expand(actions.shape) if isinstance(own, dict) else torch.as_tensor(own)
        after = self._env.step_tensors(actions)
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


def episodes_ended(after: Mapping[NestedKey, Tensor] | TensorDictBase) -> Tensor:
    """True where an episode ended in a step: ``done``, except in steps that are not transitions."""
    return after["done"] & ~after[INSERTED] if INSERTED in after else after["done"]


def observation_in(leaves: Mapping[NestedKey, Tensor]) -> Any:
    """The observation in a mapping of entries: a tensor, or nested dicts."""
    if OBSERVATION in leaves:
        return leaves[OBSERVATION]
    return nested({path_of(key): value for key, value in leaves.items()})[OBSERVATION]


def _shown(entries: Tensors) -> tuple[Any, dict[str, Any]]:
    """The observation, and an info with the action mask if the environment has one."""
    info = {ACTION_MASK: _array(entries[ACTION_MASK])} if ACTION_MASK in entries else {}
    return _array(observation_in(entries)), info


def _array(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value[0].cpu().numpy()[()]
    return {key: _array(entry) for key, entry in value.items()}
