"""Groups: their members' episodes start alike, row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recurrl.envs.groups import Groups

from recurrl.build import make_collector, make_policy_for, set_process_state
from recurrl.config import TrainConfig
from recurrl.envs.saved_state import restore, state_of
from recurrl.envs.wrappers import SeededEpisodes
from recurrl.errors import ConfigError

Compose = Callable[..., TrainConfig]
GRPO = (
    "algorithm=grpo",
    "algorithm.group_size=2",
    "env.num_envs=4",
    "frames_per_batch=160",
    "slice_len=8",
    "minibatch_slices=4",
    "cell.hidden_size=8",
    "encoder.sizes=[8]",
)


@settings(max_examples=50, deadline=None)
@given(
    ends=st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=2, max_size=2),
    asked_twice=st.booleans(),
)
def test_members_share_seeds_that_no_other_group_row_or_episode_has(ends: list[list[bool]], asked_twice: bool) -> None:
    """Two members whose episodes end at steps of their own, over two rows of three steps."""
    groups = Groups(size=2, steps_per_row=3, seed=5)
    found: dict[tuple[int, int, int], set[int]] = {}
    for env, ended in ((0, ends[0]), (1, ends[1]), (2, ends[0])):
        seeds = groups.episode_seeds(env)
        for t, end in enumerate(ended):
            if t % 3 == 0:  # all are reset; an episode that ended with the row before was reset then already
                episode = 0
                found.setdefault((env // 2, t // 3, episode), set()).add(seeds.next())
            seeds.step()
            if end:
                last_of_row = t % 3 == 2
                row, episode = (t // 3 + 1, 0) if last_of_row else (t // 3, episode + 1)
                found.setdefault((env // 2, row, episode), set()).add(seeds.next())
                if asked_twice and last_of_row:
                    found[env // 2, row, episode].add(seeds.next())
    assert all(len(seeds) == 1 for seeds in found.values())
    assert len(set.union(*found.values())) == len(found)


def collect(config: TrainConfig, batches: int) -> list[Any]:
    set_process_state(config)
    collector = make_collector(config, make_policy_for(config))
    collected = [batch.clone() for batch, _ in zip(collector, range(batches), strict=False)]
    collector.shutdown()
    return collected


def test_the_nth_episodes_of_a_groups_rows_start_alike_and_those_of_others_do_not(compose: Compose) -> None:
    first = []
    for batch in collect(compose(*GRPO), batches=3):
        assert batch["is_init"][:, 0].all()
        assert batch["recurrent_state"][:, 0].abs().max() == 0
        starts = [row["observation"][row["is_init"].squeeze(-1)] for row in batch]
        for a, b in ((0, 1), (2, 3)):
            both = min(len(starts[a]), len(starts[b]))
            assert both > 0
            assert torch.equal(starts[a][:both], starts[b][:both])
        first += [starts[0][0], starts[2][0]]
    assert len(torch.stack(first).unique(dim=0)) == 6


def test_a_members_place_in_the_sequence_of_seeds_is_part_of_its_environments_state() -> None:
    saved, restored = (
        SeededEpisodes(gymnasium.make("CartPole-v1"), Groups(2, 5, seed=1).episode_seeds(0)) for _ in range(2)
    )
    for _ in range(2):
        saved.reset()
        for _ in range(3):
            saved.step(0)
    restored.reset()
    restore(restored, state_of(saved))
    for _ in range(3):
        assert np.array_equal(restored.reset()[0], saved.reset()[0])
        saved.step(1)
        restored.step(1)


def test_without_groups_episodes_continue_from_batch_to_batch(compose: Compose) -> None:
    ppo = [override for override in GRPO if not override.startswith("algorithm")]
    _, second = collect(compose(*ppo), batches=2)
    assert not second["is_init"][:, 0].all()


class Lottery(gymnasium.Env[Any, Any]):
    """Draws something from a generator of its own: what is seen at a reset, or only what follows."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, hidden: bool) -> None:
        self.hidden = hidden
        self.drawn = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.state = self.drawn.uniform(-1, 1, 2).astype(np.float32)
        return (np.zeros(2, np.float32) if self.hidden else self.state), {}

    def step(self, action: Any) -> Any:
        return self.state, 0.0, False, False, {}


@pytest.fixture(scope="module", autouse=True)
def lottery() -> Iterator[None]:
    gymnasium.register("Lottery-v0", entry_point=Lottery)
    yield
    del gymnasium.registry["Lottery-v0"]


@pytest.mark.parametrize(("hidden", "when"), [(False, "after reset 1"), (True, "1 steps after reset 1")])
def test_an_environment_that_ignores_reset_seeds_is_rejected(hidden: bool, when: str, compose: Compose) -> None:
    config = compose(*GRPO, "env=gym", "env.id=Lottery-v0", f"+env.kwargs.hidden={hidden}")
    with pytest.raises(ConfigError) as caught:
        make_collector(config, make_policy_for(config))
    assert str(caught.value) == (
        "env.id=Lottery-v0 ignores reset seeds: two copies with the same seeds and actions differ in 'observation' "
        f"{when}. algorithm=grpo compares episodes that start from the same state. Have the environment draw from the "
        "generator seeded by reset(seed=...) (Gymnasium's self.np_random), or choose algorithm=ppo."
    )


@pytest.mark.parametrize("env", ["cartpole_no_velocity", "pendulum_no_velocity", "repeat_first", "repeat_previous"])
def test_environments_that_use_reset_seeds_are_accepted(env: str, compose: Compose) -> None:
    config = compose(*GRPO, f"env={env}")
    for package in config.env.packages:
        pytest.importorskip(package)
    make_collector(config, make_policy_for(config)).shutdown()
