"""The seeds of environments side by side."""

from __future__ import annotations

from torchrl._utils import seed_generator


def seeds(seed: int, count: int) -> list[int]:
    """So many of TorchRL's chain, which begins with ``seed``."""
    chain = [seed]
    for _ in range(count - 1):
        chain.append(seed_generator(chain[-1]))
    return chain
