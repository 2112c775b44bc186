"""Running statistics of observations and rewards."""

from unittest.mock import Mock

import pytest
import torch
from in_ranks import in_ranks, met
from rejections import error_of

from recurrl.errors import NonFiniteError
from recurrl.policy.normalization import ObservationNormalizer, RewardScaler, RunningMoments, RunningScale
from recurrl.runtime.ranks import world


def test_moments_of_parts_equal_those_of_the_whole():
    torch.manual_seed(0)
    samples = torch.randn(5, 7, 3) * torch.tensor([1.0, 10.0, 0.1]) + torch.tensor([0.0, 100.0, -3.0])
    moments = RunningMoments(3)
    for part in samples.split((1, 3, 1)):
        moments.update(part)
    flat = samples.double().flatten(0, 1)
    torch.testing.assert_close(moments.mean, flat.mean(0))
    torch.testing.assert_close(moments.variance, flat.var(0, correction=0))
    moments.update(samples[:0])
    torch.testing.assert_close(moments.variance, flat.var(0, correction=0))
    assert moments.count == 35
    empty = RunningMoments()
    empty.update(torch.zeros(0))
    assert (empty.mean, empty.variance, empty.count) == (0, 1, 0)


def test_normalised_observations_have_zero_mean_unit_deviation_and_no_outliers():
    torch.manual_seed(0)
    normalizer = ObservationNormalizer(2)
    samples = torch.randn(4000, 2) * 3 + 5
    normalizer.update_statistics(samples)
    normalised = normalizer(samples)
    torch.testing.assert_close(normalised.mean(0), torch.zeros(2), rtol=0, atol=1e-4)
    torch.testing.assert_close(normalised.std(0), torch.ones(2), rtol=0, atol=1e-3)
    assert normalised.dtype == samples.dtype
    assert normalizer(torch.tensor([[1e9, -1e9]])).tolist() == [[10.0, -10.0]]


def test_statistics_in_use_are_replaced_when_the_observations_have_doubled():
    normalizer = ObservationNormalizer(1)
    replaced = []
    for iteration in range(1, 20):
        before = normalizer.mean.clone()
        normalizer.update_statistics(torch.full((10, 1), float(iteration)))
        if normalizer.mean != before:
            replaced.append(iteration)
            assert normalizer.mean.item() == pytest.approx((iteration + 1) / 2)  # all seen so far
    assert replaced == [1, 2, 4, 8, 16]


@pytest.mark.parametrize(("size", "is_rescaled"), [(0.0, False), (1.0, False), (3.0, False), (5.0, True)])
def test_a_network_is_not_rescaled_for_an_entry_whose_deviation_has_grown_much(size, is_rescaled):
    normalizer, reader = ObservationNormalizer(2), Mock()
    normalizer.update_statistics(torch.tensor([[1.0, size], [2.0, -size]]), reader)
    normalizer.update_statistics(torch.tensor([[1.0, 5.0], [2.0, -7.0]]), reader)
    (rescaled,) = reader.rescale_input.call_args_list
    factor, shift = rescaled.args
    assert (factor[0], shift[0]) == (1, 0)
    assert ((factor[1] > 1) & (shift[1] < 0)).item() == is_rescaled
    assert (factor[1] == 1).item() == (shift[1] == 0).item() != is_rescaled


def test_rewards_are_divided_by_the_deviation_of_the_discounted_return():
    gamma = 0.9
    rewards = torch.tensor([[1.0, 2.0, 3.0, 4.0], [0.0, -1.0, 1.0, 5.0]])
    is_init = torch.tensor([[True, False, True, False], [True, False, False, False]])
    scaler = RewardScaler(2, gamma, 1.0, running=True)
    # In two batches: the discounted return runs on from the first into the second.
    for part in (slice(0, 2), slice(2, 4)):
        scaler.update_statistics(rewards[:, part], is_init[:, part])
    returns = []
    for row, starts in zip(rewards.tolist(), is_init.tolist(), strict=True):
        total = 0.0
        for reward, start in zip(row, starts, strict=True):
            total = gamma * (0.0 if start else total) + reward
            returns.append(total)
    torch.testing.assert_close(scaler(rewards), rewards / torch.tensor(returns).std(correction=0))


@pytest.mark.parametrize(("scale", "running"), [(0.5, True), (1.0, True), (8.0, True), (0.05, False)])
def test_small_and_rare_rewards_are_amplified_by_their_scale_only(scale, running):
    scaler = RewardScaler(2, 0.9, scale, running)
    rewards = torch.tensor([[0.0, 0.0, 0.25], [0.0, 0.0, 0.0]])
    scaler.update_statistics(rewards, torch.zeros(2, 3, dtype=torch.bool))
    torch.testing.assert_close(scaler(rewards), scale * rewards)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf, 1e200])
def test_statistics_reject_what_is_not_finite_and_stay_as_they_were(wrong):
    normalizer = ObservationNormalizer(2)
    normalizer.update_statistics(torch.randn(3, 4, 2))
    before = {name: value.clone() for name, value in normalizer.state_dict().items()}
    samples = torch.zeros(3, 4, 2, dtype=torch.float64)
    samples[1, 2, 0] = wrong
    assert "received NaN or Inf" in error_of(normalizer.update_statistics, samples, kind=NonFiniteError)
    assert all(torch.equal(value, before[name]) for name, value in normalizer.state_dict().items())


def test_a_running_scale_follows_what_is_finite_and_does_not_begin_at_zero():
    scale = RunningScale()
    assert scale.value == 1.0
    scale.update(torch.tensor([3.0, -3.0]))
    for bad in (torch.nan, torch.inf):
        scale.update(torch.tensor([bad, 1.0]))
    assert scale.value.item() == pytest.approx(3.0)
    for _ in range(100):
        scale.update(torch.tensor([0.5, -0.5]))
    assert scale.value.item() == pytest.approx(0.5, rel=1e-2)


def test_the_running_scale_of_ranks_is_that_of_all_their_samples():
    samples = torch.tensor([3.0, 4.0, -5.0, 0.1]), torch.empty(0)

    def of_a_rank():
        scale = RunningScale()
        for of_ranks in (samples, samples[::-1], (samples[0][:1], samples[0][1:])):
            scale.update(of_ranks[world().rank])
        return scale.value.item()

    alone = RunningScale()
    for _ in range(3):
        alone.update(samples[0])
    assert in_ranks(2, met(of_a_rank)) == pytest.approx([alone.value.item()] * 2)
