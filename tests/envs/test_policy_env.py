"""What policies see of an environment and do in it: the same, whatever makes the environment."""

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from collected import acted, collected
from device_sync import Nowhere
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from tasks import FROM_INFO, Masked
from test_torchrl import Ramp as Pushed
from torchrl.envs import GymWrapper, SerialEnv
from torchrl.envs.utils import check_env_specs

from recurrl.agent import Agent
from recurrl.envs import make_batched_env, make_env
from recurrl.envs.policy_env import PolicyEnv
from recurrl.errors import EnvError

COUNT = 3


class Ramp(Pushed):
    """Shows the time, something broken and the last push, in one vector."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def observation(self):
        return np.float32([self.steps, np.nan, self.push])


def ramps_in_one(num_envs):
    return gymnasium.vector.SyncVectorEnv([Ramp] * num_envs, autoreset_mode="SameStep")


def of_torchrl(num_envs):
    return SerialEnv(num_envs, lambda: GymWrapper(Ramp()))


OPTIONS = ("env.mask=[1]", "env.previous_reward=true")
however_made = pytest.mark.parametrize("name", ["Ramp", "ramps_in_one", "of_torchrl"])


@however_made
def test_a_policy_sees_and_does_the_same_whatever_makes_the_environment(name, of):
    env = make_batched_env(of(name, *OPTIONS), COUNT, seed=0)
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


@however_made
def test_its_specs_are_what_it_returns(name, of):
    env = make_env(of(name, *OPTIONS), COUNT, seed=0)
    assert (env.action_spec.space.low == -1).all()
    assert (env.action_spec.space.high == 1).all()
    check_env_specs(env)
    env.close()


@pytest.mark.parametrize("name", ["Ramp", "ramps_in_one"])
def test_what_is_hidden_is_for_a_privileged_critic(name, of):
    env = make_batched_env(of(name, "env.mask=[1,2]"), COUNT, 0, privileged=True)
    with pytest.raises(EnvError, match=r"non-finite value of observation 'observation\.privileged': \[nan  0\.]"):
        env.reset_tensors(None)


def test_a_step_and_a_reset_read_nothing_from_a_device(of):
    """Tensors on the device meta have no values, so reading one raises."""
    env = PolicyEnv(Nowhere(COUNT, "cpu"), of("Ramp", *OPTIONS), privileged=True)
    env.reset_tensors(None)
    env.raw = Nowhere(COUNT, "meta")
    env.interface.to("meta")
    after = env.step_tensors(torch.zeros(COUNT, device="meta"))
    now = env.reset_tensors(after["done"])
    assert all(value.is_meta for value in (*after.values(), *now.values()))
    widths = {"privileged": 1, "observation": 2, "previous_reward": 1}
    shapes = {("observation", name): (COUNT, width) for name, width in widths.items()}
    assert {key: tuple(value.shape) for key, value in now.items()} == shapes


class Narrow(Masked):
    """Its masks are too short."""

    def info(self):
        return {"action_mask": super().info()["action_mask"][:1]}


def masked_in_one(num_envs, mode="SameStep", cls=Masked):
    return gymnasium.vector.SyncVectorEnv([partial(cls, "info", "discrete")] * num_envs, autoreset_mode=mode)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_mask_in_the_info_of_a_vector_environment_forbids_actions_in_training_evaluation_and_use(mode, small):
    """The task raises if an action is not allowed."""
    options = (FROM_INFO, "policy.previous_action=true")
    config = small("env=gym", f"env.id={__name__}:masked_in_one", *options, mode=mode)
    policy, rows = collected(config)
    mask = rows["observation", "action_mask"]
    assert (mask.sum(-1) == 3).all()
    assert mask.gather(-1, rows["action"][..., None]).all()
    agent = Agent(policy, config.env)
    assert len(agent.evaluate(episodes=2)) == 2
    assert len([*acted(agent, 3)]) == 3


NARROW = [("Narrow", {"mask_in": "info", "action": "discrete"}), ("masked_in_one", {"cls": Narrow})]


@pytest.mark.parametrize(("name", "kwargs"), NARROW)
def test_a_mask_of_another_shape_is_an_error(name, kwargs, of):
    with pytest.raises(EnvError, match=r"gave the observation 'action_mask' the shape \("):
        make_batched_env(of(name, FROM_INFO, **kwargs), COUNT, seed=0).reset_tensors(None)
