"""The interface between an algorithm and the learner: each way of not keeping to it is an error message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution

from recurrl.build import make_collector, make_learner, make_policy_for, set_process_state
from recurrl.config import TrainConfig
from recurrl.errors import ConfigError
from recurrl.learning.learner import Learner
from recurrl.learning.metrics import merged
from recurrl.losses import Losses
from recurrl.losses.ppo import PPOTerms

OPTIONS = ("frames_per_batch=64", "slice_len=8", "epochs=1", "minibatch_slices=2")
Change = Callable[[Losses, Mapping[str, Any]], Losses]


class Changed(PPOTerms):
    """PPO's losses, changed."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.change = change

    def forward(self, distribution: Distribution, value: Tensor, data: Mapping[str, Any]) -> Losses:
        return self.change(super().forward(distribution, value, data), data)


def learn(small: Callable[..., TrainConfig], prepare: Callable[[Learner], object]) -> dict[str, float]:
    config = small(*OPTIONS)
    set_process_state(config)
    policy = make_policy_for(config)
    collector, learner = make_collector(config, policy), make_learner(config, policy)
    prepare(learner)
    try:
        return learner.learn(collector.collect(), progress=0.0)
    finally:
        collector.shutdown()


def plus(**terms: Tensor) -> Change:
    return lambda losses, _: Losses({**losses.terms, **terms}, losses.metrics)


def plus_metrics(metrics: Mapping[str, Any]) -> Change:
    return lambda losses, _: Losses(losses.terms, {**losses.metrics, **metrics})


def sometimes(losses: Losses, data: Mapping[str, Any]) -> Losses:
    return plus(rare=torch.zeros(()))(losses, data) if (data["index"] == 0).any() else losses


ZERO = torch.zeros(())
FAULTS: dict[str, tuple[Change, str]] = {
    "no terms": (lambda losses, _: Losses({}, losses.metrics), "The loss of algorithm=ppo has no terms."),
    "a term per slice": (plus(foo=torch.zeros(8)), r"returns loss/foo of shape \(8,\). Return a scalar tensor"),
    "a term that is a number": (plus(foo=0.0), "returns loss/foo of shape float. Return a scalar tensor"),
    "a metric per slice": (plus_metrics({"policy/foo": torch.zeros(8)}), r"returns policy/foo of shape \(8,\)"),
    "a metric named as a term": (
        plus_metrics({"loss/critic": ZERO}),
        "returns loss/critic both as a term and as a metric. Rename the metric.",
    ),
    "a metric that the learner needs is missing": (
        lambda losses, _: Losses(losses.terms, {"policy/kl_approx": ZERO}),
        "lacks the metric policy/kl, which the learner follows",
    ),
    "a metric of the learner's": (plus_metrics({"optim/lr": ZERO}), "The metric optim/lr is logged by two parts"),
    "a metric of the rollout's": (plus_metrics({"advantage/mean": ZERO}), "The metric advantage/mean is logged by two"),
    "a metric of the gradient steps": (
        plus_metrics({"optim/grad_norm": ZERO}),
        "The metric optim/grad_norm is logged by two parts",
    ),
    "terms of some minibatches only": (sometimes, r"returns \['rare'\] for some minibatches only"),
    "an entry that is not in the minibatch": (
        lambda losses, data: plus(foo=data["nonesuch"].mean())(losses, data),
        'failed with KeyError.*"nonesuch".* name it in the algorithm\'s keys',
    ),
}


@pytest.mark.parametrize(("change", "message"), FAULTS.values(), ids=FAULTS)
def test_a_loss_that_breaks_the_interface_is_refused(
    change: Change, message: str, small: Callable[..., TrainConfig]
) -> None:
    def prepare(learner: Learner) -> None:
        learner.algorithm.loss.terms = Changed(change)

    with pytest.raises(ConfigError, match=message):
        learn(small, prepare)


def test_a_key_that_the_rollout_does_not_have_is_refused(small: Callable[..., TrainConfig]) -> None:
    with pytest.raises(ConfigError, match="algorithm=ppo names the keys nonesuch, which the rollout does not have"):
        learn(small, lambda learner: learner.algorithm.keys.append("nonesuch"))


def test_metrics_of_several_parts_keep_their_order_and_may_not_share_a_name() -> None:
    assert list(merged({"b": 1.0}, {"a": 2.0})) == ["b", "a"]
    with pytest.raises(ConfigError, match=r"The metric time/learn_s is logged by two parts of the run"):
        merged({"time/learn_s": 1.0}, {"time/learn_s": 2.0})
