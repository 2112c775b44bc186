"""The previous action, as a policy sees it.

Shape legend: B batch, A numbers of an action.
"""

import torch
from torch import Tensor, nn
from torchrl.data import TensorSpec, Unbounded

from recurrl.policy.encoders.mlp import OneHot
from recurrl.policy.preprocessing import DictEncoder
from recurrl.specs import bounds_of, choices, leaves_of

INITIAL_GAIN = 0.01
"""Factor on the initial weights of the previous action: a policy starts as if it hardly saw it, because tasks that can
be learned without it would otherwise take longer (docs/measurements/recipe.md)."""
FLOAT32 = torch.finfo(torch.float32)


class PreviousAction(DictEncoder):
    """Encodes what a policy did in its last step, which it cannot infer from observations if its actions are sampled.

    The parts of an action are concatenated: numbers clipped to their bounds, choices one-hot. The encoded action
    ``[B, A]`` is passed from step to step like a recurrent state, and is zero where an episode begins.

    Args:
        spec: the spec of one environment's action, as the policy chooses it.

    Attributes:
        size: the number of entries of the encoded action, A.
    """

    def __init__(self, spec: TensorSpec) -> None:
        parts = [(path, part, choices(part)) for path, part in leaves_of(spec)]
        super().__init__({path: Numbers(part) if sizes is None else OneHot(sizes) for path, part, sizes in parts})
        self.size = self(spec.zero([1])).shape[-1]


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
