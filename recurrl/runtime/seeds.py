"""Seeds of environments, processes and resumed runs."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torchrl.checkpoint import GlobalRNGState


def seeds(seed: int, count: int) -> list[int]:
    """The first ``count`` seeds of a chain that begins with ``seed``, in which each seed determines the next."""
    chain = [seed]
    for _ in range(count - 1):
        chain.append(derive_seed(chain[-1]))
    return chain


def seed_of_rank(seed: int, frames: int, rank: int = 0) -> int:
    """The seed of a rank's random numbers after ``frames`` frames of a run.

    It is derived so that no other point of the run uses it; at the start of rank 0 it is ``seed`` itself.
    """
    if frames == rank == 0:
        return seed
    return derive_seed(seed, *((frames, rank) if rank else (frames,)))


def derive_seed(seed: int | list[int], *spawn_key: int) -> int:
    """A seed that is determined by other numbers."""
    # 31 bits, because some environments keep their seed in a signed integer.
    return int(np.random.SeedSequence(seed, spawn_key=spawn_key).generate_state(1)[0] >> 1)


def seed_process(seed: int) -> None:
    """Seeds the generators that a whole process shares: Python's, NumPy's and torch's."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


@contextmanager
def random_numbers_restored() -> Iterator[None]:
    """Restores the process's random number generators after the block.

    So what the block draws does not affect training; a resumed run may repeat an evaluation, for example.
    """
    state = GlobalRNGState().state_dict()
    try:
        yield
    finally:
        GlobalRNGState().load_state_dict(state)
