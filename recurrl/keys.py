"""The names of the entries that environments, policy and learner share."""

from collections.abc import Mapping
from functools import reduce
from typing import Any

from tensordict import NestedKey

KeyPath = tuple[str, ...]
"""The names of a nested key, the outermost first."""

OBSERVATION = "observation"
"""A tensor, or a nested TensorDict, which may hold ``ACTION_MASK``, ``PREVIOUS_REWARD`` and ``PRIVILEGED``."""
ACTION_MASK = "action_mask"
IS_INIT = "is_init"
"""True where a step is the first of an episode."""
NOISE = "action_noise"
"""The last step's noise of actions, where it is correlated from step to step."""
PREVIOUS_ACTION = "previous_action"
PREVIOUS_REWARD = "previous_reward"
PRIVILEGED = "privileged"
"""What the environment hides from the policy, for a critic that sees it."""

ACTION = "action"
LOG_PROB = "action_log_prob"
VALUE = "state_value"
ADVANTAGE = "advantage"
VALUE_TARGET = "value_target"
LOSS_MASK = "loss_mask"
"""True where a step counts in the loss; without this entry all do."""
# The names that TorchRL's RewardSum and StepCounter use.
EPISODE_RETURN = "episode_reward"
EPISODE_LENGTH = "step_count"
INSERTED = "inserted"
"""True after a step that is not a transition: the environment only began an episode, and ignored the action."""
FINAL_UNKNOWN = "final_unknown"
"""True after the last step of an episode whose last observation the environment does not give."""


def path_of(key: NestedKey) -> KeyPath:
    """A key as the tuple of its names."""
    return (key,) if isinstance(key, str) else key


def name_of(key: NestedKey) -> str:
    """A key as one name, with dots."""
    return ".".join(path_of(key))


def nested(entries: Mapping[KeyPath, Any]) -> dict[str, Any]:
    """Nested dicts, from entries by path."""
    tree: dict[str, Any] = {}
    for (*outer, last), entry in entries.items():
        reduce(lambda inner, name: inner.setdefault(name, {}), outer, tree)[last] = entry
    return tree
