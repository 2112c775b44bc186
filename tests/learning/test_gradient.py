"""Gradient steps that repeat recorded operations: the same bits as those of autograd, and only where that is safe."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tasks import ACTIONS, CUE, OBSERVATIONS
from tensordict import TensorDict
from torch import nn

from recurrl.build import make_collector, make_learner, make_policy_for, set_process_state
from recurrl.config import TrainConfig
from recurrl.learning.gradient import Gradient
from recurrl.learning.learner import Learner
from recurrl.losses import Losses
from recurrl.losses.ppo import PPOTerms

Compose = Callable[..., TrainConfig]

RECORDED = "Gradient steps repeat recorded operations."
NOT_TENSORS = "they give other numbers than autograd, so they depend on what is not a tensor."
ITERATIONS = 4
GRPO = ("algorithm=grpo", "algorithm.group_size=2", "env.max_episode_steps=16")


def spaces(observation: str, action: str) -> tuple[str, ...]:
    kwargs = (f"+env.kwargs.observation={observation}", f"+env.kwargs.action={action}")
    return ("env=gym", "env.packages=[tasks]", f"env.id={CUE}", "encoder.images=impala", *kwargs)


RUNS: dict[str, tuple[str, ...]] = {
    " ".join(overrides) or "default": overrides
    for overrides in (
        (),
        *((f"cell={cell}", f"recompute={recompute}") for cell in ("gru", "lstm") for recompute in ("none", "full")),
        ("cell.num_layers=2",),
        *((f"cell={cell}",) for cell in ("none", "mingru")),
        *((f"backend={backend}",) for backend in ("scan", "reference")),
        ("encoder.layer_norm=true", "policy.layer_norm=true", "policy.residual=true"),
        *((f"algorithm.critic={critic}",) for critic in ("recurrent", "feedforward")),
        *((f"algorithm.objective={objective}",) for objective in ("clip", "kl", "plain")),
        *((f"algorithm.normalize_advantage={unit}",) for unit in ("none", "batch", "minibatch")),
        ("algorithm.critic_loss=smooth_l1", "algorithm.clip_value=0.2", "algorithm.max_grad_norm=null"),
        ("algorithm.clip_final_fraction=0.1", "algorithm.clip_epsilon_high=0.3", "algorithm.entropy_final_fraction=0"),
        ("algorithm.entropy_coeff=0", "lr_schedule=adaptive", "algorithm.target_kl=0.001"),
        ("algorithm.advantage=vtrace",),
        ("buffer=replay",),
        *((f"state={state}",) for state in ("stored", "zero", "refresh")),
        ("state=burn_in", "burn_in_len=2"),
        ("env=pendulum_no_velocity", "policy.bounded_action=tanh"),
        ("env=pendulum_no_velocity", "policy.noise_correlation=0.5"),
        GRPO,
        *((*GRPO, f"algorithm.aggregation={kind}") for kind in ("token_mean", "prompt_mean", "episode")),
        (*GRPO, "algorithm.kl_to_ref_coeff=0.1", "algorithm.ref_refresh_updates=1"),
        (*GRPO, "algorithm.kl_to_inference_coeff=0.1", "algorithm.kl_mask_threshold=1e-3"),
        *(spaces(observation, "discrete") for observation in OBSERVATIONS),
        *(spaces("vector", action) for action in ACTIONS),
    )
}


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What was logged of recording."""
    caplog.set_level(logging.INFO, "recurrl.learning.gradient")
    return lambda: [line.getMessage() for line in caplog.records if line.name == "recurrl.learning.gradient"]


@pytest.fixture
def learnt(small: Compose, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Learner, list[dict[str, float]]]]:
    """A learner after four iterations, and its metrics.

    Overrides, and: what is done to the learner before each iteration; whether all steps are autograd's.
    """

    def run(
        *overrides: str, before: Callable[[Learner, int], None] = lambda *_: None, by_autograd: bool = False
    ) -> tuple[Learner, list[dict[str, float]]]:
        config = small("total_frames=256", "frames_per_batch=64", "slice_len=8", *overrides)
        set_process_state(config)
        policy = make_policy_for(config)
        collector, learner = make_collector(config, policy), make_learner(config, policy)
        with torch.no_grad():
            for parameter in policy.actor_head.parameters():
                parameter.normal_(std=0.5)
        metrics = []
        with monkeypatch.context() as patch:
            if by_autograd:
                patch.setattr(Gradient, "__call__", lambda self, minibatch, first: self.compute(minibatch))  # noqa: ARG005
            for k in range(ITERATIONS):
                before(learner, k)
                metrics.append(learner.learn(collector.collect(), progress=k / ITERATIONS))
        collector.shutdown()
        return learner, metrics

    return run


def check_equal(
    found: tuple[Learner, list[dict[str, float]]], expected: tuple[Learner, list[dict[str, float]]]
) -> None:
    torch.testing.assert_close(found[1], expected[1], rtol=0, atol=0, equal_nan=True)
    states = found[0].policy.state_dict()
    assert all(torch.equal(states[name], value) for name, value in expected[0].policy.state_dict().items())
    for mine, other in zip(found[0]._vectors, expected[0]._vectors, strict=True):
        assert torch.equal(mine.grad, other.grad)


@pytest.mark.parametrize("overrides", RUNS.values(), ids=RUNS)
def test_repeated_steps_are_those_of_autograd_bit_for_bit(
    overrides: tuple[str, ...], learnt: Callable[..., Any], logged: Callable[[], list[str]]
) -> None:
    found = learnt(*overrides)
    assert logged() == [RECORDED]
    check_equal(found, learnt(*overrides, by_autograd=True))


class Counting(PPOTerms):
    """Does more than tensor operations."""

    calls = 0

    def forward(self, *given: Any) -> Losses:
        Counting.calls += 1
        return super().forward(*given)


class Reading(PPOTerms):
    """Looks at the minibatch, and does something else with some."""

    def forward(self, distribution: Any, value: Any, data: Any) -> Losses:
        losses = super().forward(distribution, value, data)
        factor = 1.0 + float(data["advantage"].numpy().std())
        return Losses({name: term * factor for name, term in losses.terms.items()}, losses.metrics)


def replaced(terms: type[PPOTerms]) -> Callable[[Learner, int], None]:
    def replace(learner: Learner, iteration: int) -> None:
        if iteration == 0:
            state = learner.algorithm.loss.terms.state_dict()
            learner.algorithm.loss.terms = terms(entropy_coeff=0.1)
            learner.algorithm.loss.terms.load_state_dict(state)

    return replace


def hooked(learner: Learner, iteration: int) -> None:
    if iteration == 0:
        learner.policy.trunk.encoder.register_forward_hook(lambda *_: None)


def with_dropout(learner: Learner, iteration: int) -> None:
    if iteration == 0:
        learner.policy.trunk.encoder.append(nn.Dropout(0.1))


NOT_REPEATED: dict[str, tuple[tuple[str, ...], Callable[[Learner, int], None], str]] = {
    "a module of a user's": ((), replaced(Counting), "Counting is neither torch's nor ours"),
    "a hook": ((), hooked, "a Sequential has hooks"),
    "random": ((), with_dropout, "aten.bernoulli_.float is random"),
    "segments packed in Python": (("backend=pad",), lambda *_: None, r"a tensor of shape \(.*\) comes from elsewhere"),
}


@pytest.mark.parametrize(("overrides", "before", "reason"), NOT_REPEATED.values(), ids=NOT_REPEATED)
def test_what_is_more_than_tensor_operations_is_left_to_autograd_and_the_log_says_so(
    overrides: tuple[str, ...],
    before: Callable[[Learner, int], None],
    reason: str,
    learnt: Callable[..., Any],
    logged: Callable[[], list[str]],
) -> None:
    Counting.calls = 0
    found = learnt(*overrides, before=before)
    (line,) = logged()
    assert re.fullmatch(f"Gradient steps are computed by autograd, .* cannot be repeated: {reason}.", line), line
    assert Counting.calls in (0, sum(metrics["optim/steps"] for metrics in found[1]))
    check_equal(found, learnt(*overrides, before=before, by_autograd=True))


def test_a_loss_of_ours_that_depends_on_values_in_python_is_found_out_on_the_next_minibatch(
    learnt: Callable[..., Any], logged: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reading, "__module__", "recurrl.losses")
    found = learnt(before=replaced(Reading))
    assert NOT_TENSORS in logged()[0]
    check_equal(found, learnt(before=replaced(Reading), by_autograd=True))


def test_a_number_of_ours_that_changes_is_found_out_at_the_next_iteration(
    learnt: Callable[..., Any], logged: Callable[[], list[str]]
) -> None:
    def change(learner: Learner, iteration: int) -> None:
        learner.algorithm.loss.terms.critic_coeff = 0.5 if iteration < 2 else 0.1

    found = learnt(before=change)
    recorded, refused = logged()
    assert recorded == RECORDED
    assert NOT_TENSORS in refused
    check_equal(found, learnt(before=change, by_autograd=True))


def test_minibatches_of_other_shapes_are_left_to_autograd(learnt: Callable[..., Any]) -> None:
    def shorten(learner: Learner, iteration: int) -> None:
        learner.buffer.minibatch_slices = 2 if iteration == 2 else 4

    check_equal(learnt(before=shorten), learnt(before=shorten, by_autograd=True))


def test_entries_in_another_order_are_those_of_the_same_name(
    learnt: Callable[..., Any], logged: Callable[[], list[str]]
) -> None:
    swapped = {"advantage": "value_target", "value_target": "advantage"}

    def reorder(learner: Learner, iteration: int) -> None:
        epoch = learner.buffer.epoch
        if iteration == 1:
            learner.buffer.epoch = lambda: (
                TensorDict(
                    {at: minibatch[at] for at in (swapped.get(key, key) for key, _ in minibatch.items())}, [4, 8]
                )
                for minibatch in epoch()
            )

    found = learnt(before=reorder)
    assert logged() == [RECORDED]
    check_equal(found, learnt(before=reorder, by_autograd=True))


def test_gradients_that_are_not_finite_are_repeated_too(learnt: Callable[..., Any]) -> None:
    def breaks(learner: Learner, iteration: int) -> None:
        learner.algorithm.loss.terms.entropy_coeff *= torch.nan if iteration == 1 else 1.0
        learner.algorithm._entropy_coeff.fill_(torch.nan if iteration == 1 else 0.1)

    found = learnt("max_skipped_steps=1000", before=breaks)
    check_equal(found, learnt("max_skipped_steps=1000", before=breaks, by_autograd=True))
