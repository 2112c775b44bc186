"""Distributions of actions: log-probabilities, entropies and modes by formula, masks, and sums over parts."""

import math
from itertools import product

import pytest
import torch
from tensordict import TensorDict
from torch.distributions import Categorical, Normal, TanhTransform, TransformedDistribution
from torchrl.modules.distributions.utils import has_analytic_entropy

from recurrl.policy.distributions import (
    Bits,
    ClippedGaussian,
    Gaussian,
    Joint,
    LazyCategorical,
    SquashedGaussian,
    entries,
    multi_categorical,
)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def normal_logits(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_several_choices_are_the_product_of_single_ones():
    logits = normal_logits(7, 9)
    distribution = multi_categorical((2, 4, 3), logits)
    parts = [Categorical(logits=part) for part in logits.split((2, 4, 3), -1)]
    action = distribution.sample((100,))
    assert action.shape == (100, 7, 3)
    torch.testing.assert_close(distribution.log_prob(action), sum(map(Categorical.log_prob, parts, action.unbind(-1))))
    torch.testing.assert_close(distribution.entropy(), sum(part.entropy() for part in parts))
    torch.testing.assert_close(distribution.mode, torch.stack([part.mode for part in parts], -1))


def test_a_mask_makes_a_choice_impossible_and_the_others_share_its_probability():
    logits = normal_logits(5)
    mask = torch.tensor([1, 0, 1, 1, 0], dtype=torch.int8)
    distribution, allowed = LazyCategorical(logits, mask), mask.bool()
    assert set(distribution.sample((2000,)).tolist()) == {0, 2, 3}
    expected = logits - logits[allowed].logsumexp(0)
    torch.testing.assert_close(distribution.log_prob(torch.tensor([0, 2, 3])), expected[allowed])
    torch.testing.assert_close(distribution.entropy(), -(expected.exp() * expected)[allowed].sum())
    assert distribution.mode == torch.where(allowed, logits, -math.inf).argmax()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_through_a_mask_are_finite_and_zero_where_it_forbids(dtype):
    logits = torch.randn(6, dtype=dtype, requires_grad=True)
    mask = torch.tensor([0, 1, 1, 0, 0, 1])
    distribution = multi_categorical((3, 3), logits, mask)
    (gradient,) = torch.autograd.grad(distribution.log_prob(torch.tensor([1, 2])) + distribution.entropy(), logits)
    assert gradient.isfinite().all()
    assert (gradient[mask == 0] == 0).all()
    assert (gradient[1:3] != 0).all()


def test_bits_are_independent_and_a_tie_is_zero():
    logits = torch.tensor([[0.0, 2.0, -1.0]], dtype=torch.float64)
    distribution = entries(Bits, 1, logits)
    action = entries(Bits, 1, logits.expand(500, 3)).action_from_noise(torch.randn(500, 3))
    assert action.dtype == torch.int8
    assert set(action.flatten().tolist()) == {0, 1}
    probability = torch.sigmoid(logits)
    expected = torch.where(action == 1, probability, 1 - probability).log().sum(-1)
    torch.testing.assert_close(distribution.log_prob(action), expected)
    entropy = -(probability * probability.log() + (1 - probability) * (1 - probability).log()).sum(-1)
    torch.testing.assert_close(distribution.entropy(), entropy)
    assert distribution.mode.tolist() == [[0, 1, 0]]


CLIPPED = list(product([0.0, 0.5, -3.0, 20.0], [0.05, 0.6, 1.7, 30.0]))
"""Means and standard deviations of Gaussians that are clipped to −1 and 1."""
INSIDE = torch.linspace(-1, 1, 100_001, dtype=torch.float64)[1:-1, None]


@pytest.mark.parametrize(("loc", "scale"), CLIPPED)
def test_a_clipped_action_has_a_density_inside_a_probability_at_each_bound_and_the_entropy_of_both(loc, scale):
    normal = Normal(torch.tensor([loc], dtype=torch.float64), scale)
    distribution = entries(ClippedGaussian, 1, normal.loc, normal.scale)
    inside, bounds = distribution.log_prob(INSIDE), distribution.log_prob(torch.tensor([[-1.0], [1.0], [-7.0], [7.0]]))
    torch.testing.assert_close(inside, normal.log_prob(INSIDE).squeeze(-1))
    expected = torch.stack([normal.cdf(torch.tensor(-1.0)), 1 - normal.cdf(torch.tensor(1.0))]).squeeze(-1)
    torch.testing.assert_close(bounds.exp(), expected.repeat(2), rtol=1e-6, atol=1e-12)
    expected = -torch.trapezoid(inside.exp() * inside, INSIDE.squeeze(-1)) - (bounds.exp() * bounds)[:2].sum()
    torch.testing.assert_close(distribution.entropy(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_a_clipped_action_are_finite_however_far_the_mean_is_beyond_a_bound(dtype):
    means, scales = torch.tensor([-1000.0, -20.0, -1.0, 0.0, 1.0, 20.0, 1000.0]), torch.tensor([0.05, 1.0, 20.0])
    parameters = [each[:, None].to(dtype).requires_grad_() for each in torch.cartesian_prod(means, scales).unbind(-1)]
    distribution = entries(ClippedGaussian, 1, *parameters)
    actions = torch.tensor([-1000.0, -1.0, 0.0, 0.5, 1.0, 1000.0], dtype=dtype).view(-1, 1, 1)
    for total in (distribution.log_prob(actions).sum(), distribution.entropy().sum()):
        assert total.isfinite()
        assert all(each.isfinite().all() for each in torch.autograd.grad(total, parameters, retain_graph=True))


def test_a_squashed_action_has_the_density_that_the_change_of_variables_gives():
    loc, scale = torch.randn(4, 2, dtype=torch.float64), torch.rand(4, 2, dtype=torch.float64) + 0.2
    distribution = entries(SquashedGaussian, 1, loc, scale)
    expected = TransformedDistribution(Normal(loc, scale), [TanhTransform()])
    action = distribution.sample((50,))
    assert action.abs().max() < 1
    torch.testing.assert_close(distribution.log_prob(action), expected.log_prob(action).sum(-1))
    torch.testing.assert_close(distribution.mode, loc.tanh())


@pytest.mark.parametrize("scale", [0.05, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("loc", [0.0, 1.5, -4.0])
def test_the_entropy_of_a_squashed_action_is_its_integral(loc, scale):
    parameters = [torch.tensor([value], dtype=torch.float64, requires_grad=True) for value in (loc, scale)]
    before = torch.linspace(-12, 12, 200_001, dtype=torch.float64) * scale + loc  # by the variable before squashing
    normal = Normal(*parameters)
    log_density = normal.log_prob(before) - 2 * (math.log(2) - before - torch.nn.functional.softplus(-2 * before))
    expected = -torch.trapezoid(normal.log_prob(before).exp() * log_density, before)
    torch.testing.assert_close(entries(SquashedGaussian, 1, *parameters).entropy(), expected, rtol=0, atol=1e-3)
    assert has_analytic_entropy(entries(SquashedGaussian, 1, *parameters))  # for TorchRL's losses


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_squashed_log_probabilities_are_as_large_as_a_gaussians(dtype):
    """Also of actions that were rounded to ±1, however far beyond the bound the mean is."""
    means = torch.tensor([*range(-12, 13), -1000.0, -20.0, 20.0, 1000.0], dtype=dtype)
    scales = torch.tensor([0.05, 0.2, 0.5, 1.0, 3.0], dtype=dtype)
    loc, scale = (each.reshape(-1, 1).requires_grad_() for each in torch.cartesian_prod(means, scales).unbind(-1))
    z = torch.randn(2_000, len(loc), 1, dtype=dtype)
    action = torch.tanh(loc + scale * z).detach()
    assert (action.abs() == 1).any()
    shown = [each.detach().expand_as(z).clone().requires_grad_() for each in (loc, scale)]
    log_prob = entries(SquashedGaussian, 1, *shown).log_prob(action)
    assert log_prob.isfinite().all()
    by_loc, by_scale = torch.autograd.grad(log_prob.sum(), shown)
    y = z.abs() + 0.05 / scale
    assert (by_loc.abs() <= (y + 1) / scale).all()
    assert ((scale * by_scale).abs() <= (y + 1) ** 2).all()


@pytest.mark.parametrize(("loc", "scale"), [(0.0, 1.0), (6.5, 0.7), (-7.5, 0.5), (20.0, 0.5)])
def test_the_density_of_a_squashed_action_integrates_to_one_with_its_bounds(loc, scale):
    distribution = entries(SquashedGaussian, 1, torch.tensor([loc]), torch.tensor([scale]))
    width = 8 * torch.finfo(torch.float32).eps
    ends = distribution.log_prob(torch.tensor([[-1.0], [1.0]])).double().exp().sum() * width
    limit = math.atanh(1 - width)
    before = torch.linspace(-limit, limit, 20_001, dtype=torch.float64)
    normal = Normal(torch.tensor(loc).double(), torch.tensor(scale).double())
    assert (ends + torch.trapezoid(normal.log_prob(before).exp(), before)).item() == pytest.approx(1, abs=1e-4)


def test_the_parts_of_an_action_add_up():
    loc = torch.arange(6.0).reshape(3, 2)
    made = {
        "aim": entries(Gaussian, 1, loc, torch.full((3, 2), 0.5)),
        ("legs", "step"): LazyCategorical(torch.arange(12.0).reshape(3, 4)),
        ("legs", "jump"): entries(Bits, 1, torch.full((3, 1), 0.3)),
        "lever": entries(SquashedGaussian, 1, loc / 5, torch.ones(3, 2)),
    }
    distribution = Joint(made, noise_sizes=[2, 4, 1, 2])
    action = distribution.action_from_noise(torch.randn(3, 9))
    assert isinstance(action, TensorDict)
    assert action["legs", "step"].shape == (3,)
    parts, chosen = dict(distribution.parts), distribution.mode
    torch.testing.assert_close(distribution.log_prob(action), sum(p.log_prob(action[k]) for k, p in parts.items()))
    torch.testing.assert_close(distribution.entropy(), sum(part.entropy() for part in parts.values()))
    assert torch.equal(chosen["aim"], distribution.parts["aim"].mean)
    assert chosen["legs", "step"].tolist() == [3, 3, 3]


COUNT = 200_000
LOGITS = torch.tensor([[0.5, -1.0, 2.0, 0.0]])
SAMPLED = {
    "categorical": (LazyCategorical(LOGITS.expand(COUNT, 4)), 4),
    "masked": (LazyCategorical(LOGITS.expand(COUNT, 4), torch.tensor([1, 1, 0, 1])), 4),
    "multi-categorical": (multi_categorical((2, 4), torch.cat((LOGITS, LOGITS[:, :2]), -1).expand(COUNT, 6)), 8),
    "binary": (entries(Bits, 1, LOGITS.expand(COUNT, 4)), 4),
    "gaussian": (entries(Gaussian, 1, LOGITS.expand(COUNT, 4), LOGITS.exp().expand(COUNT, 4)), 4),
    "clipped": (entries(ClippedGaussian, 1, LOGITS.expand(COUNT, 4), LOGITS.exp().expand(COUNT, 4)), 4),
    "squashed": (entries(SquashedGaussian, 1, LOGITS.expand(COUNT, 4), LOGITS.exp().expand(COUNT, 4)), 4),
}


@pytest.mark.parametrize("kind", SAMPLED)
def test_actions_from_noise_are_distributed_as_samples(kind):
    distribution, size = SAMPLED[kind]
    actions, samples = distribution.action_from_noise(torch.randn(COUNT, size)), distribution.sample()
    assert actions.shape == samples.shape
    values = [each.double().reshape(COUNT, -1) for each in (actions, samples)]
    # Frequencies of choices; for numbers, of those below the quartiles of the samples.
    edges = values[1].quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64), 0)
    edges = edges if actions.is_floating_point() else torch.arange(3.0)[:, None].expand(3, values[0].shape[1])
    below = [torch.stack([(each <= edge).double().mean(0) for edge in edges]) for each in values]
    deviation = (2 * below[1] * (1 - below[1]) / COUNT).sqrt()
    assert ((below[0] - below[1]).abs() <= 5 * deviation).all()
    if actions.ndim > 1:  # entries are independent
        assert (torch.corrcoef(values[0].T) - torch.eye(values[0].shape[1])).abs().max() < 0.02


def test_noise_in_the_tails_chooses_only_what_is_allowed():
    noise = torch.cartesian_prod(*[torch.tensor([-8.0, -5.5, 0.0, 5.5, 8.0])] * 3)
    actions = LazyCategorical(torch.zeros(len(noise), 3), torch.tensor([1, 0, 1])).action_from_noise(noise)
    assert set(actions.tolist()) == {0, 2}
