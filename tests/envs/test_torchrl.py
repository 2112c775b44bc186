"""Environments of TorchRL whose keys have names of their own."""

import gymnasium
import pytest
import torch
from collected import collected, collecting, fresh_policy
from rejections import error_of
from tensordict import TensorDict
from torchrl.data import Binary, Bounded, Categorical, Composite, OneHot, Unbounded
from torchrl.envs import EnvBase, SerialEnv, Transform, TransformedEnv

from recurrl.agent import Agent
from recurrl.envs import make_batched_env
from recurrl.envs.passed_env import with_maker
from recurrl.errors import ConfigError, EnvError

N, LENGTH = 3, 3


class Nested(EnvBase):
    """Shows the time and the last push, which is also the reward; an episode has three steps."""

    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(agent=Composite(time=Unbounded(1), push=Unbounded(1)), noise=Unbounded(2))
        self.full_action_spec = Composite(agent=Composite(move=Bounded(-2.0, 6.0, (1,))))
        self.full_reward_spec = Composite(agent=Composite(gain=Unbounded(1)))
        flag = Categorical(2, shape=(1,), dtype=torch.bool)
        self.full_done_spec = Composite(done=flag, terminated=flag.clone())

    def _seen(self, push):
        over = torch.tensor([self.time == LENGTH])
        seen = {"time": torch.full((1,), float(self.time)), "push": push.clone()}
        return {"agent": seen, "noise": torch.ones(2), "done": over, "terminated": over.clone()}

    def _reset(self, tensordict, **_):
        self.time = 0
        return TensorDict(self._seen(torch.zeros(1)))

    def _step(self, tensordict):
        self.time += 1
        push = tensordict["agent", "move"]
        seen = self._seen(push)
        seen["agent"]["gain"] = push.clone()
        return TensorDict(seen)

    def _set_seed(self, seed):
        pass


class Counted(Transform):
    """Counts its steps, and adds their number to the time."""

    def __init__(self):
        super().__init__(in_keys=[("agent", "time")], out_keys=[("agent", "time")])
        self.register_buffer("count", torch.zeros(1))

    def _apply_transform(self, time):
        self.count += 1
        return time + 100 * self.count

    def _reset(self, tensordict, tensordict_reset):
        return tensordict_reset


def many(num_envs):
    return SerialEnv(num_envs, Nested)


def counted(num_envs):
    return TransformedEnv(many(num_envs), Counted())


class Reusing(EnvBase):
    """Its reward is the number of steps, its observation their one-hot code; it returns the same tensors each time.

    Args:
        shrinks_at: shows one bit less from this step on.
        masks: adds a mask of actions.
    """

    def __init__(self, num_envs, shrinks_at=99, masks=False):
        super().__init__(batch_size=[num_envs])
        mask = {"action_mask": Binary(2, (num_envs, 2), dtype=torch.bool)} if masks else {}
        self.observation_spec = Composite(observation=OneHot(8, (num_envs, 8)), **mask, shape=[num_envs])
        self.action_spec, self.reward_spec = Bounded(-1.0, 1.0, (num_envs, 1)), Unbounded((num_envs, 1))
        self.bits, self.reward = self.observation_spec.zero(), torch.zeros(num_envs, 1)
        self.shrinks_at, self.steps = shrinks_at, 0

    def _seen(self):
        self.bits["observation"][:] = torch.arange(8) == self.steps % 8
        seen = self.bits.copy()
        return seen if self.steps < self.shrinks_at else seen.set("observation", seen["observation"][:, 1:])

    def _reset(self, tensordict, **_):
        return self._seen()

    def _step(self, tensordict):
        self.steps += 1
        self.reward += 1
        over = torch.full((*self.batch_size, 1), self.steps % 5 == 0)
        return self._seen().update({"reward": self.reward, "done": over, "terminated": over.clone()})

    def _set_seed(self, seed):
        pass


class DoneOfAgent(Reusing):
    def __init__(self, num_envs):
        super().__init__(num_envs)
        done = Composite(done=Categorical(2, (num_envs, 1), dtype=torch.bool), shape=[num_envs])
        self.full_done_spec = Composite(agent=done, shape=[num_envs])


class Plain(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(0, 1, (1,)), gymnasium.spaces.Discrete(2)


KEYS = ("env.observation_keys=[agent.time]", "env.action_key=agent.move", "env.reward_key=agent.gain")


def of(name, *overrides):
    return ("env=torchrl", f"env.id={__name__}:{name}", *overrides)


@pytest.mark.parametrize("name", ["Nested", "many"])
def test_nested_keys_are_observation_action_and_reward(name, compose):
    env = make_batched_env(compose(*of(name, *KEYS)).env, N, seed=0)
    times, rewards = [env.reset_tensors(None)["observation"]], []
    for move in (0.5, -3.0, 1.0, 0.0):
        after = env.step_tensors(torch.full((N, 1), move))
        rewards.append(after["reward"])
        times += [after["observation"], env.reset_tensors(after["done"])["observation"]]
    assert [each.unique().item() for each in times] == [0, 1, 1, 2, 2, 3, 0, 1, 1]
    assert [each.unique().item() for each in rewards] == [4, -2, 6, 2]
    env.close()


ALL = "env.observation_keys=[agent.time,agent.push,noise]"
SEVERAL = [
    ((ALL, "env.mask=[noise]"), [("agent", "time"), ("agent", "push")]),
    (("env.observation_keys=[agent]",), [("time",), ("push",)]),
]


@pytest.mark.parametrize(("chosen", "entries"), SEVERAL, ids=["by their names", "by that of their group"])
def test_several_observations_are_a_dict(chosen, entries, compose):
    env = make_batched_env(compose(*of("Nested", *KEYS[1:], *chosen)).env, N, seed=0)
    env.reset_tensors(None)
    after = env.step_tensors(torch.ones(N, 1))
    seen = {key[1:]: value.tolist() for key, value in after.items() if key[0] == "observation"}
    assert seen == dict(zip(entries, ([[1]] * N, [[6]] * N), strict=True))
    env.close()


def test_a_policy_is_trained_evaluated_and_used_with_them(small):
    config = small(*of("many", *KEYS))
    policy, rows = collected(config)
    assert rows["observation"][0, :, 0].tolist() == [float(t % LENGTH) for t in range(rows.shape[1])]
    moved = (2 + 4 * rows["action"]).clamp(-2, 6)
    torch.testing.assert_close(rows["next", "reward"], moved, rtol=0, atol=1e-5)
    agent = Agent(policy, config.env)
    assert len(agent.evaluate(episodes=2)) == 2
    env, state = agent.make_env(), agent.initial_state()
    observation, _ = env.reset()
    action, state = agent.act(observation, state)
    assert env.step(action)[1] == pytest.approx(action.item())


def test_memory_may_be_reused_and_bits_are_acted_on(small):
    config = small(*of("Reusing"))
    policy, rows = collected(config)
    steps = torch.arange(rows.shape[1])
    assert rows["next", "reward"][0, :, 0].tolist() == (steps + 1).tolist()
    assert rows["observation"][0].int().argmax(-1).tolist() == (steps % 8).tolist()
    agent = Agent(policy, config.env)
    env = agent.make_env()
    observation, _ = env.reset()
    assert env.observation_space.contains(observation)
    action, _ = agent.act(observation, agent.initial_state())
    assert env.action_space.contains(action)


def test_an_observation_of_another_shape_than_its_spec_ends_the_run(small):
    message = "The vector environment of 4 (test_torchrl:Reusing), at step 3, returned 'observation' of shape [4, 7]; "
    config = small(*of("Reusing", "env.num_envs=4", "env.kwargs.shrinks_at=3"))
    assert error_of(collected, config, kind=EnvError).startswith(message)


def test_the_state_of_transforms_is_in_checkpoints(small):
    config = small(*of("counted", *KEYS, "env.normalize_observation=false"))
    policy = fresh_policy(config)
    with collecting(config, policy) as collector:
        steps = collector.collect().shape[1]
        state = collector.state_dict()
    with collecting(config, policy) as resumed:
        resumed.load_state_dict(state)
        assert resumed.collect()["next", "observation"][0, 0].item() == 100 * (steps + 1) + 1


WRONG = {
    "observation": (
        ("Nested", *KEYS, "env.observation_keys=[agent.position]"),
        "env.observation_keys must name what the environment has: agent, agent.push, agent.time, noise (got "
        "agent.position). Join the names of a nested key by dots.",
    ),
    "no observation": (
        ("Nested", *KEYS, "env.observation_keys=[]"),
        "env.observation_keys must name what the environment has: agent,",
    ),
    "action": (
        ("Nested", *KEYS, "env.action_key=move"),
        "env.action_key must name what the environment has: agent, agent.move (got move",
    ),
    "reward": (
        ("Nested", *KEYS, "env.reward_key=reward"),
        "env.reward_key must name what the environment has: agent.gain (got rew",
    ),
    "no done": (("DoneOfAgent",), "The environment's done_spec must have the entry 'done' (got [('agent', 'done'), "),
    "a mask": (("Reusing", "env.kwargs.masks=true"), "env.action_mask_from_info must be true (got false): env.id="),
    "of Gymnasium": (("Plain",), f"env.id must make an environment of TorchRL (got {__name__}:Plain, which makes a"),
    "an id": (("", "env.id=CartPole-v1"), "env.id must be module:Name with env=torchrl (got CartPole-v1)"),
}


@pytest.mark.parametrize(("overrides", "message"), WRONG.values(), ids=WRONG)
def test_what_the_environment_lacks_or_is_not_is_rejected(overrides, message, compose):
    assert error_of(make_batched_env, compose(*of(*overrides)).env, N, seed=0).startswith(message)


def test_an_object_cannot_take_the_place_of_one_with_keys(compose):
    with pytest.raises(ConfigError, match=r"env=torchrl must have env\.id=module:Name \(got <Nested>, an object\)"):
        with_maker(compose("env=torchrl", "env.id='<Nested>'", *KEYS).env, Nested)
