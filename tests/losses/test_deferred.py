"""Metrics that are computed for many minibatches at once."""

from __future__ import annotations

import pytest
import torch

from recurrl.losses.deferred import Deferred, Metrics, of_minibatches
from recurrl.losses.importance import ratio_metrics

M, B, T = 5, 4, 6


@pytest.mark.parametrize("masked", [False, True])
def test_of_many_minibatches_at_once_each_metric_is_that_of_each_minibatch(masked: bool) -> None:
    torch.manual_seed(0)
    log_ratio = torch.randn(M, B, T, 1, dtype=torch.float64)
    outside, mask = log_ratio.abs() > 1, torch.rand(M, B, T, 1) < 0.5
    mask[2] = False
    minibatches = [ratio_metrics(log_ratio[m], outside[m], mask[m] if masked else None) for m in range(M)]
    assert len(minibatches[0]) == 4
    for name in minibatches[0]:
        found = of_minibatches([metrics[name] for metrics in minibatches])
        for m, metrics in enumerate(minibatches):
            counted = log_ratio[m][mask[m]] if masked else log_ratio[m]
            ratio = counted.exp()
            expected = {
                "policy/kl_approx": -counted.mean(),
                "policy/kl": (ratio - 1 - counted).mean(),
                "policy/clip_fraction": (counted.abs() > 1).double().mean(),
                "policy/effective_sample_size": ratio.sum() ** 2 / (ratio**2).sum() / ratio.numel(),
            }[name]
            torch.testing.assert_close(found[m], torch.zeros_like(found[m]) if m == 2 and masked else expected)
            assert Metrics(metrics)[name] == found[m]


def test_a_metric_is_computed_when_it_is_read_and_not_before() -> None:
    calls = []

    def count(tensor: torch.Tensor) -> torch.Tensor:
        calls.append(tensor.shape)
        return tensor.sum(1)

    metrics = Metrics({"now": torch.ones(()), "later": Deferred(count, (torch.ones(3),))})
    assert list(metrics) == ["now", "later"]
    assert calls == []
    assert {**metrics, "own": 2.0} == {"now": 1.0, "later": 3.0, "own": 2.0}
    assert calls == [(1, 3)]


def test_minibatches_may_have_different_sizes_and_some_metrics_may_be_computed_already() -> None:
    values = [Deferred(lambda t: t.sum(1), (torch.ones(size),)) for size in (3, 3, 2)]
    assert of_minibatches([*values, torch.tensor(7.0)]).tolist() == [3, 3, 2, 7]
