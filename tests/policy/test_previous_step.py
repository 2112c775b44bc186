"""The previous action and reward: those of the step before, zero at an episode's first step."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tasks import ACTIONS, CUE, PREVIOUS
from torch import nn
from torch.nn import functional

from recurrl.algorithms.advantages import next_values
from recurrl.build import make_policy_for
from recurrl.envs import make_env
from recurrl.errors import ConfigError
from recurrl.policy import ACTION, OBSERVATION, Trunk, build
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
    done = flat(kind, batch[ACTION])
    after, now = (
        {"previous_action": rows["previous_action"], "previous_reward": rows[OBSERVATION, "previous_reward"]}
        for rows in (batch["next"], batch)
    )
    # What follows a step shows it, also where it was the episode's last one: the bootstrap sees that.
    if kind == "dict":  # compared without regard to the order of the parts
        shown, expected = after["previous_action"].sort(-1).values, done.sort(-1).values
    else:
        shown, expected = after["previous_action"], done
    torch.testing.assert_close(shown, expected)
    torch.testing.assert_close(after["previous_reward"], batch["next", "reward"])
    starts = batch["is_init"][:, 1:]
    assert starts.any()
    for key in ("previous_action", "previous_reward"):
        torch.testing.assert_close(now[key][:, 1:], torch.where(starts, 0.0, after[key][:, :-1]))
    assert (after["previous_reward"][:, :-1][starts.squeeze(-1)] != 0).any()  # or nothing was forgotten


@pytest.mark.parametrize("cell", ["gru", "lstm", "none"])
def test_the_bootstrap_sees_the_step_that_was_cut_off(cell, configure, collect):
    config = configure(CUE, *PREVIOUS, f"cell={cell}", "env.max_episode_steps=3", delay=9)
    policy, batch = collect(config)
    truncated = batch["next", "truncated"].squeeze(-1)
    assert truncated.any()
    step = batch["next"].select(OBSERVATION, *policy.input_keys)[truncated]
    state = {key: step[key] for key in policy.input_keys}
    value = policy.step(step[OBSERVATION], state)[2].detach()
    torch.testing.assert_close(next_values(batch, policy)[truncated], value)
    blind = {**state, "previous_action": torch.zeros_like(state["previous_action"])}
    assert (policy.step(step[OBSERVATION], blind)[2] != value).any()


def test_the_cell_takes_action_and_reward_as_they_are(configure, collect):
    policy, _ = collect(configure(CUE, *PREVIOUS, "cell=lstm", observation="discrete"))
    assert policy.trunk.core.layers.weight_ih_l0.shape[1] == 8 + 4 + 1


@pytest.mark.parametrize("cell", ["gru", "none"])
@pytest.mark.parametrize("kind", ACTIONS)
def test_by_default_a_recurrent_policy_sees_an_action_that_is_discrete(kind, cell, configure):
    policy = make_policy_for(configure(CUE, f"cell={cell}", action=kind))
    is_discrete = kind in ("discrete", "multi_discrete", "binary")
    assert (policy.previous_action is not None) == (is_discrete and cell == "gru")
    assert policy.input_keys == policy.state_keys + ["previous_action"] * (is_discrete and cell == "gru")


@pytest.mark.parametrize("cell", [*cell_names(), "none", "mingru cell.highway=true"])
def test_the_weights_of_the_action_are_small_at_first(configure, monkeypatch, cell):
    def parameters(gain):
        monkeypatch.setattr(build, "INITIAL_GAIN", gain)
        torch.manual_seed(0)
        policy = make_policy_for(
            configure(CUE, "policy.previous_action=true", *f"cell={cell}".split(), action="discrete")
        )
        return [parameter.detach() for parameter in policy.parameters()]

    changed = [pair for pair in zip(parameters(1.0), parameters(0.01), strict=True) if not torch.equal(*pair)]
    assert changed
    for whole, small in changed:
        assert torch.equal(small[..., :-4], whole[..., :-4])
        torch.testing.assert_close(small[..., -4:], 0.01 * whole[..., -4:])


def test_it_enters_the_core_beside_the_observation():
    trunk = Trunk(nn.Identity(), sees_action=True)
    observation, state = torch.ones(2, 3, 1), {"previous_action": torch.full((2, 3, 2), 5.0)}
    expected = torch.tensor([1.0, 5, 5]).expand(2, 3, 3)
    assert torch.equal(trunk.run(observation, state, None, sequence=True)[0], expected)
    first = {"previous_action": state["previous_action"][:, 0]}
    assert torch.equal(trunk.run(observation[:, 0], first, None, sequence=False)[0], expected[:, 0])


class Shown(gymnasium.Env):
    """An environment that shows a previous reward by itself."""

    observation_space = spaces.Dict({"previous_reward": spaces.Box(0, 1, (1,), np.float32)})
    action_space = spaces.Discrete(2)


def test_an_environment_that_shows_the_previous_reward_itself_is_not_overruled(configure):
    gymnasium.register("recurrl-test/Shown-v0", entry_point=Shown)
    config = configure("recurrl-test/Shown-v0", "env.previous_reward=true")
    with pytest.raises(ConfigError, match=r"env\.previous_reward adds the entry previous_reward .* already has one"):
        make_env(config.env, 1, seed=0)
