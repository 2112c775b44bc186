"""Groups of environments that start from the same states, for advantages relative to a group."""

from dataclasses import dataclass

import numpy as np


class EpisodeSeeds:
    """The reset seed of each episode, known from the steps taken and the episodes begun in this row.

    The first episode of a row may ask twice: when an episode ends with the previous row, and when all environments are
    reset. Without a step in between, both get the same seed.

    Args:
        seed: the seed of all reset seeds.
        group: index of the group.
        steps_per_row: T.
    """

    def __init__(self, seed: int, group: int, steps_per_row: int) -> None:
        self._seed, self._group, self._steps_per_row = seed, group, steps_per_row
        self._steps = 0
        self._row = -1
        self._episode = 0
        self._last_asked = 0

    def step(self) -> None:
        """Counts a step of the environment."""
        self._steps += 1

    def next(self) -> int:
        """The seed to reset with now."""
        row = self._steps // self._steps_per_row
        if row != self._row:
            self._row, self._episode = row, 0
        elif self._steps != self._last_asked:
            self._episode += 1
        self._last_asked = self._steps
        sequence = np.random.SeedSequence([self._seed, self._group, self._row, self._episode])
        # 31 bits, because some environments keep their seed in a signed integer.
        return int(sequence.generate_state(1)[0] >> 1)


@dataclass(frozen=True)
class Groups:
    """Groups of ``size`` neighbouring environments whose episodes start from the same states.

    Every row begins with a reset. The j-th episode of a row has the same reset seed in all members of a group, and a
    different one in every other group, row and j.

    Attributes:
        size: members of a group.
        steps_per_row: T, the steps each environment takes between two resets of all.
        seed: the seed of all reset seeds.
    """

    size: int
    steps_per_row: int
    seed: int

    def episode_seeds(self, env: int) -> EpisodeSeeds:
        """The reset seeds of one environment, by its index."""
        return EpisodeSeeds(self.seed, env // self.size, self.steps_per_row)
