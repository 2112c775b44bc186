"""The previous action, as a policy sees it.

Shape legend: B batch, A numbers of an action.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torchrl.data import TensorSpec, Unbounded

from recurrl.policy.encoders.mlp import OneHot
from recurrl.specs import bounds_of, choices, leaves_of

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
        self.size = 0
        self._parts: list[tuple[tuple[str, ...], nn.Module]] = []
        for path, part in leaves_of(spec):
            sizes = choices(part)
            self._parts.append((path, Numbers(part) if sizes is None else OneHot(sizes)))
            self.size += part.shape.numel() if sizes is None else sum(sizes)
        self._modules_of_parts = nn.ModuleList(module for _, module in self._parts)

    def forward(self, action: Any) -> Tensor:
        """The encoded action ``[B, A]``: its parts, concatenated; numbers clipped to their bounds, choices one-hot."""
        seen = [part(action[path] if path else action) for path, part in self._parts]
        return torch.cat(seen, -1) if len(seen) > 1 else seen[0]


class Numbers(nn.Module):
    """Flattens the numbers or bits of an action, and clips them to their bounds."""

    def __init__(self, spec: TensorSpec) -> None:
        super().__init__()
        numbers = spec if spec.dtype.is_floating_point else Unbounded(spec.shape)
        bounds = [bound.flatten().float() for bound in bounds_of(numbers)]
        self.bounds = nn.Buffer(torch.stack(bounds).clamp(FLOAT32.min, FLOAT32.max), persistent=False)

    def forward(self, chosen: Tensor) -> Tensor:
        """The numbers ``[B, entries]``, in float32."""
        return chosen.flatten(1).float().maximum(self.bounds[0]).minimum(self.bounds[1])
