"""The previous action and reward: those of the step before, zero at an episode's first step."""

import numpy as np
import pytest
import torch
from counting_env import Counting
from gymnasium import spaces
from rejections import error_of
from tasks import ACTIONS, CUE, PREVIOUS
from torch.nn import functional

from recurrl.build import make_policy_for
from recurrl.envs import make_env
from recurrl.policy import ACTION, OBSERVATION, build
from recurrl.recurrent.cells import cell_names


def flat(kind, action):
    """An action as the policy is shown it afterwards."""
    if kind == "discrete":
        return functional.one_hot(action, 4).float()
    if kind == "multi_discrete":
        return torch.cat([functional.one_hot(action[..., i], size) for i, size in enumerate((2, 3))], -1).float()
    if kind == "bounded":
        return action.clamp(-1, 1)
    if kind == "dict":
        aim = action["more", "aim"].clamp(-1, 1)
        return torch.cat([aim, functional.one_hot(action["move"], 2)], -1)  # in the order of their names
    return action.float()


@pytest.mark.parametrize("kind", ACTIONS)
def test_the_previous_step_is_shown_and_forgotten_where_an_episode_starts(kind, configure, collect):
    _, batch = collect(configure(CUE, *PREVIOUS, action=kind))
    places = {"previous_action": "previous_action", "previous_reward": (OBSERVATION, "previous_reward")}
    after, now = ({name: rows[place] for name, place in places.items()} for rows in (batch["next"], batch))
    # What follows a step shows it, also where it was the episode's last one: the bootstrap sees that.
    torch.testing.assert_close(after["previous_action"], flat(kind, batch[ACTION]))
    torch.testing.assert_close(after["previous_reward"], batch["next", "reward"])
    starts = batch["is_init"][:, 1:]
    assert starts.any()
    for key in places:
        torch.testing.assert_close(now[key][:, 1:], torch.where(starts, 0.0, after[key][:, :-1]))
    assert (after["previous_reward"][:, :-1][starts.squeeze(-1)] != 0).any()  # or nothing was forgotten


@pytest.mark.parametrize("cell", ["gru", "none"])
@pytest.mark.parametrize("kind", ACTIONS)
def test_by_default_a_recurrent_policy_sees_an_action_that_is_discrete(kind, cell, configure):
    policy = make_policy_for(configure(CUE, f"cell={cell}", action=kind))
    is_discrete = kind in ("discrete", "multi_discrete", "binary")
    assert (policy.previous_action is not None) == (is_discrete and cell == "gru")
    assert policy.input_keys == policy.state_keys + ["previous_action"] * (is_discrete and cell == "gru")


@pytest.mark.parametrize("cell", [*cell_names(), "none", "mingru cell.highway=true"])
def test_the_weights_of_the_action_are_small_at_first(configure, monkeypatch, cell):
    overrides = f"policy.previous_action=true cell={cell}".split()

    def parameters(gain):
        monkeypatch.setattr(build, "PREVIOUS_ACTION_GAIN", gain)
        torch.manual_seed(0)
        policy = make_policy_for(configure(CUE, *overrides, action="discrete"))
        return [parameter.detach() for parameter in policy.parameters()]

    changed = [pair for pair in zip(parameters(1.0), parameters(0.01), strict=True) if not torch.equal(*pair)]
    assert changed
    for whole, small in changed:
        assert torch.equal(small[..., :-4], whole[..., :-4])
        torch.testing.assert_close(small[..., -4:], 0.01 * whole[..., -4:])


@pytest.mark.parametrize("added", ["true", "false"])
def test_an_environment_that_shows_the_previous_reward_itself_is_rejected(configure, register, added):
    space = spaces.Dict({"previous_reward": spaces.Box(0, 1, (1,), np.float32)})
    shown = register(type("Shown", (Counting,), {"observation_space": space}))
    env = configure(shown, f"env.previous_reward={added}").env
    assert "have no entry previous_reward in its observation: that is the name of" in error_of(make_env, env, 1, seed=0)
