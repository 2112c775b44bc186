"""The lean collector: the same batches as TorchRL's, and it says which way it takes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from itertools import cycle, islice
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torchrl.collectors import Collector
from torchrl.envs import GymEnv, RewardScaling, SerialEnv, StepCounter, TransformedEnv

from recurrl.build import make_policy_for, make_rollouts, set_process_state
from recurrl.collector import single
from recurrl.collector.lean import LeanCollector
from recurrl.config import TrainConfig
from recurrl.envs import make_env
from recurrl.errors import NonFiniteError
from recurrl.policy import Policy

Compose = Callable[..., TrainConfig]

OPTIONS = ("cell.hidden_size=12", "encoder.sizes=[16]", "env.num_envs=5", "frames_per_batch=200", "seed=3")
NATIVE = "env.vectorization=vector_entry_point"
DISCRETE = ("env=gym", "env.id=FrozenLake-v1", "env.max_episode_steps=9")
"""Discrete observations; most episodes terminate, a few are truncated."""


def make(config: TrainConfig, kind: type[Collector], **options: Any) -> tuple[Any, Policy]:
    """A collector of a kind, and the policy, whose actions are far from uniform."""
    set_process_state(config)
    policy = make_policy_for(config)
    with torch.no_grad():
        for parameter in policy.actor_head.parameters():
            parameter.normal_(std=0.5)
    return single.make(config.collector, make_rollouts(config, policy), kind, **options), policy


def batches(
    config: TrainConfig, kind: type[Collector], between: Callable[[Any], object] = id, **options: Any
) -> list[TensorDictBase]:
    """Four batches of a policy whose statistics change from one to the next; ``between`` is done to the collector."""
    collector, policy = make(config, kind, **options)
    if kind is LeanCollector:
        assert collector.why_general is None
    found = []
    for batch in islice(collector, 4):
        found.append(batch.clone())
        policy.observe(batch["observation"])
        between(collector)
    collector.shutdown()
    return found


def assert_identical(found: TensorDictBase, expected: TensorDictBase) -> None:
    assert set(found.keys(True, True)) == set(expected.keys(True, True))
    for key, value in expected.items(True, True):
        assert torch.equal(found[key], value), key
        assert found[key].dtype == value.dtype, key


@pytest.mark.parametrize(
    ("env", "ends"),
    [
        (("env=cartpole_no_velocity", "env.max_episode_steps=17"), {"terminated", "truncated"}),
        ((NATIVE, "env.max_episode_steps=17"), {"terminated", "truncated"}),
        (("env=pendulum_no_velocity", "env.max_episode_steps=23"), {"truncated"}),
        (("env=pendulum_no_velocity", "env.max_episode_steps=23", "policy.noise_correlation=0.9"), {"truncated"}),
        (DISCRETE, {"terminated", "truncated"}),
        (("env=t_maze_active", "env.kwargs.length=2", "env.max_episode_steps=9"), {"terminated", "truncated"}),
    ],
    ids=["cartpole", "vector", "pendulum", "correlated noise", "discrete", "in torch"],
)
@pytest.mark.parametrize("cell", ["gru", "lstm", "none"])
def test_batches_are_those_of_torchrls_collector_bit_for_bit(
    cell: str, env: tuple[str, ...], ends: set[str], small: Compose
) -> None:
    config = small(f"cell={cell}", "cell.num_layers=2", *OPTIONS, *env)
    expected, found = batches(config, Collector), batches(config, LeanCollector)
    for ours, theirs in zip(found, expected, strict=True):
        assert_identical(ours, theirs)
    assert {key for key in ("terminated", "truncated") if any(b["next", key].any() for b in expected)} == ends


@pytest.mark.parametrize(
    "options", [{"reset_at_each_iter": True}, {"set_truncated": True}, {"track_traj_ids": True}], ids=str
)
def test_options_of_torchrls_collector_do_the_same(options: dict[str, bool], small: Compose) -> None:
    config = small(*OPTIONS, "env.max_episode_steps=17")
    for ours, theirs in zip(
        batches(config, LeanCollector, **options), batches(config, Collector, **options), strict=True
    ):
        assert_identical(ours, theirs)


def test_a_reset_between_two_batches_does_the_same(small: Compose) -> None:
    config = small(*OPTIONS, "env.max_episode_steps=17")
    between = [batches(config, kind, lambda collector: collector.reset()) for kind in (LeanCollector, Collector)]
    for ours, theirs in zip(*between, strict=True):
        assert theirs["is_init"][:, 0].all()
        assert_identical(ours, theirs)


def test_either_way_continues_where_the_other_ended(small: Compose) -> None:
    config = small(*OPTIONS, "cell=lstm", "env.max_episode_steps=17")
    ways = cycle(["for once", None])

    def other_way(collector: LeanCollector) -> None:
        collector.why_general = next(ways)

    for ours, theirs in zip(batches(config, LeanCollector, other_way), batches(config, Collector), strict=True):
        assert_identical(ours, theirs)


def test_hooks_on_the_policys_networks_are_called(small: Compose) -> None:
    collector, policy = make(small(*OPTIONS), LeanCollector)
    called: list[str] = []
    networks = {"encoder": policy.trunk.encoder[-1], "actor": policy.actor_head.network, "critic": policy.critic_head}
    for name, network in networks.items():
        network.register_forward_hook(lambda *_, name=name: called.append(name))
    next(iter(collector))
    collector.shutdown()
    assert called == [*networks] * 40


def test_a_policy_whose_probabilities_are_no_numbers_ends_the_collection(small: Compose) -> None:
    collector, policy = make(small(*OPTIONS), LeanCollector)
    with torch.no_grad():
        policy.actor_head.network.bias[0] = float("nan")
    with pytest.raises(NonFiniteError, match="produced non-finite action probabilities"):
        next(iter(collector))
    collector.shutdown()


def scaled_rewards(env: TransformedEnv) -> TransformedEnv:
    return env.append_transform(RewardScaling(0.0, 2.0))


def limited(env: TransformedEnv) -> TransformedEnv:
    return env.append_transform(StepCounter(max_steps=5, step_count_key="steps"))


def of_torchrl(env: TransformedEnv) -> TransformedEnv:
    """TorchRL's own environments, with the same transforms."""
    make = partial(GymEnv, "CartPole-v1", categorical_action_encoding=True)
    return TransformedEnv(SerialEnv(env.batch_size[0], make), env.transform.clone())


class Cautious(Policy):
    """A step of its own."""

    def step(self, *arguments: Any, **options: Any) -> Any:
        return super().step(*arguments[:3])


def test_a_policy_with_a_step_of_its_own_is_called_by_it(small: Compose) -> None:
    config = small(*OPTIONS)
    policy = make_policy_for(config)
    policy.__class__ = Cautious
    collector = single.make(config.collector, make_rollouts(config, policy))
    assert collector.why_general == "the policy overrides step, Cautious.step"
    batch = next(iter(collector))
    collector.shutdown()
    distribution, _, _, _ = policy.sequence(*policy.inputs(batch))
    assert torch.equal(batch["action"], distribution.logits.argmax(-1))


@pytest.mark.parametrize(
    ("overrides", "change_env", "reason"),
    [
        (["env.mask=[]"], of_torchrl, "environment is of type SerialEnv"),
        ([], scaled_rewards, "transform RewardScaling"),
        ([], limited, "transform StepCounter"),
    ],
    ids=["environment", "transform", "option of a transform"],
)
def test_what_it_does_not_know_takes_torchrls_way_and_is_said(
    overrides: list[str],
    change_env: Callable[[TransformedEnv], TransformedEnv] | None,
    reason: str,
    small: Compose,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = small(*OPTIONS, *overrides)
    if change_env is not None:
        monkeypatch.setattr(single, "make_env", lambda *arguments: change_env(make_env(*arguments)))
    policy = make_policy_for(config)
    collector = single.make(config.collector, make_rollouts(config, policy))
    assert isinstance(collector, LeanCollector)
    assert collector.why_general is not None
    assert reason in collector.why_general
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        f"Collection falls back to TorchRL's slower rollout: {collector.why_general}."
    ]
    assert next(iter(collector)).batch_size == (5, 40)
    collector.shutdown()


def test_the_fast_way_is_said_too(small: Compose, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="recurrl"):
        collector, _ = make(small(*OPTIONS), LeanCollector)
    collector.shutdown()
    assert "Collection steps on plain tensors." in caplog.messages
