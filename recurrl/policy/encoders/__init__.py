"""Encoders, which map an observation to the vector that enters the cell, with one network per entry.

Shape legend: B batch.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torchrl.data import Composite, TensorSpec

from recurrl.errors import naming
from recurrl.keys import PREVIOUS_REWARD
from recurrl.policy.normalization import observe
from recurrl.policy.preprocessing import PerEntry
from recurrl.specs import leaves_of


def per_entry(observation: TensorSpec, make_network: Callable[[TensorSpec], nn.Module]) -> nn.Module:
    """Builds an encoder from networks for tensors: one network, or for a mapping one per entry.

    The previous reward in a mapping is passed on to the cell as it is.

    Args:
        observation: the spec of an unbatched observation.
        make_network: the network ``[B, *shape]`` to ``[B, width]`` for the spec of a tensor.

    Raises:
        ConfigError: ``make_network`` raised it; the message names the entry.
    """
    if not isinstance(observation, Composite):
        return make_network(observation)
    networks: dict[tuple[str, ...], nn.Module] = {}
    for path, spec in leaves_of(observation):
        with naming(f"Observation entry {'.'.join(path)}"):
            networks[path] = nn.Identity() if path == (PREVIOUS_REWARD,) else make_network(spec)
    return DictEncoder(networks)


class DictEncoder(PerEntry):
    """One network per entry of a nested mapping; their outputs are concatenated."""

    def observe(self, observation: Any) -> None:
        """Adds observations to the running statistics of the networks that have any."""
        for _, network, value in self.each(observation):
            observe(network, value)

    def forward(self, observation: Any) -> Tensor:
        """The concatenated features ``[B, sum of widths]``."""
        return torch.cat(self.outputs(observation), -1)
