"""Random actions, the baseline that a policy is compared with."""

import torch
from tensordict import TensorDictBase
from torchrl.data import Bounded
from torchrl.envs import EnvBase

from recurrl.keys import ACTION, ACTION_MASK, OBSERVATION
from recurrl.specs import choices


def act_at_random(env: EnvBase, current_N: TensorDictBase) -> TensorDictBase:
    """Writes random actions that respect the action mask, if there is one.

    They are uniform within an entry's bounds, and standard normal where it lacks one.
    """
    observation, action = current_N[OBSERVATION], env.full_action_spec[ACTION]
    if not isinstance(observation, torch.Tensor) and ACTION_MASK in observation:
        mask = observation[ACTION_MASK]
        sizes = choices(action[0]) or (mask.shape[-1],)
        chosen = [torch.multinomial(part.double(), 1) for part in mask.split(sizes, -1)]
        return current_N.set(ACTION, torch.cat(chosen, -1).reshape(action.shape))
    drawn = env.full_action_spec.rand()
    for key, spec in env.full_action_spec.items(True, True):
        if isinstance(spec, Bounded) and spec.dtype.is_floating_point:
            low, high = spec.space.low, spec.space.high
            normal = torch.randn_like(low).clamp(low, high)
            drawn[key] = torch.where((high - low).isfinite(), drawn[key], normal)
    return current_N.update(drawn)
