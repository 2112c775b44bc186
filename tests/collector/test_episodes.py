"""Statistics of the episodes that end during collection."""

import math

import torch
from tensordict import TensorDict

from recurrl.callbacks.builtin import EpisodeStatistics
from recurrl.keys import EPISODE_LENGTH, EPISODE_RETURN

RETURNS_NT = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dtype=torch.float64)


def batch(terminated_NT, truncated_NT):
    terminated, truncated = (torch.tensor(flags).bool().unsqueeze(-1) for flags in (terminated_NT, truncated_NT))
    lengths = torch.tensor([[7, 8, 9]] * 2)
    after = {EPISODE_RETURN: RETURNS_NT.unsqueeze(-1), EPISODE_LENGTH: lengths.unsqueeze(-1)}
    after |= {"terminated": terminated, "done": terminated | truncated}
    return TensorDict({"next": TensorDict(after, [2, 3])}, [2, 3])


def test_ended_episodes_count_in_order_of_time_and_a_terminated_one_is_not_truncated():
    episodes = EpisodeStatistics()
    metrics = episodes.on_rollout(None, batch([[0, 0, 0], [1, 0, 0]], [[0, 1, 0], [1, 0, 1]]))
    assert episodes.episodes.maxlen == 100
    assert list(episodes.episodes) == [[4.0, 7.0, 0.0], [2.0, 8.0, 1.0], [6.0, 9.0, 1.0]]
    expected = {"return_mean": 4.0, "return_std": 2.0, "episode_length_mean": 8.0}
    expected |= {"episodes": 3.0, "truncated_fraction": 2 / 3}
    assert metrics == {f"train/{name}": value for name, value in expected.items()}


def test_without_an_ended_episode_there_are_no_means():
    metrics = EpisodeStatistics().on_rollout(None, batch([[0] * 3] * 2, [[0] * 3] * 2))
    assert metrics.pop("train/episodes") == 0
    assert all(math.isnan(value) for value in metrics.values())
