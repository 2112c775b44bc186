"""The previous action, as a policy sees it.

Shape legend: B batch, A numbers of an action.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torchrl.data import Binary, TensorSpec, Unbounded
from torchrl.envs import TensorDictPrimer

from recurrl.keys import PREVIOUS_ACTION
from recurrl.policy.encoders.mlp import OneHot
from recurrl.specs import bounds_of, leaves_of, limit_of

INITIAL_GAIN = 0.01
"""Factor on the initial weights of the previous action: a policy starts as if it hardly saw it, because tasks that can
be learned without it would otherwise take longer (docs/measurements/recipe.md)."""
FLOAT32 = torch.finfo(torch.float32)


class PreviousAction(nn.Module):
    """Encodes what a policy did in its last step, which it cannot infer from observations if its actions are sampled.

    The encoded action is passed from step to step like a recurrent state, and is zero where an episode begins.

    Args:
        spec: the spec of one environment's action, as the policy chooses it.

    Attributes:
        size: the number of entries of the encoded action, A.
    """

    def __init__(self, spec: TensorSpec) -> None:
        super().__init__()
        leaves = list(leaves_of(spec))
        self._paths = [path for path, _ in leaves]
        parts = [_Part(leaf) for _, leaf in leaves]
        self._parts, self.size = nn.ModuleList(parts), sum(part.size for part in parts)

    def forward(self, action: Any) -> Tensor:
        """The encoded action ``[B, A]``: its parts, concatenated; numbers clipped to their bounds, choices one-hot."""
        seen = [part(action[path] if path else action) for path, part in zip(self._paths, self._parts, strict=True)]
        return torch.cat(seen, -1) if len(seen) > 1 else seen[0]

    def make_tensordict_primer(self) -> TensorDictPrimer:
        """A transform that adds the previous action to an environment: its spec, and zeros at resets."""
        return TensorDictPrimer({PREVIOUS_ACTION: Unbounded((self.size,))}, default_value=0.0, expand_specs=True)


class _Part(nn.Module):
    """One part of an action, or all of it."""

    def __init__(self, spec: TensorSpec) -> None:
        super().__init__()
        limit = None if isinstance(spec, Binary) else limit_of(spec)
        choices = limit if isinstance(limit, tuple) else () if limit is None else (limit,)
        self.size = sum(choices) or spec.shape.numel()
        self._one_hot = OneHot(choices) if choices else None
        self._is_number = spec.dtype.is_floating_point
        if self._is_number:
            bounds = [bound.flatten().float() for bound in bounds_of(spec)]
            self._bounds = nn.Buffer(torch.stack(bounds).clamp(FLOAT32.min, FLOAT32.max), persistent=False)

    def forward(self, chosen: Tensor) -> Tensor:
        if self._one_hot is not None:
            return self._one_hot(chosen)
        numbers = chosen.flatten(1).float()
        return numbers.maximum(self._bounds[0]).minimum(self._bounds[1]) if self._is_number else numbers
