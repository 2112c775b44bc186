"""``Policy.step`` and ``Policy.sequence``: their contract, custom networks, and the TensorDict module."""

import pytest
import torch
from collected import fresh_policy, rollouts
from tensordict import TensorDict
from torch import nn
from torch.distributions import Beta
from torch.nn import functional
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, Unbounded
from torchrl.envs import ExplorationType, set_exploration_type
from torchrl.modules import set_recurrent_mode

from recurrl.build import make_algorithm, make_policy_for
from recurrl.consistency import check_consistency
from recurrl.envs import make_env
from recurrl.evaluation import evaluate
from recurrl.policy import Policy, PolicyModule, Trunk, make_policy
from recurrl.policy.distributions import ActionHead
from recurrl.recurrent import GRUModule

B, H = 5, 6


def gru_trunk():
    cell = GRUModule(3, H, 2, in_keys=["x", "h"], out_keys=["y", ("next", "h")], recurrent_backend="reference")
    return Trunk(nn.Identity(), cell)


ACTIONS = {
    "discrete": Categorical(4),
    "multi-discrete": MultiCategorical([2, 3]),
    "binary": Binary(3),
    "continuous": Unbounded((2,)),
    "bounded": Bounded(-1, 1, (2,)),
    "joint": Composite(move=Categorical(2), aim=Composite(at=Unbounded((1,)))),
}


EACH_WAY = [*((action, "independent") for action in ACTIONS), ("joint", "correlated"), ("joint", "none")]


@pytest.mark.parametrize(("action", "noise"), EACH_WAY)
def test_a_step_is_a_pure_function(action, noise, small):
    correlation = 0.9 if noise == "correlated" else 0.0
    of_policy = (f"policy.noise_correlation={correlation}", "policy.bounded_action=tanh")
    config = small(*of_policy, "algorithm.critic=recurrent")
    policy = make_policy(config, Composite(observation=Unbounded((3,))), ACTIONS[action])
    observation, drawn = torch.randn(B, 3), None if noise == "none" else torch.randn(B, policy.noise_size)
    state = {key: torch.randn(B, *shape) for key, shape in policy.state_shapes.items()}
    is_init = torch.tensor([True, False] * B)[:B]
    copied, random = {key: value.clone() for key, value in state.items()}, torch.get_rng_state()
    first = policy.step(observation, state, is_init, drawn)
    policy.step(torch.randn(B, 3), first.state)  # whatever comes in between
    torch.set_rng_state(random)
    again = policy.step(observation, state, is_init, drawn)
    assert torch.equal(torch.get_rng_state(), random)
    torch.testing.assert_close(state, copied, rtol=0, atol=0)
    assert (first.action == again.action).all()
    torch.testing.assert_close((first.log_prob, first.value), (again.log_prob, again.value), rtol=0, atol=0)
    assert set(first.state) == {*policy.input_keys, *(["action_noise"] if noise == "correlated" else [])}
    torch.testing.assert_close(first.state, again.state, rtol=0, atol=0)
    assert torch.equal(policy.step(observation, policy.reset(state, is_init), None, drawn).log_prob, first.log_prob)
    fresh = policy.step(observation, {key: torch.zeros_like(value) for key, value in state.items()}, None, drawn)
    assert torch.equal(fresh.value[is_init], first.value[is_init])
    assert not torch.isclose(fresh.value[~is_init], first.value[~is_init]).any()


@pytest.mark.parametrize(("critic", "own_states"), [("shared", 0), ("recurrent", 2), ("feedforward", 0)])
def test_a_critic_of_its_own_may_have_states_and_sends_no_gradient_into_the_actors_trunk(critic, own_states, small):
    policy = make_policy_for(small("cell=lstm", f"algorithm.critic={critic}"))
    assert len(policy.state_keys) == len(set(policy.state_keys)) == 2 + own_states
    stored = {key: torch.zeros(3, 4, *shape) for key, shape in policy.state_shapes.items()}
    policy.sequence(torch.randn(3, 4, 2), stored, torch.zeros(3, 4, dtype=torch.bool)).value.square().sum().backward()
    reached = {name.partition(".")[0] for name, p in policy.named_parameters() if p.grad is not None}
    assert reached == {"critic_head", "trunk" if critic == "shared" else "critic_trunk"}


def test_actions_of_a_head_without_noise_size_are_drawn_by_torch():
    head = ActionHead(nn.Linear(H, 2), lambda logits: Beta(*logits.exp().unsqueeze(-1).unbind(-2)))
    policy = Policy(gru_trunk(), head, nn.Linear(H, 1))
    assert policy.noise_size == 0
    torch.manual_seed(1)
    step = policy.step(torch.randn(B, 3), policy.initial_state(B), None, torch.randn(B, 0))
    torch.manual_seed(1)
    torch.randn(B, 3)
    assert torch.equal(step.action, step.distribution.sample())


def test_two_states_of_one_name_are_rejected():
    with pytest.raises(ValueError, match=r"Two recurrent states of a policy have the same name: \['h', 'h'\]"):
        Policy(gru_trunk(), nn.Identity(), nn.Identity(), gru_trunk())


class Function(nn.Module):
    """No parameters and no submodules."""

    def forward(self, observation):
        return functional.pad(observation, (0, 6)).sin()


class Buffered(nn.Module):
    """A module with a buffer, and statistics that ``update_statistics`` changes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("shift", torch.linspace(-1, 1, 8))
        self.register_buffer("seen", torch.zeros(()))
        self.layer = nn.Linear(2, 8)

    def forward(self, observation):
        return (self.layer(observation) + self.shift).tanh()

    def update_statistics(self, observation):
        self.seen += observation[..., 0].numel()


@pytest.mark.parametrize("kind", [Function, Buffered])
@pytest.mark.parametrize("where", ["encoder", "trunk"])
def test_an_ordinary_module_collects_learns_is_checked_and_is_evaluated(where, kind, small):
    config = small("env.max_episode_steps=11", *(["cell=none"] if where == "trunk" else []))
    made, own = fresh_policy(config), kind()
    trunk = own if where == "trunk" else Trunk(own, made.trunk.core, sees_action=True)
    policy = Policy(trunk, made.actor_head, made.critic_head, previous_action=made.previous_action)
    (batch,) = rollouts(config, policy)
    assert "log-probability" in check_consistency(policy, batch, config)
    before = [parameter.clone() for parameter in policy.parameters()]
    make_algorithm(config, policy).update(batch, progress=0.0)
    assert not any(map(torch.equal, before, policy.parameters()))
    assert len(evaluate(config.env, policy, episodes=2, seed=0)) == 2
    if isinstance(own, Buffered):
        assert own.seen == config.frames_per_batch


@pytest.mark.parametrize("critic", ["shared", "recurrent"])
@pytest.mark.parametrize("exploration", [ExplorationType.RANDOM, ExplorationType.DETERMINISTIC])
def test_the_tensordict_module_is_the_policy(exploration, critic, small):
    config = small("cell=lstm", f"algorithm.critic={critic}")
    policy = fresh_policy(config, std=0.5)
    module = PolicyModule(policy)
    env = make_env(config.env, 4, seed=0, policy=policy)
    with torch.no_grad(), set_exploration_type(exploration):
        rows = env.rollout(16, module, break_when_any_done=False)
    env.close()
    assert torch.equal(rows["is_init"][:, 1:], rows["next", "done"][:, :-1])
    observation, state, is_init = policy.inputs(rows)
    distribution, value, ends, _ = policy.sequence(observation, state, is_init)
    expected = distribution.log_prob(rows["action"]), value
    torch.testing.assert_close((rows["action_log_prob"], rows["state_value"]), expected)
    with set_recurrent_mode(True):
        again = module(rows.select(*module.in_keys))
        assert torch.equal(module.get_dist(rows).logits, distribution.logits)
    assert torch.equal(again["action"], distribution.logits.argmax(-1))
    assert torch.equal(again["state_value"], value)
    assert is_init[:, 1:].any()
    is_end = functional.pad(is_init[:, 1:], (0, 1), value=True)[..., None, None]
    assert all(torch.equal(again["next", key], state.where(is_end, 0.0)) for key, state in ends.items())


def test_the_tensordict_module_takes_a_single_environment(small):
    policy = make_policy_for(small())
    states = {key: torch.zeros(shape) for key, shape in policy.state_shapes.items()}
    alone = TensorDict({"observation": torch.randn(2), "is_init": torch.ones(1, dtype=torch.bool), **states})
    written = PolicyModule(policy)(alone)
    assert written["action"].shape == written["action_log_prob"].shape == ()
    assert written["state_value"].shape == (1,)
    assert written["next", "recurrent_state"].shape == (1, 8)
