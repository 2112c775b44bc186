"""What policies see of an environment and do in it: the same, whatever makes the environment."""

import gymnasium
import numpy as np
import pytest
import torch
from collected import collected, fresh_policy, rollouts
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from rejections import error_of
from torchrl.data import Bounded, Unbounded
from torchrl.envs import GymWrapper, SerialEnv
from torchrl.envs.utils import check_env_specs

from recurrl.agent import Agent
from recurrl.envs import BatchedEnv, Source, make_batched_env, make_env
from recurrl.envs.policy_env import PolicyEnv
from recurrl.errors import EnvError
from recurrl.evaluation import evaluate

COUNT = 3
LOW, HIGH = -2.0, 6.0


class Ramp(gymnasium.Env):
    """Shows the time, something broken and the last push, which is also the reward; an episode has three steps."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Box(LOW, HIGH, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return np.float32([0, np.nan, 0]), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.time += 1
        return np.float32([self.time, np.nan, action[0]]), float(action[0]), self.time == 3, False, {}


class RampVector(VectorEnv):
    """The same for several at once, which reset on request."""

    single_observation_space, single_action_space = Ramp.observation_space, Ramp.action_space

    def __init__(self, num_envs):
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
        self.num_envs, self.state = num_envs, np.full((num_envs, 3), np.nan, np.float32)

    def reset(self, *, seed=None, options=None):
        chosen = np.ones(self.num_envs, bool) if options is None else options["reset_mask"]
        self.state[chosen] = [0, np.nan, 0]
        return self.state.copy(), {}

    def step(self, actions):
        self.state[:, 0] += 1
        self.state[:, 2] = actions[:, 0]
        over = self.state[:, 0] == 3
        return self.state.copy(), self.state[:, 2].copy(), over, np.zeros_like(over), {}


class RampOnTensors(BatchedEnv):
    """The same in torch."""

    def __init__(self, num_envs):
        action = Bounded(LOW, HIGH, (num_envs, 1))
        super().__init__(num_envs, {"observation": Unbounded((num_envs, 3))}, action)
        self.state = torch.zeros(num_envs, 3)

    def reset_tensors(self, mask):
        begun = torch.ones(*self.batch_size, 1, dtype=torch.bool) if mask is None else mask
        self.state = torch.where(begun, torch.tensor([0, torch.nan, 0]), self.state)
        return {"observation": self.state.clone()}

    def step_tensors(self, action):
        assert not ((action < LOW) | (action > HIGH)).any()
        self.state = torch.cat((self.state[:, :1] + 1, self.state[:, 1:2], action), -1)
        over = self.state[:, :1] == 3
        flags = {"terminated": over, "truncated": torch.zeros_like(over), "done": over}
        return {"observation": self.state.clone(), "reward": action.clone(), **flags}

    def _set_seed(self, seed):
        pass


class OnTensors(Source):
    def make(self, num_envs):
        return RampOnTensors(num_envs)


class LateRamp(RampOnTensors):
    """The third environment fails at a step, by default its thirteenth."""

    fails_at = 13

    def __init__(self, num_envs, entry):
        super().__init__(num_envs)
        self.entry, self.steps = entry, 0

    def step_tensors(self, action):
        after = super().step_tensors(action)
        self.steps += 1
        if self.steps == self.fails_at:
            after[self.entry][2, -1] = torch.nan
        return after


class Late(Source):
    def make(self, num_envs):
        return LateRamp(num_envs, self.options.id)


def of_torchrl(num_envs):
    return SerialEnv(num_envs, lambda: GymWrapper(Ramp()))


MADE_BY = {
    "one by one": f"env.id={__name__}:Ramp",
    "a vector environment": f"env.id={__name__}:RampVector",
    "TorchRL": f"env.id={__name__}:of_torchrl",
    "torch": f"env.source={__name__}:OnTensors env.id=Ramp",
}
OPTIONS = ("env.mask=[1]", "env.previous_reward=true")


@pytest.fixture
def configured(compose):
    return lambda made_by, *options: compose("env=gym", *MADE_BY[made_by].split(), *options).env


@pytest.mark.parametrize("made_by", MADE_BY)
def test_a_policy_sees_and_does_the_same_whatever_makes_the_environment(made_by, configured):
    env = make_batched_env(configured(made_by, *OPTIONS), COUNT, seed=0)
    seen = [env.reset_tensors(None)]
    for size in (0.5, -3.0, 1.0, 0.0):
        after = env.step_tensors(torch.full((COUNT, 1), size))
        seen += [after, env.reset_tensors(after["done"])]
    times, pushes, rewards = [], [], []
    for each in seen:
        time, push = each["observation", "observation"].unbind(-1)
        parts = (time, push, each["observation", "previous_reward"])
        for values, part in zip((times, pushes, rewards), parts, strict=True):
            assert len(set(part.flatten().tolist())) == 1
            values.append(part.flatten()[0].item())
    assert times == [0, 1, 1, 2, 2, 3, 0, 1, 1]
    # −1 and 1 stand for the bounds, beyond which actions are clipped.
    assert pushes == rewards == [0, 4, 4, -2, -2, 6, 0, 2, 2]
    assert [each["done"].all().item() for each in seen if "done" in each] == [False, False, True, False]
    env.close()


@pytest.mark.parametrize("made_by", MADE_BY)
def test_its_specs_are_what_it_returns(made_by, configured):
    env = make_env(configured(made_by, *OPTIONS), COUNT, seed=0)
    assert (env.action_spec.space.low == -1).all()
    assert (env.action_spec.space.high == 1).all()
    check_env_specs(env)
    env.close()


@pytest.mark.parametrize("made_by", ["one by one", "a vector environment"])
def test_what_is_hidden_is_for_a_privileged_critic(made_by, configured):
    config = configured(made_by, "env.mask=[0,2]")
    with pytest.raises(EnvError, match=r"Environment 0 of 3 .*, at step 0, returned a non-finite value of observation"):
        make_batched_env(config, COUNT, 0, privileged=True).reset_tensors(None)
    config = configured(made_by, "env.mask=[1,2]")
    with pytest.raises(EnvError, match=r"non-finite value of observation \('observation', 'hidden'\): \[nan  0\.\]"):
        make_batched_env(config, COUNT, 0, privileged=True).reset_tensors(None)


@pytest.mark.parametrize("entry", ["observation", "reward"])
def test_a_value_of_tensors_that_is_not_finite_is_an_error_after_the_rollout_and_in_evaluation(
    entry, small, monkeypatch
):
    config = small("env=gym", f"env.source={__name__}:Late", f"env.id={entry}", "env.mask=[1]")
    policy = fresh_policy(config)
    rollout = rollouts(config, policy, 2)
    next(rollout)
    errors = [error_of(next, rollout, kind=EnvError)]
    monkeypatch.setattr(LateRamp, "fails_at", 2)
    errors += [error_of(evaluate, config.env, policy, 4, seed=0, kind=EnvError)]
    for error, step in zip(errors, (13, 2), strict=True):
        what = {"observation": f"'observation': [{step % 3}.0, nan]", "reward": "'reward': [nan]"}[entry]
        assert error == f"Environment 2 of 4 ({entry}), at step {step}, returned a non-finite value of {what}."


def test_a_step_and_a_reset_read_nothing_from_a_device(compose):
    """Tensors on the device meta have no values, so reading one raises."""

    class Still(RampOnTensors):
        def reset_tensors(self, mask):
            return {"observation": self.state.clone()}

        def step_tensors(self, action):
            over = self.state[:, :1] == 3
            flags = {"terminated": over, "truncated": over.clone(), "done": over.clone()}
            return {"observation": self.state + action, "reward": action.clone(), **flags}

    env = PolicyEnv(Still(COUNT), compose("env=gym", "env.id=Ramp", *OPTIONS).env, privileged=True)
    env.reset_tensors(None)
    env.raw.state = env.raw.state.to("meta")
    env.interface.to("meta")
    after = env.step_tensors(torch.zeros(COUNT, 1, device="meta"))
    now = env.reset_tensors(after["done"])
    assert all(value.is_meta for value in (*after.values(), *now.values()))
    widths = {"hidden": 1, "observation": 2, "previous_reward": 1}
    shapes = {("observation", name): (COUNT, width) for name, width in widths.items()}
    assert {key: tuple(value.shape) for key, value in now.items()} == shapes


class Gates(gymnasium.Env):
    """Allows one of three actions, the number of the step modulo 3; an episode has four steps."""

    observation_space, action_space = spaces.Box(0, 9, (1,), np.float32), spaces.Discrete(3)

    def __init__(self, width=3):
        self.width = width

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return self._shown()

    def step(self, action):
        assert action == self.time % 3, action
        self.time += 1
        observation, info = self._shown()
        return observation, 1.0, self.time == 4, False, info

    def _shown(self):
        return np.float32([self.time]), {"action_mask": np.eye(3, dtype=np.int8)[self.time % 3, : self.width]}


def gates_in_one(num_envs, mode=AutoresetMode.SAME_STEP, width=3):
    return gymnasium.vector.SyncVectorEnv([lambda: Gates(width)] * num_envs, autoreset_mode=mode)


def gates_on_request(num_envs):
    return gates_in_one(num_envs, AutoresetMode.DISABLED)


def gates_in_the_next_step(num_envs):
    return gates_in_one(num_envs, AutoresetMode.NEXT_STEP)


FROM_INFO = "env.action_mask_from_info=true"


@pytest.mark.parametrize("made_by", ["Gates", "gates_in_one", "gates_on_request", "gates_in_the_next_step"])
def test_a_mask_in_the_info_forbids_actions_in_training_evaluation_and_use(made_by, small):
    config = small("env=gym", f"env.id={__name__}:{made_by}", FROM_INFO, "policy.previous_action=true")
    policy, rows = collected(config)
    assert torch.equal(rows["action"], rows["observation", "observation"][..., 0].long() % 3)
    assert torch.equal(rows["observation", "action_mask"].argmax(-1), rows["action"])
    agent = Agent(policy, config.env)
    assert agent.evaluate(episodes=2) == [4.0, 4.0]
    env, state = agent.make_env(), agent.initial_state()
    observation, info = env.reset()
    for _ in range(3):
        action, state = agent.act(observation, state, action_mask=info["action_mask"])
        observation, _, _, _, info = env.step(action)


@pytest.mark.parametrize("made_by", ["Gates", "gates_in_one"])
def test_a_mask_of_another_shape_is_an_error(made_by, compose):
    config = compose("env=gym", f"env.id={__name__}:{made_by}", FROM_INFO, "+env.kwargs.width=1").env
    with pytest.raises(EnvError, match=r"gave the observation 'action_mask' the shape \("):
        make_batched_env(config, COUNT, seed=0).reset_tensors(None)
