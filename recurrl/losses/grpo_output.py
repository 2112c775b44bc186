"""The output of :class:`recurrl.losses.GRPOLoss`."""

from typing import Any

from torch import Tensor
from torchrl.objectives.llm import grpo


class GRPOLossOutput(grpo.GRPOLossOutput):
    """TorchRL's, with one more field, and its fields also by key: ``output["loss_objective"]``."""

    kl: Tensor | None = None
    """An estimate of the KL that is never negative; ``kl_approx``, which may be, varies more."""

    def __getitem__(self, item: Any) -> Any:
        return self.get(item) if isinstance(item, str) else super().__getitem__(item)
