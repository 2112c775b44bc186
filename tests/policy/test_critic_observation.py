"""``algorithm.critic_observation``: entries of the observation that the critic sees and the actor does not."""

import numpy as np
import pytest
import torch
from collected import collected
from rejections import error_of
from tasks import CUE, MASKED, VECTOR

from recurrl.agent import Agent
from recurrl.algorithms.advantages import next_values
from recurrl.build import make_algorithm, make_policy_for
from recurrl.envs import make_env
from recurrl.envs.sources.memory import MemoryChain, RepeatPrevious, TMaze
from recurrl.errors import ConfigError
from recurrl.evaluation import evaluate
from recurrl.export.export import export

SEES = "algorithm.critic_observation=[privileged]"
DICT = ("env=gym", "env.packages=[tasks]", f"env.id={CUE}", "+env.kwargs.observation=dict")
TASKS = {
    "masked vector": ("env=cartpole_no_velocity", "env.max_episode_steps=5", SEES),
    "with the previous action": ("env=cartpole_no_velocity", "policy.previous_action=true", SEES),
    "vector environment": (*VECTOR, "env.kwargs.max_episode_steps=5", SEES),
    "memory task": ("env=t_maze", "env.kwargs.length=3", "env.max_episode_steps=5", SEES),
    "memory task, masked": ("env=t_maze", "env.kwargs.length=3", "env.max_episode_steps=5", "env.mask=[1]", SEES),
    "entry of a dict": (*DICT, "algorithm.critic_observation=[state]"),
}


@pytest.fixture(params=["recurrent", "feedforward"])
def critic(request):
    return f"algorithm.critic={request.param}"


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_the_actor_does_not_see_what_only_the_critic_does(task, critic, small, collect):
    policy, batch = collect(small(*task, critic))
    slices = batch.reshape(-1, 8)
    observation, state, is_init = policy.inputs(slices)
    other = observation.clone()
    for name in policy.critic_only:
        other[name] = torch.randn_like(other[name])
    with torch.no_grad():
        before, value, states, _ = policy.sequence(observation, state, is_init)
        after, other_value, other_states, _ = policy.sequence(other, state, is_init)
    assert torch.equal(before.log_prob(slices["action"]), after.log_prob(slices["action"]))
    assert not torch.isclose(value, other_value).any()
    assert all(torch.equal(states[key], other_states[key]) for key in policy.trunk.state_keys)
    _, state, is_init = policy.inputs(batch.reshape(-1))
    one, another = (policy.step(each.reshape(-1), state, is_init) for each in (observation, other))
    assert all(map(torch.equal, one[:2], another[:2]))  # the action and its log-probability


def test_the_bootstrap_of_a_truncation_is_the_value_of_all_the_critic_sees(critic, small, collect):
    policy, batch = collect(small(*TASKS["masked vector"], critic))
    cut = batch["next", "truncated"].squeeze(-1)
    assert cut.any()
    other = batch.clone()
    other["next", "observation", "privileged"] = torch.randn_like(other["next", "observation", "privileged"])
    differs = (next_values(batch.clone(), policy) != next_values(other, policy)).squeeze(-1)
    ends = cut.clone()
    ends[:, -1] = ~batch["next", "terminated"].squeeze(-1)[:, -1]  # a row's end is bootstrapped, too
    assert torch.equal(differs, ends)


WAYS = [(), ("state=refresh",), ("buffer=on_policy",)]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "".join(way) or "defaults")
def test_every_way_of_learning_takes_it(way, critic, small):
    config = small(*TASKS["masked vector"], critic, *way)
    policy, batch = collected(config)
    before = [value.clone() for value in policy.parameters()]
    assert np.isfinite(list(make_algorithm(config, policy).update(batch, progress=0.0).values())).all()
    assert not any(map(torch.equal, before, policy.parameters()))
    counted = [value for name, value in policy.named_buffers() if name.endswith("moments.count")]
    assert [float(count) for count in counted] == [64.0, 64.0, 64.0]  # the actor's entry, and the critic's two


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_acting_needs_no_entry_of_the_critics(task, small, collect):
    config = small(*task, "algorithm.critic=recurrent")
    policy, _ = collect(config)
    agent = Agent(policy, config.env)
    env = agent.make_env()
    observation, _ = env.reset(seed=3)
    if isinstance(observation, dict):
        observation.pop("state")
    action, _ = agent.act(observation, agent.initial_state())
    batched = make_env(config.env, 1, 3, policy).reset()
    if not isinstance(observation, dict) and "privileged" in policy.critic_only and config.env.mask:
        batched["observation", "observation"] = torch.from_numpy(np.delete(observation, config.env.mask))[None]
        assert int(action) == int(policy.step(*policy.inputs(batched))[0])
    assert env.action_space.contains(action)
    assert evaluate(config.env, policy, 2, seed=0)


def test_an_exported_policy_has_no_input_for_them(small, collect, tmp_path):
    config = small(*TASKS["entry of a dict"], "algorithm.critic=feedforward")
    policy, _ = collect(config)
    inputs = export(Agent(policy, config.env), tmp_path, {}, formats=["pt2"])["inputs"]
    assert [name for name in inputs if name.startswith("observation")] == ["observation.more.symbol"]


def shown(task, **state):
    """What a task shows the critic, after its first environment was brought into a state."""
    task.reset_tensors(None)
    for name, value in state.items():
        getattr(task, name)[0, ...] = torch.tensor(value)
    plain = task.observe()
    task.show_privileged()
    observation = task.reset_tensors(torch.zeros(2, 1, dtype=torch.bool))
    assert torch.equal(observation["observation"], plain)
    assert observation["privileged"].shape == task.observation_spec["privileged"].shape
    return observation["privileged"][0].tolist()


def test_memory_tasks_show_what_they_hide():
    assert shown(TMaze(2, length=4), way=3, position=3) == [1.0, 0.75]
    assert shown(MemoryChain(2, length=5, bits=3), context=[0, 1, 1], query=2) == [2.0, -1.0, 1.0, 1.0]
    cards = RepeatPrevious(2, k=2)
    assert shown(cards, cards=[3, 1, 0, *[0] * (cards.cards.shape[1] - 3)]) == [0.0] * 4  # the first action: no answer
    cards.step_tensors(torch.zeros(2, dtype=torch.int64))
    assert cards.privileged()[0].tolist() == [0.0, 0.0, 0.0, 1.0]


class Silent(TMaze):
    """A task that does not say what it hides."""

    def privileged(self):
        return None


OWN = "algorithm.critic=feedforward"
REJECTED = {
    "none hidden": (("env=gym", "env.id=CartPole-v1", SEES), "none: it is not a dict; got privileged.* set env.mask"),
    "no such entry": ((*DICT, "algorithm.critic_observation=[goal]"), "entries .more, state; got goal"),
    "nothing left": ((*DICT, "algorithm.critic_observation=[state,more]"), "must name some, but not all"),
    "task that does not say": (
        ("env=t_maze", f"env.id={__name__}:Silent", SEES),
        "got privileged.* define the method privileged of a memory task",
    ),
}


@pytest.mark.parametrize(("task", "message"), REJECTED.values(), ids=REJECTED)
def test_what_cannot_be_shown_is_rejected(task, message, small):
    with pytest.raises(ConfigError, match=message):
        make_policy_for(small(*task, OWN))


def test_a_mask_of_actions_is_not_the_critics_alone(configure):
    task = {"mask_in": "observation", "action": "discrete"}
    config = configure(MASKED, "algorithm.critic_observation=[action_mask]", OWN, **task)
    assert "must name some, but not all" in error_of(make_policy_for, config)
