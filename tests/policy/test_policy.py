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
from recurrl.policy.distributions import LazyCategorical
from recurrl.policy.heads import ActionHead
from recurrl.policy.noise import NOISE
from recurrl.recurrent import GRUModule, LSTMModule

B, T, H = 5, 7, 6


def cell(kind, prefix="", layers=2):
    make = {"gru": GRUModule, "lstm": LSTMModule}[kind]
    names = [f"{prefix}{name}" for name in (["h"] if kind == "gru" else ["h", "c"])]
    out_keys = ["y", *(("next", name) for name in names)]
    return make(3, H, layers, in_keys=["x", *names], out_keys=out_keys, recurrent_backend="reference")


def make(kind, critic="shared"):
    torch.manual_seed(0)
    own = None if critic == "shared" else Trunk(nn.Identity(), cell(kind, "critic_"))
    actor = ActionHead(nn.Linear(H, 4), LazyCategorical, noise_size=4)
    return Policy(Trunk(nn.Identity(), cell(kind)), actor, nn.Linear(H, 1), own)


@pytest.mark.parametrize("critic", ["shared", "own"])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_sequence_is_its_steps(kind, critic):
    policy = make(kind, critic)
    observation, is_init = torch.randn(B, T, 3), torch.rand(B, T) < 0.3
    state = policy.initial_state(B)
    stored = {key: torch.zeros(B, T, *shape) for key, shape in policy.state_shapes.items()}
    whole = policy.sequence(observation, stored, is_init)
    assert whole.features.shape == (B, T, H)
    assert whole.features.requires_grad
    for t in range(T):
        step = policy.step(observation[:, t], state, is_init[:, t], torch.randn(B, policy.noise_size))
        state = step.state
        log_prob = whole.distribution.logits[:, t].gather(-1, step.action[:, None])[:, 0]
        torch.testing.assert_close(log_prob, step.log_prob, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(whole.value[:, t], step.value, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(whole.features[:, t], step.features, rtol=1e-5, atol=1e-5)
        last = is_init[:, t + 1] if t + 1 < T else torch.ones(B, dtype=torch.bool)
        for key, after in state.items():
            torch.testing.assert_close(whole.state[key][last, t], after[last])


ACTIONS = {
    "discrete": Categorical(4),
    "multi-discrete": MultiCategorical([2, 3]),
    "binary": Binary(3),
    "continuous": Unbounded((2,)),
    "bounded": Bounded(-1, 1, (2,)),
    "joint": Composite(move=Categorical(2), aim=Composite(at=Unbounded((1,)))),
}


@pytest.mark.parametrize("noise", ["independent", "correlated", "none"])
@pytest.mark.parametrize("action", ACTIONS)
def test_a_step_is_a_pure_function(action, noise, small):
    correlation = 0.9 if noise == "correlated" else 0.0
    of_policy = (f"policy.noise_correlation={correlation}", "policy.bounded_action=tanh")
    config = small(*of_policy, "algorithm.critic=recurrent")
    policy = make_policy(config, Composite(observation=Unbounded((3,))), ACTIONS[action])
    observation, drawn = torch.randn(B, 3), None if noise == "none" else torch.randn(B, policy.noise_size)
    state = {key: torch.randn(B, *shape) for key, shape in policy.state_shapes.items()}
    if noise == "correlated":
        state[NOISE] = torch.randn(B, policy.noise_size)
    is_init = torch.tensor([True, False] * B)[:B]
    copied, random = {key: value.clone() for key, value in state.items()}, torch.get_rng_state()
    first = policy.step(observation, state, is_init, drawn)
    policy.step(torch.randn(B, 3), first.state)  # whatever comes in between
    torch.set_rng_state(random)
    again = policy.step(observation, state, is_init, drawn)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(state[key], value) for key, value in copied.items())
    assert (first.action == again.action).all()
    assert torch.equal(first.log_prob, again.log_prob)
    assert torch.equal(first.value, again.value)
    assert set(first.state) == {*policy.input_keys, *([NOISE] if noise == "correlated" else [])}
    assert (policy.noise is not None) == (noise == "correlated")
    assert all(torch.equal(value, again.state[key]) for key, value in first.state.items())
    reset = policy.step(observation, policy.reset(state, is_init), None, drawn)
    assert torch.equal(reset.log_prob, first.log_prob)
    fresh = policy.step(observation, {key: torch.zeros_like(value) for key, value in state.items()}, None, drawn)
    assert torch.equal(fresh.value[is_init], first.value[is_init])
    assert not torch.isclose(fresh.value[~is_init], first.value[~is_init]).any()


@pytest.mark.parametrize(("critic", "own_states"), [("shared", 0), ("recurrent", 2), ("feedforward", 0)])
def test_a_critic_of_its_own_may_have_states_and_sends_no_gradient_into_the_actors_trunk(critic, own_states, small):
    policy = make_policy_for(small("cell=lstm", f"algorithm.critic={critic}"))
    assert len(policy.state_keys) == len(set(policy.state_keys)) == 2 + own_states
    stored = {key: torch.zeros(3, 4, *shape) for key, shape in policy.state_shapes.items()}
    output = policy.sequence(torch.randn(3, 4, 2), stored, torch.zeros(3, 4, dtype=torch.bool))
    output.value.square().sum().backward()
    reached = {name.partition(".")[0] for name, p in policy.named_parameters() if p.grad is not None}
    assert reached == {"critic_head", "trunk" if critic == "shared" else "critic_trunk"}


def test_actions_of_a_head_without_noise_size_are_drawn_by_torch():
    head = ActionHead(nn.Linear(H, 2), lambda logits: Beta(*logits.exp().unsqueeze(-1).unbind(-2)))
    policy = Policy(make("gru").trunk, head, nn.Linear(H, 1))
    assert policy.noise_size == 0
    torch.manual_seed(1)
    step = policy.step(torch.randn(B, 3), policy.initial_state(B), None, torch.randn(B, 0))
    torch.manual_seed(1)
    torch.randn(B, 3)
    assert torch.equal(step.action, step.distribution.sample())


def test_two_states_of_one_name_are_rejected():
    with pytest.raises(ValueError, match=r"Two recurrent states of a policy have the same name: \['h', 'h'\]"):
        Policy(Trunk(nn.Identity(), cell("gru")), nn.Identity(), nn.Identity(), Trunk(nn.Identity(), cell("gru")))


class Function(nn.Module):
    """No parameters and no submodules."""

    def forward(self, observation):
        return functional.pad(observation, (0, 6)).sin()


class Buffered(nn.Module):
    """A buffer of its own, and statistics that ``observe`` updates."""

    def __init__(self):
        super().__init__()
        self.register_buffer("shift", torch.linspace(-1, 1, 8))
        self.register_buffer("seen", torch.zeros(()))
        self.layer = nn.Linear(2, 8)

    def forward(self, observation):
        return (self.layer(observation) + self.shift).tanh()

    def observe(self, observation):
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


def test_nested_observations_may_be_dicts_or_tensordicts(small):
    spec = Composite(observation=Composite(inner=Composite(a=Unbounded((2,))), b=Categorical(3), action_mask=Binary(4)))
    policy = make_policy(small(), spec, Categorical(4))
    plain = {"inner": {"a": torch.randn(B, 2)}, "b": torch.randint(3, (B,))}
    plain["action_mask"] = torch.tensor([[1, 0, 1, 0]] * B)
    outputs = [policy.step(observation, policy.initial_state(B)) for observation in (plain, TensorDict(plain, [B]))]
    assert torch.equal(outputs[0][1], outputs[1][1])
    assert torch.equal(outputs[0][2], outputs[1][2])


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
    torch.testing.assert_close(rows["action_log_prob"], distribution.log_prob(rows["action"]))
    torch.testing.assert_close(rows["state_value"], value)
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
