"""``Policy.step`` and ``Policy.sequence``: their contract, custom networks, and the TensorDict module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torch.nn import functional
from torchrl.data import Binary, Categorical, Composite, Unbounded
from torchrl.envs import ExplorationType, set_exploration_type
from torchrl.modules import set_recurrent_mode

from recurrl.build import make_algorithm, make_collector, make_consistency_check, make_policy_for, set_process_state
from recurrl.config import TrainConfig
from recurrl.envs import make_env
from recurrl.evaluation import evaluate
from recurrl.policy import Policy, PolicyModule, Trunk, make_policy
from recurrl.policy.distributions import categorical
from recurrl.policy.heads import ActionHead
from recurrl.recurrent import GRUModule, LSTMModule

Compose = Callable[..., TrainConfig]

B, T, H = 5, 7, 6


def cell(kind: str, prefix: str = "", layers: int = 2) -> nn.Module:
    make = {"gru": GRUModule, "lstm": LSTMModule}[kind]
    names = [f"{prefix}{name}" for name in (["h"] if kind == "gru" else ["h", "c"])]
    out_keys = ["y", *(("next", name) for name in names)]
    return make(3, H, layers, in_keys=["x", *names], out_keys=out_keys, recurrent_backend="reference")


def make(kind: str, critic: str = "shared") -> Policy:
    torch.manual_seed(0)
    own = None if critic == "shared" else Trunk(nn.Identity(), cell(kind, "critic_"))
    actor = ActionHead(nn.Linear(H, 4), categorical, noise_size=4)
    return Policy(Trunk(nn.Identity(), cell(kind)), actor, nn.Linear(H, 1), own)


@pytest.mark.parametrize("critic", ["shared", "own"])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_sequence_is_its_steps_one_after_the_other(kind: str, critic: str) -> None:
    policy = make(kind, critic)
    observation, is_init = torch.randn(B, T, 3), torch.rand(B, T) < 0.3
    state = policy.initial_state(B)
    assert {key: value.shape for key, value in state.items()} == {
        key: (B, *shape) for key, shape in policy.state_shapes.items()
    }
    stored = {key: torch.zeros(B, T, *shape) for key, shape in policy.state_shapes.items()}
    distribution, values, ends, _ = policy.sequence(observation, stored, is_init)
    for t in range(T):
        action, log_prob, value, state, _ = policy.step(observation[:, t], state, is_init[:, t], torch.randn(B, 4))
        torch.testing.assert_close(distribution.logits[:, t].gather(-1, action[:, None])[:, 0], log_prob)
        torch.testing.assert_close(values[:, t], value)
        last = is_init[:, t + 1] if t + 1 < T else torch.ones(B, dtype=torch.bool)
        for key, after in state.items():
            torch.testing.assert_close(ends[key][:, t], torch.where(last[:, None, None], after, 0.0))


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_step_remembers_nothing_but_the_state(kind: str) -> None:
    policy = make(kind)
    observation, state = torch.randn(B, 3), {key: torch.randn(B, 2, H) for key in policy.state_keys}
    none, everywhere = torch.zeros(B, dtype=torch.bool), torch.ones(B, dtype=torch.bool)
    first = policy.step(observation, state)
    policy.step(torch.randn(B, 3), first[3])
    for again in (policy.step(observation, state), policy.step(observation, state, none)):
        assert torch.equal(again[0], first[0])
        assert torch.equal(again[2], first[2])
    reset = policy.step(observation, state, everywhere)
    assert torch.equal(reset[2], policy.step(observation, policy.initial_state(B))[2])
    assert not torch.equal(reset[2], first[2])


def test_a_state_that_is_not_finite_does_not_survive_a_reset() -> None:
    policy = make("lstm")
    state = {key: torch.full((B, 2, H), torch.nan) for key in policy.state_keys}
    _, log_prob, value, new, _ = policy.step(torch.randn(B, 3), state, torch.ones(B, dtype=torch.bool))
    assert all(each.isfinite().all() for each in (log_prob, value, *new.values()))


def test_two_states_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Two recurrent states of a policy have the same name: \['h', 'h'\]"):
        Policy(Trunk(nn.Identity(), cell("gru")), nn.Identity(), nn.Identity(), Trunk(nn.Identity(), cell("gru")))


class Function(nn.Module):
    """No parameters and no submodules."""

    def forward(self, observation: Tensor) -> Tensor:
        return functional.pad(observation, (0, 6)).sin()


class Buffered(nn.Module):
    """A buffer of its own, and statistics that it takes in when asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.linspace(-1, 1, 8))
        self.register_buffer("seen", torch.zeros(()))
        self.layer = nn.Linear(2, 8)

    def forward(self, observation: Tensor) -> Tensor:
        return (self.layer(observation) + self.shift).tanh()

    def observe(self, observation: Tensor) -> None:
        self.seen += observation[..., 0].numel()


class Hooked(nn.Sequential):
    """Its first layer has a hook, which changes what the layer returns."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(2, 8), nn.Tanh())
        self.calls = 0
        self[0].register_forward_hook(self.double)

    def double(self, _: nn.Module, __: Any, output: Tensor) -> Tensor:
        self.calls += 1
        return 2 * output


@pytest.mark.parametrize("kind", [Function, Buffered, Hooked])
@pytest.mark.parametrize("where", ["encoder", "trunk"])
def test_an_ordinary_module_collects_learns_is_checked_and_is_evaluated(
    where: str, kind: type[nn.Module], small: Compose
) -> None:
    config = small("env.max_episode_steps=11", *(["cell=none"] if where == "trunk" else []))
    set_process_state(config)
    made, own = make_policy_for(config), kind()
    policy = Policy(own if where == "trunk" else Trunk(own, made.trunk.core), made.actor_head, made.critic_head)
    collector = make_collector(config, policy)
    batch = collector.collect()
    collector.shutdown()
    assert "log-probability" in make_consistency_check(config, policy)(batch)
    before = [parameter.clone() for parameter in policy.parameters()]
    make_algorithm(config, policy).update(batch, progress=0.0)
    assert not any(map(torch.equal, before, policy.parameters()))
    assert len(evaluate(config.env, policy, episodes=2, seed=0)) == 2
    if isinstance(own, Buffered):
        assert own.seen == 64
    if isinstance(own, Hooked):
        assert own.calls > 16


def test_nested_observations_may_be_dicts_or_tensordicts(small: Compose) -> None:
    spec = Composite(observation=Composite(inner=Composite(a=Unbounded((2,))), b=Categorical(3), action_mask=Binary(4)))
    policy = make_policy(small(), spec, Categorical(4))
    plain = {
        "inner": {"a": torch.randn(B, 2)},
        "b": torch.randint(3, (B,)),
        "action_mask": torch.tensor([[1, 0, 1, 0]] * B),
    }
    outputs = [policy.step(observation, policy.initial_state(B)) for observation in (plain, TensorDict(plain, [B]))]
    assert torch.equal(outputs[0][1], outputs[1][1])
    assert torch.equal(outputs[0][2], outputs[1][2])


@pytest.mark.parametrize("critic", ["shared", "recurrent"])
def test_the_tensordict_module_is_the_policy(critic: str, small: Compose) -> None:
    config = small("cell=lstm", f"algorithm.critic={critic}")
    set_process_state(config)
    policy = make_policy_for(config)
    module = PolicyModule(policy)
    env = make_env(config.env, 4, seed=0, policy=policy)
    with torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):
        rows: TensorDictBase = env.rollout(16, module, break_when_any_done=False)
    env.close()
    observation, state, is_init = policy.inputs(rows)
    distribution, value, ends, _ = policy.sequence(observation, state, is_init)
    torch.testing.assert_close(rows["action_log_prob"], distribution.log_prob(rows["action"]))
    torch.testing.assert_close(rows["state_value"], value)
    with set_recurrent_mode(True):
        again = module(rows.select(*module.in_keys))
        assert torch.equal(module.get_dist(rows).logits, distribution.logits)
    assert torch.equal(again["action"], distribution.logits.argmax(-1))
    assert torch.equal(again["state_value"], value)
    assert all(torch.equal(again["next", key], state) for key, state in ends.items())


def test_the_tensordict_module_takes_a_single_environment(small: Compose) -> None:
    policy = make_policy_for(small())
    starts, state = torch.ones(1, dtype=torch.bool), torch.zeros(1, 8)
    alone = TensorDict({"observation": torch.randn(2), "is_init": starts, "recurrent_state": state})
    written = PolicyModule(policy)(alone)
    assert written["action"].shape == written["action_log_prob"].shape == ()
    assert written["state_value"].shape == (1,)
    assert written["next", "recurrent_state"].shape == (1, 8)
