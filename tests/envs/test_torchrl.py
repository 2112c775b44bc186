"""Environments of TorchRL whose keys have names of their own."""

from itertools import count

import numpy as np
import pytest
import torch
from collected import acted, collected, collecting, fresh_policy
from counting_env import Counting
from gymnasium import spaces
from rejections import error_of
from torchrl.data import Binary, Bounded, Categorical, Composite, OneHot, Unbounded
from torchrl.envs import CatFrames, EnvBase, GymWrapper, ObservationNorm, RenameTransform, SerialEnv, TransformedEnv
from torchrl.envs.transforms import VecNormV2

from recurrl.agent import Agent
from recurrl.envs import make_batched_env
from recurrl.envs.passed_env import with_maker
from recurrl.errors import ConfigError, EnvError
from recurrl.evaluation import evaluate

N, LENGTH = 3, 3
ONE = spaces.Box(-np.inf, np.inf, (1,), np.float32)


class Ramp(Counting):
    """Shows the time and the last push, which is also the reward; an episode has three steps."""

    observation_space = spaces.Dict({"noise": spaces.Box(0, 9, (2,)), "push": ONE, "time": ONE})
    action_space = spaces.Box(-2.0, 6.0, (1,), np.float32)
    length = LENGTH

    def reset(self, **options):
        self.push = 0.0
        return super().reset(**options)

    def step(self, action):
        assert self.action_space.contains(action), action
        self.push = float(action[0])
        return super().step(action)

    def observation(self):
        return {"noise": np.ones(2, np.float32), "push": np.float32([self.push]), "time": np.float32([self.steps])}

    def reward(self, action):
        return self.push


def nested():
    names = {"time": ("agent", "time"), "push": ("agent", "push"), "reward": ("agent", "gain")}
    renamed = RenameTransform([*names], [*names.values()], ["action"], [("agent", "move")])
    return TransformedEnv(GymWrapper(Ramp()), renamed)


def many(num_envs):
    return SerialEnv(num_envs, nested)


MADE = count()


def shifted(num_envs):
    """Adds to the time how many of these were made before."""
    return TransformedEnv(many(num_envs), ObservationNorm(float(next(MADE)), 1.0, [("agent", "time")]))


class Reusing(EnvBase):
    """Its reward is the number of steps, its observation their one-hot code; it returns the same tensors each time.

    Args:
        shrinks_at: shows one bit less from this step on.
        masks: adds a mask of actions.
        shape: () for a spec of one number.
        rewards: the number of rewards in its spec.
    """

    def __init__(self, num_envs, shrinks_at=99, masks=False, shape=(8,), rewards=1):
        super().__init__(batch_size=[num_envs])
        mask = {"action_mask": Binary(2, (num_envs, 2), dtype=torch.bool)} if masks else {}
        seen = OneHot(8, (num_envs, 8)) if shape else Unbounded((num_envs,))
        self.observation_spec = Composite(observation=seen, **mask, shape=[num_envs])
        self.action_spec, self.reward_spec = Bounded(-1.0, 1.0, (num_envs, 1)), Unbounded((num_envs, rewards))
        done, dones = (Categorical(2, (num_envs, *shape), dtype=torch.bool) for shape in ((1,), (2, 1)))
        self.full_done_spec = Composite(done=done, agents=Composite(done=dones), shape=[num_envs])
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
        over = (torch.arange(len(self.reward)) + self.steps).unsqueeze(-1) % 5 == 0
        flags = {"done": over, "terminated": over.clone(), "agents": {"done": over.unsqueeze(1).expand(-1, 2, 1)}}
        return self._seen().update({"reward": self.reward, **flags})

    def _set_seed(self, seed):
        pass


class Choosing(Counting):
    """Shows the number of steps, one of four, and allows actions for some of them."""

    observation_space = spaces.Dict(observation=spaces.Discrete(4), action_mask=spaces.MultiBinary(2))

    def observation(self):
        return {"observation": self.steps % (self.allowed + 1), "action_mask": np.int8([self.steps < self.allowed] * 2)}


def choosing(num_envs, allowed):
    Choosing.allowed = allowed
    return SerialEnv(num_envs, lambda: GymWrapper(Choosing(), categorical_action_encoding=True))


def averaging(num_envs):
    return TransformedEnv(many(num_envs), VecNormV2([("agent", "time")]))


def stacking(num_envs):
    return TransformedEnv(many(num_envs), CatFrames(2, -1, [("agent", "time")]))


class DoneOfAgent(Reusing):
    def __init__(self, num_envs):
        super().__init__(num_envs)
        self.full_done_spec = Composite(agents=self.full_done_spec["agents"], shape=[num_envs])


KEYS = ("env.observation_keys=[agent.time]", "env.action_key=agent.move", "env.reward_key=agent.gain")


def of(name, *overrides):
    return ("env=torchrl", f"env.id={__name__}:{name}", *overrides)


ALL = "env.observation_keys=[agent.time,agent.push,noise]"
NAMED, GROUP = (ALL, "env.mask=[noise]"), ("env.observation_keys=[agent]",)
SEVERAL = [(NAMED, [("agent", "time"), ("agent", "push")]), (GROUP, [("time",), ("push",)])]


@pytest.mark.parametrize(("chosen", "entries"), SEVERAL, ids=["by their names", "by that of their group"])
def test_several_observations_are_a_dict(chosen, entries, compose):
    env = make_batched_env(compose(*of("nested", *KEYS[1:], *chosen)).env, N, seed=0)
    env.reset_tensors(None)
    after = env.step_tensors(torch.ones(N, 1))
    seen = {key[1:]: value.tolist() for key, value in after.items() if key[0] == "observation"}
    assert seen == dict(zip(entries, ([[1]] * N, [[6]] * N), strict=True))
    env.close()


@pytest.mark.parametrize("name", ["nested", "many"])
def test_a_policy_is_trained_evaluated_and_used_with_nested_keys(name, small):
    config = small(*of(name, *KEYS))
    policy, rows = collected(config)
    times = torch.arange(rows.shape[1]).float().expand(rows.shape)[..., None] % LENGTH
    assert torch.equal(rows["observation"], times)
    assert torch.equal(rows["next", "observation"], times + 1)
    moved = (2 + 4 * rows["action"]).clamp(-2, 6)
    torch.testing.assert_close(rows["next", "reward"], moved, rtol=0, atol=1e-5)
    agent = Agent(policy, config.env)
    assert len(agent.evaluate(episodes=2)) == 2
    ((action, _, reward, *_),) = acted(agent, 1)
    assert reward == pytest.approx(action.item())


def test_memory_may_be_reused_and_bits_are_acted_on(small):
    config = small(*of("Reusing"))
    policy, rows = collected(config)
    steps = torch.arange(rows.shape[1])
    assert rows["next", "reward"][0, :, 0].tolist() == (steps + 1).tolist()
    assert rows["observation"][0].int().argmax(-1).tolist() == (steps % 8).tolist()
    for _, _, reward, *_ in acted(Agent(policy, config.env), 2):
        assert isinstance(reward, float)


def test_an_observation_of_another_shape_than_its_spec_ends_the_run(small):
    message = "The vector environment of 4 (test_torchrl:Reusing), at step 3, returned 'observation' of shape [4, 7]; "
    config = small(*of("Reusing", "env.num_envs=4", "env.kwargs.shrinks_at=3"))
    assert error_of(collected, config, kind=EnvError).startswith(message)


UNUSABLE = {9: "step 4, returned an out-of-range value of 'observation': 4.", 3: "step 3, returned no allowed action"}


@pytest.mark.parametrize("allowed", UNUSABLE)
def test_what_a_policy_cannot_use_ends_training_and_evaluation(allowed, small):
    config = small(*of("choosing", f"env.kwargs.allowed={allowed}", "env.action_mask_from_info=true"))
    assert UNUSABLE[allowed] in error_of(collected, config, kind=EnvError)
    assert UNUSABLE[allowed] in error_of(evaluate, config.env, None, 4, seed=0, kind=EnvError)


def test_the_state_of_transforms_is_in_checkpoints(small):
    config = small(*of("shifted", *KEYS, "env.normalize_observation=false"))
    policy = fresh_policy(config)
    with collecting(config, policy) as collector, collecting(config, policy) as resumed:
        first = collector.collect()["observation"][:, 0].clone()
        resumed.load_state_dict(collector.state_dict())
        assert torch.equal(resumed.collect()["observation"][:, 0], first)


def test_transforms_may_keep_frames_in_an_evaluation_but_no_statistics(small):
    assert len(evaluate(small(*of("stacking", *KEYS)).env, None, 4, seed=0)) == 4
    assert "must not keep statistics" in error_of(evaluate, small(*of("averaging", *KEYS)).env, None, 4, seed=0)


KEYED, HAS = ("nested", *KEYS), "must name what the environment has:"
WRONG = {
    "observation": (
        (*KEYED, "env.observation_keys=[agent.position]"),
        f"env.observation_keys {HAS} agent, agent.push, agent.time, noise (got agent.position). Choose env=torchrl "
        "to name its keys, with dots in a nested one; or rename them, for example with torchrl.envs.RenameTransform.",
    ),
    "no observation": ((*KEYED, "env.observation_keys=[]"), f"env.observation_keys {HAS} agent,"),
    "action": ((*KEYED, "env.action_key=move"), f"env.action_key {HAS} agent, agent.move (got move"),
    "reward": ((*KEYED, "env.reward_key=reward"), f"env.reward_key {HAS} agent.gain (got rew"),
    "no done": (("DoneOfAgent",), "The environment's done_spec must have the entry 'done' (got [('agents', 'done'), "),
    "a mask": (("Reusing", "env.kwargs.masks=true"), "env.action_mask_from_info must be true (got false): env.id="),
    "a scalar": (("Reusing", "env.kwargs.shape=[]"), "The environment's 'observation' must have a dimension after the"),
    "rewards": (("Reusing", "env.kwargs.rewards=2"), "The environment's 'reward' must be one number per environment ("),
    "of Gymnasium": (("Ramp",), f"env.id must make an environment of TorchRL (got {__name__}:Ramp, which makes a"),
    "an id": (("", "env.id=CartPole-v1"), "env.id must be module:Name with env=torchrl (got CartPole-v1)"),
}


@pytest.mark.parametrize(("overrides", "message"), WRONG.values(), ids=WRONG)
def test_what_the_environment_lacks_or_is_not_is_rejected(overrides, message, compose):
    assert error_of(make_batched_env, compose(*of(*overrides)).env, N, seed=0).startswith(message)


def test_an_object_cannot_take_the_place_of_one_with_keys(compose):
    with pytest.raises(ConfigError, match=r"env=torchrl must have env\.id=module:Name \(got <nested>, an object\)"):
        with_maker(compose("env=torchrl", "env.id='<nested>'", *KEYS).env, nested)
