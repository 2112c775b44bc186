"""The start-up check: one line when right, and an error message for each fault, which is injected here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import Tensor, nn
from torchrl.collectors import Collector
from torchrl.envs import InitTracker, TransformedEnv
from wrong_environments import Stale

from recurrl.build import make_collector, make_consistency_check, make_policy_for, set_process_state
from recurrl.config import TrainConfig
from recurrl.consistency import TOLERANCE, check_network
from recurrl.envs.sources import gymnasium as gymnasium_source
from recurrl.errors import ConsistencyError
from recurrl.policy import Policy, PolicyModule

Compose = Callable[..., TrainConfig]
Register = Callable[[Callable[[], Any]], str]

OPTIONS = ("frames_per_batch=128", "slice_len=8", "backend=pad", "env.max_episode_steps=11")
STATE = "recurrent_state"


@pytest.fixture(scope="module")
def config(small: Compose) -> TrainConfig:
    return small(*OPTIONS)


def make(config: TrainConfig) -> Policy:
    """A policy far from its initial zeros, so that a wrong state shows."""
    set_process_state(config)
    policy = make_policy_for(config)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return policy


def collect(config: TrainConfig, policy: Policy) -> TensorDictBase:
    collector = make_collector(config, policy)
    batch = collector.collect()
    collector.shutdown()
    return batch


def complaint(config: TrainConfig, policy: Policy, batch: TensorDictBase) -> str:
    with pytest.raises(ConsistencyError) as caught:
        make_consistency_check(config)(policy, batch)
    return str(caught.value)


# What is right


@pytest.mark.parametrize("cell", ["gru", "lstm", "mingru", "none"])
@pytest.mark.parametrize("env", ["cartpole_no_velocity", "pendulum_no_velocity"])
def test_a_batch_that_is_right_gives_one_line(small: Compose, env: str, cell: str) -> None:
    config = small(*OPTIONS, f"env={env}", f"cell={cell}", "cell.num_layers=2", "backend=scan")
    policy = make(config)
    line = make_consistency_check(config)(policy, collect(config, policy))
    assert line.startswith("consistency check: 128 frames with ")
    assert "log-probability" in line
    assert "value" in line
    assert ("state" in line) == (cell != "none")
    assert "\n" not in line


def test_the_check_changes_neither_batch_nor_policy_nor_the_random_numbers_to_come(small: Compose) -> None:
    # No episode ends in the batch, so that the check acts at random in environments of its own.
    config = small(*OPTIONS[:-1], "env=pendulum_no_velocity")
    policy = make(config)
    batch = collect(config, policy)
    before, weights = batch.clone(), {name: value.clone() for name, value in policy.state_dict().items()}
    torch.manual_seed(7)
    make_consistency_check(config)(policy, batch)
    drawn = torch.rand(3)
    torch.manual_seed(7)
    assert torch.equal(torch.rand(3), drawn)
    assert set(batch.keys(True, True)) == set(before.keys(True, True))
    assert (batch == before).all()
    assert all(torch.equal(value, weights[name]) for name, value in policy.state_dict().items())
    assert all(parameter.grad is None for parameter in policy.parameters())


# Entries that are missing


def test_an_environment_without_an_init_tracker_is_caught(config: TrainConfig) -> None:
    policy = make(config)
    env = gymnasium_source.make(config.env).make(4)
    primer = policy.trunk.core.make_tensordict_primer()
    # Without the entry the recurrent module does not run at all; here somebody has made it optional.
    ignoring = TensorDictSequential(TensorDictModule(no_marks, ["observation"], ["is_init"]), PolicyModule(policy))
    collector = Collector(
        TransformedEnv(env, primer), ignoring, frames_per_batch=128, total_frames=-1, trust_policy=True
    )
    batch = next(iter(collector))
    collector.shutdown()
    sentence = complaint(config, policy, batch.exclude("is_init"))
    assert "the batch has no entry 'is_init'" in sentence
    assert "Append torchrl.envs.InitTracker()" in sentence
    assert "marked by 'is_init' as the start of an episode, but one starts there" in complaint(config, policy, batch)


def no_marks(observation: Tensor) -> Tensor:
    return torch.zeros(*observation.shape[:-1], 1, dtype=torch.bool)


def test_an_environment_without_a_primer_is_refused(config: TrainConfig) -> None:
    env = TransformedEnv(gymnasium_source.make(config.env).make(4), InitTracker())
    with pytest.raises(KeyError, match=f"needs the entries .*{STATE}.*get_primers_from_module"):
        PolicyModule(make(config))(env.reset())


def test_a_batch_without_the_recurrent_state_is_caught(config: TrainConfig) -> None:
    policy = make(config)
    sentence = complaint(config, policy, collect(config, policy).exclude(STATE))
    assert f"the batch does not hold the recurrent state '{STATE}', so the policy acted without memory" in sentence
    assert "make_tensordict_primer()" in sentence


# Recurrent states


def test_a_state_zeroed_in_mid_episode_is_caught_where_it_happens(config: TrainConfig) -> None:
    policy = make(config)
    batch = collect(config, policy)
    batch["next", STATE][2, 4] = batch[STATE][2, 5] = 0
    sentence = complaint(config, policy, batch)
    assert f"('next', '{STATE}') of environment 2, step 4, was 0 when collected but is " in sentence
    assert "zeroed" in sentence


def test_a_state_zeroed_between_two_steps_is_caught_where_it_happens(config: TrainConfig) -> None:
    policy = make(config)
    batch = collect(config, policy)
    batch[STATE][1, 3] = 0
    sentence = complaint(config, policy, batch)
    assert f"'{STATE}' of environment 1, step 3, is not what the previous step of the episode led to" in sentence
    assert "zeroed, for example" in sentence


def test_a_state_that_outlives_its_episode_is_caught(config: TrainConfig) -> None:
    policy = make(config)
    batch = collect(config, policy)
    n, t = (int(index) for index in batch["is_init"].squeeze(-1)[:, 1:].nonzero()[0])
    batch[STATE][n, t + 1] = 1.0
    assert f"environment {n}, step" in complaint(config, policy, batch)


def test_marks_that_are_not_at_the_ends_of_episodes_are_caught(config: TrainConfig) -> None:
    policy = make(config)
    batch = collect(config, policy)
    batch["is_init"][3, 2] = True
    assert "environment 3, step 2, is marked by 'is_init' as the start of an episode, but no" in complaint(
        config, policy, batch
    )


# Observations


class ResetsItself(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Hands out the first observation of the next episode as the last of this one."""

    first: Any = None

    def reset(self, **kwargs: Any) -> Any:
        if self.first is None or kwargs.get("seed") is not None:
            return self.env.reset(**kwargs)
        first, self.first = self.first, None
        return first, {}

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            self.first = observation = self.env.reset()[0]
        return observation, reward, terminated, truncated, info


OF_ONE = (*OPTIONS[:-1], "env=gym", "env.normalize_observation=false")
"""Where an environment ends its own episodes, without a limit around it."""


@pytest.mark.parametrize("wrapper", [Stale, ResetsItself])
def test_a_wrong_observation_after_resets_is_caught(small: Compose, register: Register, wrapper: Any) -> None:
    name = register(lambda: wrapper(gymnasium.make("CartPole-v1", max_episode_steps=11)))
    config = small(*OF_ONE, f"env.id={name}")
    policy = make(config)
    sentence = complaint(config, policy, collect(config, policy))
    assert "resets the observation ['observation'] equals the last one of the previous episode, bit for bit" in sentence
    assert "disable automatic resets" in sentence


def test_a_wrong_observation_after_resets_is_caught_though_no_episode_ends_in_the_batch(
    small: Compose, register: Register
) -> None:
    name = register(lambda: Stale(gymnasium.make("Pendulum-v1")))
    config = small(*OF_ONE, f"env.id={name}")
    policy = make(config)
    batch = collect(config, policy)
    assert not batch["next", "done"].any()
    assert "after each of 8 resets" in complaint(config, policy, batch)


class Coin(gymnasium.Env[Any, Any]):
    """Shows one of two sides, or always the same: equal observations around a reset mean nothing."""

    observation_space, action_space = spaces.Discrete(2), spaces.Discrete(2)

    def __init__(self, fair: bool) -> None:
        self.fair, self.steps = fair, 0

    def _side(self) -> np.int64:
        return np.int64(self.np_random.integers(2) if self.fair else 1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._side(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self._side(), 0.0, self.steps == 4, False, {}


@pytest.mark.parametrize("fair", [True, False])
def test_observations_that_are_equal_by_chance_or_always_are_fine(
    small: Compose, register: Register, fair: bool
) -> None:
    config = small(*OF_ONE, f"env.id={register(lambda: Coin(fair))}")
    policy = make(config)
    batch = collect(config, policy)
    assert int(batch["next", "done"].sum()) > 5
    assert make_consistency_check(config)(policy, batch).startswith("consistency check: ")


def test_an_observation_that_changes_between_two_steps_is_caught(config: TrainConfig) -> None:
    policy = make(config)
    batch = collect(config, policy)
    batch["observation"][2, 1, 0] += 0.25
    sentence = complaint(config, policy, batch)
    assert "'observation' of environment 2, step 1, is not what the previous step of the episode led to" in sentence
    assert "(difference 0.25)" in sentence


def test_an_observation_that_is_not_finite_is_caught(config: TrainConfig) -> None:
    policy = make(config)
    batch = collect(config, policy)
    batch["observation"][0, 6, 1] = torch.nan
    assert "'observation' of environment 0, step 6, is not finite" in complaint(config, policy, batch)


# The network


@pytest.mark.parametrize("where", ["encoder", "cell"])
def test_dropout_that_is_on_is_caught(small: Compose, where: str) -> None:
    config = small(*OPTIONS, "cell.num_layers=2")
    policy = make(config)
    if where == "encoder":
        policy.trunk.encoder.append(nn.Dropout(0.5))
    else:
        policy.trunk.core.layers.dropout = 0.5
    assert "dropout or another source of noise is active" in complaint(config, policy, collect(config, policy))
    policy.eval()
    make_consistency_check(config)(policy, collect(config, policy))


class Noisy(nn.Module):
    """A head whose distribution draws even its deterministic actions."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, features: Tensor, observation: Tensor) -> torch.distributions.Distribution:
        distribution = torch.distributions.Categorical(logits=self.head(features, observation).logits)
        distribution.deterministic_sample = distribution.sample()
        return distribution


def test_a_policy_that_draws_its_actions_in_evaluation_is_caught(config: TrainConfig) -> None:
    policy = make(config)
    policy.actor_head = Noisy(policy.actor_head)
    assert complaint(config, policy, collect(config, policy)).startswith("Evaluation would be random")


def test_weights_that_changed_after_collection_are_caught(config: TrainConfig) -> None:
    policy = make(config)
    batch = collect(config, policy)
    with torch.no_grad():
        policy.critic_head.bias += 0.5
    sentence = complaint(config, policy, batch)
    assert "'state_value' of environment 0, step 0, was " in sentence
    assert "The states are correct, so the network around the cell has changed" in sentence


def test_a_sequence_that_computes_something_else_than_steps_is_caught(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = make(config)
    batch = collect(config, policy)
    cell = policy.trunk.core
    right = cell._sequence
    monkeypatch.setattr(cell, "_sequence", lambda x, is_init, states: right(x, torch.zeros_like(is_init), states))
    sentence = complaint(config, policy, batch)
    assert sentence.endswith(
        "The cell computes different results in sequence mode and step by step. Choose another backend."
    )


def test_what_rounding_does_is_far_below_the_tolerance_and_a_lost_state_far_above(small: Compose) -> None:
    config = small(*OPTIONS, "cell.hidden_size=64", "frames_per_batch=1024", "slice_len=256")
    policy = make(config)
    batch = collect(config, policy)
    differences = check_network(policy, batch, config.slice_len, config.minibatch_slices, tolerance=10.0)
    assert max(differences.values()) < TOLERANCE["ieee"] / 10
    batch[STATE][0, 128] = 0
    assert (
        max(check_network(policy, batch, config.slice_len, config.minibatch_slices, tolerance=10.0).values())
        > 10 * TOLERANCE["ieee"]
    )
