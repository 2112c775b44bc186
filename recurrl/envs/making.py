"""Builds environments: batched, seeded, within the time limit, with episode starts, states and returns marked."""

from typing import Any

from torch import nn
from torchrl.envs import Compose, EnvBase, InitTracker, StepCounter, TransformedEnv

from recurrl.config import EnvConfig
from recurrl.envs.checks import check_seeds
from recurrl.envs.episode_return import EpisodeReturn
from recurrl.envs.faults import Faults
from recurrl.envs.groups import Groups
from recurrl.envs.source import source_of
from recurrl.envs.tensors import TensorEnv
from recurrl.errors import ConfigError
from recurrl.keys import ACTION, HIDDEN, OBSERVATION
from recurrl.runtime.time_limit import limited

EPISODE_RETURN = "episode_reward"
EPISODE_LENGTH = "step_count"


def make_env(
    config: EnvConfig,
    num_envs: int,
    seed: int,
    policy: nn.Module | None = None,
    groups: Groups | None = None,
    reveals: bool = False,
) -> TransformedEnv:
    """``num_envs`` copies of an environment as one seeded environment of batch size ``[num_envs]``.

    Adds ``is_init``, the episode's running return and length, and, given a policy, a primer for each entry that it
    passes from step to step. A step of all copies, and a reset, take no longer than
    :func:`recurrl.runtime.time_limit.time_limit` allows.

    Args:
        config: options of the environment.
        num_envs: copies.
        seed: of the first copy.
        policy: acts in it.
        groups: of environments that start alike.
        reveals: show what is hidden from the policy as the entry ``hidden`` of the observation. So it is too for a
            policy whose critic sees it.

    Raises:
        ConfigError: the environment cannot be made, does not fit the policy, or cannot start groups alike.
    """
    source = source_of(config)
    modules: list[Any] = [] if policy is None else list(policy.modules())
    source.reveals = reveals or any(HIDDEN in getattr(module, "critic_only", ()) for module in modules)
    if groups is None:
        env = source.make(num_envs)
    else:
        check_seeds(config, groups)
        env = source.make_groups(num_envs, groups)
    _check_made(env, config, num_envs)
    primers = [module.make_tensordict_primer() for module in modules if hasattr(module, "make_tensordict_primer")]
    transforms = Compose(InitTracker(), StepCounter(step_count_key=EPISODE_LENGTH), EpisodeReturn(), *primers)
    made = TransformedEnv(_guarded(env, config), transforms)
    made.set_seed(seed)
    return made


def _check_made(env: EnvBase, config: EnvConfig, num_envs: int) -> None:
    """Rejects what a source may make by mistake."""
    if not isinstance(env, EnvBase) or env.batch_size != (num_envs,):
        made = f"one of batch size {list(env.batch_size)}" if isinstance(env, EnvBase) else f"a {type(env).__name__}"
        raise ConfigError(
            f"env.source={config.source} made {made}, but a TorchRL environment of batch size [{num_envs}] is needed. "
            "Have its make(num_envs) return one."
        )
    entries = {OBSERVATION: env.observation_spec, ACTION: env.full_action_spec, "reward": env.full_reward_spec}
    for key, spec in entries.items():
        if key not in spec.keys():  # noqa: SIM118  (a spec has no __contains__)
            raise ConfigError(
                f"env.source={config.source} made an environment without the entry {key!r}; it has "
                f"{', '.join(map(str, spec.keys())) or 'none'}. Rename it, for example with "
                "torchrl.envs.RenameTransform."
            )


def _guarded(env: EnvBase, config: EnvConfig) -> EnvBase:
    """The same environment: its calls obey the process's time limit, and errors name it and its step."""
    in_tensors = isinstance(env, TensorEnv)
    faults = (env.faults if in_tensors else None) or Faults(config.id, env.batch_size[0])
    step, reset = ("step_tensors", "reset_tensors") if in_tensors else ("_step", "_reset")
    for name, call in ((step, "step"), (reset, "reset"), ("set_seed", "reset"), ("close", "close")):
        setattr(env, name, limited(faults.blamed(call)(getattr(env, name))))
    for name in ("episodes", "restore_episodes") if in_tensors else ():
        setattr(env, name, limited(getattr(env, name)))
    return env
