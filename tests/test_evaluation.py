"""Evaluation: whole episodes, and what the policy's memory is worth in them."""

import math
import random

import numpy as np
import pytest
import torch
from collected import rollouts
from counting_env import OneBit

from recurrl.build import make_policy_for
from recurrl.callbacks.builtin import EpisodeStatistics
from recurrl.evaluation import SHUFFLED, ZEROED, _with_states, evaluate, memory_metrics, random_metrics
from recurrl.runtime.seeds import seed_process


@pytest.fixture
def remembering(compose, register):
    """A policy, set by hand, that remembers the cue without fail."""
    task = ("env=gym", f"env.id={register(OneBit)}", "env.normalize_observation=false")
    config = compose(*task, "cell.hidden_size=2", "encoder.sizes=[]", "device=cpu")
    policy = make_policy_for(config)
    with torch.no_grad():
        # The gates r, z, n of a GRU, for two units each, the second of which stays zero: a cue closes z, which lets the
        # candidate in; without one z stays open, and keeps.
        cell = policy.trunk.core.layers
        for parameter in cell.parameters():
            parameter.zero_()
        cell.weight_ih_l0[:, 0] = torch.tensor([0.0, 0.0, 0.0, 0.0, 9.0, 0.0])
        cell.bias_ih_l0[:] = torch.tensor([0.0, 0.0, 2.0, 2.0, 0.0, 0.0])
        head = policy.actor_head.network
        head.weight[:, 0] = torch.tensor([-1.0, 1.0])
        # With no memory at all it names the first side.
        head.bias[:] = torch.tensor([1e-6, 0.0])
    return config, policy


def test_a_memory_that_is_needed_and_used_shows_in_the_returns(remembering):
    config, policy = remembering
    assert evaluate(config.env, policy, 40, 0) == [4.0] * 40
    zeroed = evaluate(config.env, policy, 40, 0, ZEROED)
    assert set(zeroed) == {0.0, 4.0}  # the same side whatever the cue
    shuffled = evaluate(config.env, policy, 40, 0, SHUFFLED)
    assert 1.0 < sum(shuffled) / 40 < 3.0
    torch.rand(5)
    assert evaluate(config.env, policy, 40, 0, SHUFFLED) == shuffled
    means = {"zeroed": sum(zeroed) / 40, "shuffled": sum(shuffled) / 40}
    expected = {f"eval/return_mean_{of}_state": mean for of, mean in means.items()}
    assert memory_metrics(config.env, policy, 40, 0) == expected


def test_a_single_episode_is_shuffled_with_one_that_does_not_count(remembering):
    config, policy = remembering
    assert len(evaluate(config.env, policy, 1, 0, SHUFFLED)) == 1


def test_shuffling_gives_everybody_all_the_states_of_somebody_else():
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        own = torch.arange(5.0).reshape(5, 1, 1)
        treated = _with_states({"h": own, "c": own, "action_noise": own}, ["h", "c"], SHUFFLED, generator)
        assert (treated["h"] != own).all()
        assert torch.equal(treated["h"].sort(0).values, own)
        assert torch.equal(treated["h"], treated["c"])
        assert torch.equal(treated["action_noise"], own)


def test_random_actions_return_what_chance_gives_and_leave_random_numbers(remembering):
    config, _ = remembering
    torch.manual_seed(0)
    returned = random_metrics(config.env, 200, 0)
    drawn = torch.rand(3)
    assert returned["eval/return_mean_random"] == pytest.approx(2.0, abs=0.3)  # four bits of one half each
    assert returned["eval/return_std_random"] == pytest.approx(1.0, abs=0.2)
    assert random_metrics(config.env, 200, 0) == returned
    torch.manual_seed(0)
    assert torch.equal(torch.rand(3), drawn)


class Drawing(OneBit):
    """Draws from the generators that a process shares."""

    def reward(self, action):
        return random.random() + np.random.random() + float(torch.rand(()))


def test_an_evaluation_leaves_the_random_numbers_of_the_process_as_they_were(compose, register):
    config = compose("env=gym", f"env.id={register(Drawing)}", "device=cpu")
    policy = make_policy_for(config)
    seed_process(1)
    expected = (random.random(), np.random.random(), float(torch.rand(())))
    seed_process(1)
    evaluate(config.env, policy, 2, 0)
    assert (random.random(), np.random.random(), float(torch.rand(()))) == expected


class Long(OneBit):
    """Pays much at the first of 50 steps and little at the others, which float32 would round each time."""

    length = 50

    def reward(self, action):
        return 1e6 if self.steps == 1 else 0.1


def test_long_episodes_return_what_their_rewards_add_up_to(compose, register):
    sizes = ("env.num_envs=2", "frames_per_batch=40", "slice_len=20", "minibatch_slices=2")
    config = compose("env=gym", f"env.id={register(Long)}", "device=cpu", *sizes)
    policy = make_policy_for(config)
    exact = 1e6 + 49 * float(np.float32(0.1))
    assert evaluate(config.env, policy, 2, 0) == pytest.approx([exact] * 2, rel=1e-12)
    episodes = EpisodeStatistics()
    for batch in rollouts(config, policy, 3):
        episodes.on_rollout(None, batch)
    assert [each for each, *_ in episodes.episodes] == pytest.approx([exact] * 2, rel=1e-12)


class Endless(OneBit):
    """Pays one at each step, for ever."""

    length = math.inf

    def reward(self, action):
        return 1.0


def test_an_endless_episode_counts_with_its_return_so_far_and_is_a_warning(compose, register, monkeypatch, caplog):
    config = compose("env=gym", f"env.id={register(Endless)}", "device=cpu")
    monkeypatch.setattr("recurrl.evaluation.MAX_STEPS", 7)
    monkeypatch.setattr("recurrl.evaluation.MAX_RANDOM_STEPS", 5)
    assert evaluate(config.env, make_policy_for(config), 2, 0) == [7.0, 7.0]
    assert "2 of 2 evaluation episodes of Registered-v0 had not ended after 7 steps" in caplog.text
    assert random_metrics(config.env, 2, 0) == {"eval/return_mean_random": 5.0, "eval/return_std_random": 0.0}
    assert "had not ended after 5 steps" in caplog.text
