"""Options of environments."""

from dataclasses import dataclass
from typing import Any

from recurrl.config.options import COPIES, INDEX, NUMBERS, SCALE, STEPS, Condition, option
from recurrl.errors import ConfigError

A_YAML = Condition("a custom yaml in a folder env", lambda _: False)


@dataclass
class EnvConfig:
    """An environment and its number of copies."""

    name: str = option("the name of this choice", only_with=A_YAML)
    source: str = option("the module of recurrl.envs.sources that makes it, or package.module:Name")
    id: str = option("the environment's id; for Gymnasium's also module:Id, which imports the module first")
    num_envs: int = option("number of parallel environments", COPIES)
    ids: list[str] = option("patterns of further ids to which this yaml applies", only_with=A_YAML)
    packages: list[str] = option("packages to import first, which register ids")
    wrappers: list[Any] = option("Gymnasium wrappers, inner first: module:Wrapper or {wrapper: module:Wrapper, ...}")
    mask: list[Any] = option("what to hide from the policy: indices of a vector, or names of a dict's entries", INDEX)
    max_episode_steps: int | None = option("truncate episodes after this many steps; null: the registered limit", STEPS)
    reward_scale: float = option("factor on rewards, before normalisation; reported returns are unscaled", SCALE)
    normalize_observation: bool = option("normalise observations by the policy's running statistics", only_with=NUMBERS)
    previous_reward: bool = option("show the policy the previous reward, unscaled")
    action_mask_from_info: bool = option('info["action_mask"] masks actions, as a dict observation\'s action_mask does')
    normalize_reward: bool = option("divide rewards by the discounted return's running standard deviation, if above 1")
    kwargs: dict[str, Any] = option("further arguments of the environment's constructor: env.kwargs.size=8")


SAME_STEP, DISABLED, NEXT_STEP = RESETS = ("same_step", "disabled", "next_step")
"""The values of ``env.resets``: when a simulator begins an environment's next episode."""


@dataclass
class VecEnvConfig(EnvConfig):
    """A simulator that steps all environments in one call, on tensors of its device."""

    launcher: str | None = option("module:function to call before torch is imported, such as one that starts Isaac Sim")
    device: str = option("where the simulator runs: passed as device to what makes it, if it takes that argument")
    resets: str = option(
        "when a new episode begins: in the last step of the old one (same_step), on request (disabled; reset takes "
        "env_ids, mask or options), or in the step after it (next_step; that step is not learned from)",
        choices=RESETS,
    )
    actor_groups: list[str] = option(
        "the groups of observations that the policy sees; []: policy or actor; without them, all but the critic's"
    )
    critic_groups: list[str] = option("the groups that algorithm.critic_observation=[privileged] adds; []: critic")


@dataclass
class TorchRLConfig(EnvConfig):
    """An environment of TorchRL with keys of any name. Nested keys are written with dots."""

    observation_keys: list[str] = option("keys that the policy sees; several form a dict observation")
    action_key: str = option("key of the action")
    reward_key: str = option("key of the reward")


def wrapper_and_arguments(entry: Any) -> tuple[str, dict[str, Any]]:
    """The name and the arguments of an entry of ``env.wrappers``.

    Raises:
        ConfigError: the entry is neither ``package.module:Wrapper`` nor a mapping with such a name and its arguments.
    """
    arguments = dict(entry) if isinstance(entry, dict) else {"wrapper": entry}
    name = arguments.pop("wrapper", None)
    if not isinstance(name, str) or ":" not in name or not all(isinstance(key, str) for key in arguments):
        raise ConfigError(
            f"env.wrappers must hold package.module:Wrapper or {{wrapper: package.module:Wrapper, argument: value}} "
            f"(got {entry})."
        )
    return name, arguments
