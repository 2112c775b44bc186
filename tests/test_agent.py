"""Agents: what goes in and out is the plain environment's, and what they do is what an evaluation does."""

import re

import gymnasium
import numpy as np
import pytest
import torch
from counting_env import Counting
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from rejections import error_of
from tasks import ACTIONS, CUE, MASKED, OBSERVATIONS, PREVIOUS

from recurrl.agent import NamedArray
from recurrl.evaluation import SEED_OFFSET, evaluate
from recurrl.runtime.seeds import seeds


class Tuples(Counting):
    """Observations and actions are tuples, with a number in units of its own."""

    observation_space = spaces.Tuple((spaces.Box(-9, 9, (2,), np.float64), spaces.Discrete(3)))
    action_space = spaces.Tuple((spaces.Box(10, 30, (1,), np.float64), spaces.MultiDiscrete([2, 3], np.int32)))
    length = 4

    def reward(self, action):
        assert self.action_space.contains(action), action
        return float(action[0][0] + action[1].sum())

    def observation(self):
        return self.np_random.uniform(-9, 9, 2), np.int64(self.np_random.integers(3))


gymnasium.register("recurrl-test/Tuples-v0", entry_point=Tuples)


def many(num_envs):
    return SyncVectorEnv([Tuples] * num_envs, autoreset_mode=AutoresetMode.DISABLED)


def played(agent, seed, episodes):
    """The returns in plain environments that begin as those of an evaluation do."""
    envs = SyncVectorEnv([agent.make_env] * episodes, autoreset_mode=AutoresetMode.SAME_STEP)
    envs.reset(seed=seeds(seed + SEED_OFFSET, episodes))
    observed, info = envs.reset()
    state, is_init, rewards = agent.initial_state(episodes), np.zeros(episodes, bool), np.zeros(episodes, np.float32)
    totals, running = np.zeros(episodes), np.ones(episodes, bool)
    while running.any():
        actions, state = agent.act(observed, state, is_init, reward=rewards, action_mask=info.get("action_mask"))
        observed, rewards, ended, cut, info = envs.step(actions)
        rewards, is_init = rewards.astype(np.float32), ended | cut
        totals += rewards * running
        running &= ~is_init
    return totals.tolist()


KINDS = [
    *((CUE, (*PREVIOUS, "cell=lstm"), {"action": kind, "observation": "dict", "delay": 6}) for kind in ACTIONS),
    *((CUE, (), {"observation": kind, "delay": 6}) for kind in OBSERVATIONS if kind != "image"),
    (CUE, ("policy.bounded_action=tanh", "cell.num_layers=2"), {"action": "bounded", "delay": 6}),
    (CUE, ("algorithm.critic=recurrent",), {"delay": 6}),
    *((CUE, (f"cell={cell}",), {"observation": "dict", "action": "bounded"}) for cell in ("mingru", "none")),
    *((MASKED, (), {"mask_in": "observation", "action": kind}) for kind in ("discrete", "multi_discrete")),
    (MASKED, ("env.action_mask_from_info=true", *PREVIOUS), {"mask_in": "info", "action": "multi_discrete"}),
    ("recurrl-test/Tuples-v0", PREVIOUS, {}),
    ("recurrl-test/Tuples-v0", ("env.mask=[0]",), {}),
    (CUE, ("env.mask=[state]",), {"observation": "dict", "delay": 6}),
    ("Pendulum-v1", ("env.mask=[2]", "env.max_episode_steps=30", *PREVIOUS), {}),
    ("Pendulum-v1", ("env.wrappers=[gymnasium.wrappers:FlattenObservation]", "env.max_episode_steps=9"), {}),
]


@pytest.mark.parametrize(("env", "overrides", "kwargs"), KINDS)
def test_an_agent_returns_bit_for_bit_what_an_evaluation_does(agent_of, env, overrides, kwargs):
    agent, config = agent_of(env, *overrides, **kwargs)
    assert played(agent, 7, 4) == evaluate(config.env, agent.policy, 4, 7)


def test_an_agent_says_what_it_is_and_plays_episodes(agent_of):
    agent, config = agent_of("CartPole-v1", "env.mask=[1,3]")
    assert re.fullmatch(r"Agent\(CartPole-v1, Box\(.*\) to Discrete\(2\), [\d,]+ parameters on cpu\)", repr(agent))
    for batch, rows in ((None, 1), (5, 5)):
        held = f"recurrent_state [{rows}, 1, 8], previous_action [{rows}, 2], is_init [{rows}], batch={batch}"
        assert repr(agent.initial_state(batch)) == f"AgentState({held})"
    assert agent.evaluate(3, seed=7) == evaluate(config.env, agent.policy, 3, 7)
    assert agent.evaluate(3, seed=7, deterministic=False) != agent.evaluate(3, seed=7)
    assert "episodes must be at least 1 (got 0)" in error_of(agent.evaluate, 0)


def test_an_episode_that_begins_starts_from_nothing(agent_of):
    agent, _ = agent_of(CUE, *PREVIOUS, "cell=lstm", delay=6)
    observation = np.float32([0.3, 0.4, 0.5])
    fresh = agent.act(observation, agent.initial_state(), reward=5.0)
    _, state = fresh
    for _ in range(3):
        _, state = agent.act(observation, state, reward=1.0)
    action, again = agent.act(observation, state, is_init=True, reward=1.0)
    assert action == fresh[0]
    for name, value in again.tensors.items():
        assert torch.equal(value, fresh[1].tensors[name]), name


def test_sampled_actions_are_those_of_the_policys_step(agent_of):
    agent, _ = agent_of(CUE, action="discrete")
    policy, observation = agent.policy, torch.randn(50, 3)
    torch.manual_seed(0)
    action, _ = agent.act(observation, agent.initial_state(50), deterministic=False)
    torch.manual_seed(0)
    noise = torch.randn(50, policy.noise_size)
    assert np.array_equal(action, policy.step(observation, policy.initial_state(50), None, noise).action)


def test_correlated_noise_goes_with_the_state(agent_of):
    agent, _ = agent_of(CUE, "policy.noise_correlation=0.9", "cell=none", action="unbounded")
    observation, state = np.zeros((4000, 3), np.float32), agent.initial_state(4000)
    first, state = agent.act(observation, state, deterministic=False)
    second, state = agent.act(observation, state, deterministic=False)
    assert np.corrcoef(first[:, 0], second[:, 0])[0, 1] == pytest.approx(0.9, abs=0.03)
    third, _ = agent.act(observation, state, is_init=np.ones(4000, bool), deterministic=False)
    assert abs(np.corrcoef(second[:, 0], third[:, 0])[0, 1]) < 0.06


@pytest.mark.parametrize("source", [("env=gym",), ("env=vec_env", "env.resets=disabled")])
def test_an_agent_of_many_environments_acts_in_one(agent_of, source):
    agent, _ = agent_of(f"{__name__}:many", *source)
    env, observation = agent.make_env(), Tuples.observation_space.sample()
    action, _ = agent.act(observation, agent.initial_state())
    assert Tuples.action_space.contains(action)
    assert env.reset()[0].keys() == env.step(action)[0].keys() == agent.observation_space.keys()


BAD = {
    "a shape": (np.zeros(4, np.float32), None, "observation must have the shape (3,) (got (4,)). Pass what"),
    "one for a batch": (np.zeros(3, np.float32), 2, "observation must have the shape (2, 3) (got (3,))"),
    "a dtype": (np.zeros(3, np.complex64), None, "observation must have the dtype float32 (got complex64)"),
    "bytes": (np.zeros(3, np.uint8), None, "observation must have the dtype float32 (got uint8)"),
    "NaN": (np.float32([[0, 0, 0], [0, np.nan, 0]]), 2, "observation must be finite (got nan at index [1, 1])"),
}


def test_a_number_that_its_dtype_cannot_hold_is_rejected():
    entry = NamedArray("n", spaces.Box(-9, 9, (2,), np.int8))
    assert "n must hold numbers of int8 (got 300 at index [0])" in error_of(entry.read, [300, 0], (), "")


@pytest.mark.parametrize("case", BAD)
def test_an_observation_that_does_not_fit_is_rejected(agent_of, case):
    agent, _ = agent_of("Pendulum-v1")
    observation, batch, message = BAD[case]
    assert message in error_of(agent.act, observation, agent.initial_state(batch))


def test_a_hidden_entry_may_be_anything(agent_of):
    agent, _ = agent_of("Pendulum-v1", "env.mask=[2]")
    action, _ = agent.act(np.float32([0, 0, np.nan]), agent.initial_state())
    assert np.isfinite(action).all()


def test_states_and_flags_that_do_not_fit_are_rejected(agent_of):
    agent, _ = agent_of(CUE)
    other, _ = agent_of(CUE, "cell=lstm")
    one, two = np.zeros(3, np.float32), np.zeros((2, 3), np.float32)
    assert "got a NoneType" in error_of(agent.act, one, None)
    assert "Pass a state of this agent" in error_of(agent.act, one, other.initial_state())
    is_init = np.zeros(3, bool)
    assert "is_init must have the shape" in error_of(agent.act, two, agent.initial_state(2), is_init=is_init)
    assert "must be at least 1" in error_of(agent.initial_state, 0)
    parts, _ = agent_of(CUE, observation="dict")
    missing, wrong = {"state": np.float32(0)}, {"state": np.float32(0), "more": {"symbol": np.int64(3)}}
    assert "must have the entry observation.more.symbol" in error_of(parts.act, missing, parts.initial_state())
    assert "integers from 0 to 2" in error_of(parts.act, wrong, parts.initial_state())


BAD_MASKS = [(None, "Pass action_mask="), ([0.0, *[-np.inf] * 5], "action_mask must have the dtype int8")]


def test_what_the_policy_sees_besides_must_be_passed(agent_of):
    agent, _ = agent_of(CUE, *PREVIOUS)
    observation = np.zeros(3, np.float32)
    _, state = agent.act(observation, agent.initial_state())  # there was no reward before the first step
    (one, _), (scalar, _) = (agent.act(observation, state, reward=reward) for reward in ([0.5], 0.5))
    assert np.array_equal(one, scalar)
    assert "Pass reward=" in error_of(agent.act, observation, state)
    masked, _ = agent_of(MASKED, "env.action_mask_from_info=true", mask_in="info", action="discrete")
    for mask, message in BAD_MASKS:
        assert message in error_of(masked.act, np.zeros(2, np.float32), masked.initial_state(), action_mask=mask)
    nothing_in_one = np.eye(2, 6) * [[1], [0]]
    error = error_of(masked.act, np.zeros((2, 2), np.float32), masked.initial_state(2), action_mask=nothing_in_one)
    assert "must allow an action (got none in environment 1" in error
