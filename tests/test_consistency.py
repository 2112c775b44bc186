"""The start-up check: one line when right, and an error message for each mistake, which is injected here."""

import re

import gymnasium
import numpy as np
import pytest
import torch
from collected import collected, fresh_policy
from counting_env import Counting
from gymnasium import spaces
from my_package.elman_cell import Elman
from rejections import error_of
from tasks import MASKED
from torch import nn
from torchrl.envs import InitTracker, TransformedEnv
from wrong_environments import Stale

from recurrl.consistency import NOT_SEEN, TOLERANCE, check_consistency, check_network
from recurrl.envs.sources import gymnasium as gymnasium_source
from recurrl.errors import ConsistencyError
from recurrl.policy import PolicyModule

OPTIONS = ("frames_per_batch=128", "slice_len=8", "backend=pad", "env.max_episode_steps=11")
STATE = "recurrent_state"


@pytest.fixture(scope="module")
def config(small):
    return small(*OPTIONS)


def complaint(config, policy, batch):
    return error_of(check_consistency, policy, batch, config, kind=ConsistencyError)


# What is right


@pytest.mark.parametrize(("env", "cell"), [("pendulum_no_velocity", "gru"), ("cartpole_no_velocity", "none")])
def test_a_batch_that_is_right_gives_one_line(small, env, cell):
    config = small(*OPTIONS, f"env={env}", f"cell={cell}", "cell.num_layers=2", "backend=scan")
    policy, batch = collected(config, std=0.5)
    line = check_consistency(policy, batch, config)
    assert line.startswith("consistency check passed: the update reproduces the rollout in 128 frames with ")
    assert "log-probability" in line
    assert "value" in line
    assert ("state" in line) == (cell != "none")
    assert "\n" not in line


def test_the_check_changes_neither_batch_nor_policy_nor_random_numbers(small):
    # No episode ends in the batch, so that the check acts at random in environments of its own.
    config = small(*OPTIONS[:-1], "env=pendulum_no_velocity")
    policy, batch = collected(config, std=0.5)
    before, weights = batch.clone(), {name: value.clone() for name, value in policy.state_dict().items()}
    torch.manual_seed(7)
    check_consistency(policy, batch, config)
    drawn = torch.rand(3)
    torch.manual_seed(7)
    assert torch.equal(torch.rand(3), drawn)
    assert (batch == before).all()
    assert all(torch.equal(value, weights[name]) for name, value in policy.state_dict().items())
    assert all(parameter.grad is None for parameter in policy.parameters())


# Entries that are missing


@pytest.mark.parametrize("entry", ["is_init", STATE])
def test_a_batch_without_an_entry_that_the_update_needs_is_caught(config, entry):
    policy, batch = collected(config, std=0.5)
    with pytest.raises(KeyError, match=f'key "{entry}" not found'):
        check_consistency(policy, batch.exclude(entry), config)


def test_an_environment_without_a_primer_is_rejected(config):
    env = TransformedEnv(gymnasium_source.make(config.env).make(4), InitTracker())
    with pytest.raises(KeyError, match=f"needs the entries .*{STATE}.*get_primers_from_module"):
        PolicyModule(fresh_policy(config))(env.reset())


# Entries that are wrong


def plus(value):
    return lambda entry: entry + value


ZEROED = {("next", STATE): ((2, 4), torch.zeros_like), STATE: ((2, 5), torch.zeros_like)}
LED_TO = "in the rollout, but .* after the previous step of its episode"
MISTAKES = [
    (ZEROED, rf"\('next', '{STATE}'\) of environment 2, step 4, is 0 in the rollout, but .* when replayed .*zeroed"),
    ({STATE: ((1, 3), torch.zeros_like)}, rf"'{STATE}' of environment 1, step 3, is 0 {LED_TO}.*zeroed, for example"),
    (
        {"is_init": ((3, 2), torch.ones_like)},
        "'is_init' of environment 3, step 2, is 1 in the rollout, but 0 by the ends",
    ),
    (
        {"is_init": (..., torch.zeros_like)},
        "'is_init' of environment 0, step 0, is 0 in the rollout, but 1 by the ends",
    ),
    ({"observation": ((2, 1, 0), plus(0.25))}, rf"'observation' of environment 2, step 1, is .* {LED_TO}"),
    ({"observation": ((0, 6, 1), plus(torch.nan))}, rf"'observation' of environment 0, step 6, is nan {LED_TO}"),
]


@pytest.mark.parametrize(("changes", "message"), MISTAKES)
def test_a_wrong_entry_is_caught_where_it_is(changes, message, config):
    policy, batch = collected(config, std=0.5)
    for key, (index, change) in changes.items():
        batch[key][index] = change(batch[key][index])
    assert re.search(message, complaint(config, policy, batch), re.DOTALL)


def test_a_state_that_outlives_its_episode_is_caught(config):
    policy, batch = collected(config, std=0.5)
    n, t = (int(index) for index in batch["is_init"].squeeze(-1)[:, 1:].nonzero()[0])
    batch[STATE][n, t + 1] = 1.0
    assert f"environment {n}, step" in complaint(config, policy, batch)


# Observations


class ResetsItself(gymnasium.Wrapper):
    """Hands out the first observation of the next episode as the last of this one."""

    first = None

    def reset(self, **kwargs):
        if self.first is None or kwargs.get("seed") is not None:
            return self.env.reset(**kwargs)
        first, self.first = self.first, None
        return first, {}

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            self.first = observation = self.env.reset()[0]
        return observation, reward, terminated, truncated, info


OF_ONE = (*OPTIONS[:-1], "env=gym", "env.normalize_observation=false")
"""Where an environment ends its own episodes, without a limit around it."""


def resetting_itself():
    return ResetsItself(gymnasium.make("CartPole-v1", max_episode_steps=11))


def in_one(num_envs):
    return gymnasium.vector.SyncVectorEnv([resetting_itself] * num_envs)


@pytest.mark.parametrize(("rewarded", "name"), [(False, "['observation']"), (True, "[('observation', 'observation')]")])
def test_an_environment_that_resets_itself_is_caught(small, register, rewarded, name):
    env_id = f"{__name__}:in_one" if rewarded else register(resetting_itself)
    config = small(*OF_ONE, f"env.id={env_id}", f"env.previous_reward={rewarded}")
    sentence = complaint(config, *collected(config, std=0.5))
    assert f"resets the observation {name} equals the last one of the previous episode, bit for bit" in sentence
    assert "disable automatic resets" in sentence


def test_a_wrong_observation_after_resets_is_caught_without_episode_ends(small, register):
    name = register(lambda: Stale(gymnasium.make("Pendulum-v1")))
    config = small(*OF_ONE, f"env.id={name}")
    policy, batch = collected(config, std=0.5)
    assert not batch["next", "done"].any()
    assert "after each of 20 resets" in complaint(config, policy, batch)


def test_forced_resets_leave_masked_actions_out(small):
    """The task fails on masked actions; its episodes are longer than rows, so that the check acts at random."""
    task = ("env.packages=[tasks]", f"env.id={MASKED}")
    config = small(*OF_ONE, *task, mask_in="observation", action="discrete", length=99)
    policy, batch = collected(config)
    assert not batch["next", "done"].any()
    assert "with 0 resets" in check_consistency(policy, batch, config)


class Coin(Counting):
    """Shows one of two sides, or always the same: equal observations around a reset mean nothing."""

    observation_space, length = spaces.Discrete(2), 4

    def __init__(self, fair):
        self.fair = fair

    def observation(self):
        return np.int64(self.np_random.integers(2) if self.fair else 1)


@pytest.mark.parametrize("fair", [True, False])
def test_observations_that_are_equal_by_chance_or_always_are_fine(small, register, fair):
    config = small(*OF_ONE, f"env.id={register(lambda: Coin(fair))}")
    policy, batch = collected(config, std=0.5)
    assert int(batch["next", "done"].sum()) > 5
    assert check_consistency(policy, batch, config).startswith("consistency check passed: ")


# The network


@pytest.mark.parametrize("where", ["encoder", "cell"])
def test_dropout_that_is_on_is_caught(small, where):
    config = small(*OPTIONS, "cell.num_layers=2")
    policy, batch = collected(config)
    if where == "encoder":
        policy.trunk.encoder.append(nn.Dropout(0.5))
    else:
        policy.trunk.core.layers.dropout = 0.5
    assert "noise is active, or a custom part keeps something between calls" in complaint(config, policy, batch)
    policy.eval()
    check_consistency(policy, batch, config)


def test_a_step_that_depends_on_other_rows_is_named(small, monkeypatch):
    right = Elman.step
    monkeypatch.setattr(Elman, "step", lambda cell, weights, x, states: right(cell, weights, x - x.mean(0), states))
    config = small(*OPTIONS, "backend=scan", "cell=my_package.elman_cell:Elman")
    assert "a custom cell's step depends on other rows of" in complaint(config, *collected(config, std=0.5))


class Noisy(nn.Module):
    """A head whose distribution draws even its deterministic actions."""

    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, features, observation):
        distribution = torch.distributions.Categorical(logits=self.head(features, observation).logits)
        distribution.deterministic_sample = distribution.sample()
        return distribution


def test_a_policy_that_draws_its_actions_in_evaluation_is_caught(config):
    policy, batch = collected(config)
    policy.actor_head = Noisy(policy.actor_head)
    assert complaint(config, policy, batch).startswith(
        f"{NOT_SEEN} two calls of the policy with the same observations and states differ in ['action'],"
    )


def test_weights_that_changed_after_collection_are_caught(config):
    policy, batch = collected(config, std=0.5)
    with torch.no_grad():
        policy.critic_head.bias += 0.5
    sentence = complaint(config, policy, batch)
    assert "'state_value' of environment 0, step 0, is " in sentence
    assert "The states are correct, so the network around the cell has changed" in sentence


def test_a_sequence_that_computes_something_else_than_steps_is_caught(config, monkeypatch):
    policy, batch = collected(config, std=0.5)
    cell = policy.trunk.core
    right = cell._sequence
    monkeypatch.setattr(cell, "_sequence", lambda x, is_init, states: right(x, torch.zeros_like(is_init), states))
    sentence = complaint(config, policy, batch)
    advice = "Sequences and steps of the cell differ. Choose another backend; a custom step may not mix rows."
    assert sentence.endswith(advice)


def test_rounding_is_far_below_the_tolerance_and_a_lost_state_far_above(small):
    config = small(*OPTIONS, "cell.hidden_size=64", "frames_per_batch=1024", "slice_len=256")
    policy, batch = collected(config, std=0.5)
    differences = check_network(policy, batch, config, tolerance=10.0)
    assert max(differences.values()) < TOLERANCE["ieee"] / 10
    env, step = (~batch["is_init"].squeeze(-1)).nonzero()[-1]
    batch[STATE][env, step] = 0
    differences = check_network(policy, batch, config, tolerance=10.0)
    assert max(differences.values()) > 10 * TOLERANCE["ieee"]
