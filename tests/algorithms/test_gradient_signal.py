"""The share of signal in gradients, and the epochs and replay that follow from it."""

import pytest
import torch
from collected import with_rollout, with_rollouts
from torch import nn

from recurrl.algorithms.gradient_signal import AVERAGE_RATE, ENOUGH_SIGNAL, GradientSignal
from recurrl.keys import LOG_PROB

SIZES = (3, 197)


def parameters(gradient):
    """Parameters with a gradient, and one without."""
    made = [nn.Parameter(torch.zeros(size)) for size in (*SIZES, 5)]
    for each, part in zip(made, gradient.split(SIZES), strict=False):
        each.grad = part.clone()
    return made


def measured(signal, *epochs):
    for gradients in epochs:
        for gradient in gradients:
            signal.add(parameters(gradient))
        signal.end_epoch()
    return signal.share


@pytest.mark.parametrize(("deviation", "count"), [(0.5, 4), (2.0, 4), (2.0, 16), (20.0, 4)])
def test_the_share_is_that_of_the_true_gradient_in_the_mean_of_minibatches(deviation, count):
    torch.manual_seed(0)
    true = torch.randn(sum(SIZES))
    epochs = true + deviation * torch.randn(400, count, sum(SIZES))
    signal, noise = float(true.square().sum()), deviation**2 * sum(SIZES) / count
    assert measured(GradientSignal(), *epochs) == pytest.approx(signal / (signal + noise), abs=0.03)


def test_minibatches_in_which_no_step_counts_are_none_of_the_epochs():
    gradient, signal = torch.randn(sum(SIZES)), GradientSignal()
    for taken in (1.0, 0.0, 1.0, 0.0):
        signal.add(parameters(gradient * taken), torch.tensor(taken))
    signal.end_epoch()
    assert signal.share == pytest.approx(1.0)
    measured(signal, [gradient, gradient])
    signal.add(parameters(gradient))
    signal.add(parameters(0 * gradient), torch.tensor(0.0))
    signal.end_epoch()
    assert signal.share == pytest.approx(1.0)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_the_share_ignores_single_minibatches_and_non_finite_gradients(value):
    gradient, signal = torch.randn(sum(SIZES)), GradientSignal()
    assert measured(signal, [gradient], [gradient, torch.full_like(gradient, value)]) == 1.0
    assert measured(signal, [gradient, -0.9 * gradient]) == 0.0
    assert measured(signal, [torch.full_like(gradient, value), gradient]) == 0.0


EPOCHS = [
    *((1.0, 10, 0.4, 10), (ENOUGH_SIGNAL, 10, 0.4, 10), (ENOUGH_SIGNAL / 4, 10, 0.4, 5)),
    *((0.0, 10, 0.4, 4), (0.0, 10, 1.0, 10), (0.0, 10, 0.0, 1), (0.0, 1, 0.4, 1)),
]


@pytest.mark.parametrize(("share", "max_epochs", "min_fraction", "expected"), EPOCHS)
def test_epochs_follow_the_square_root_of_the_share(share, max_epochs, min_fraction, expected):
    signal = GradientSignal()
    signal.averages.copy_(torch.tensor([share, 1.0]))
    assert signal.epochs(max_epochs, min_fraction) == expected


@pytest.mark.parametrize(("min_fraction", "explained", "epochs"), [("0.4", 0.9, 2), ("1", 0.9, 5), ("0.4", 0.1, 5)])
def test_fewer_epochs_are_taken_on_noise_once_the_critic_explains_returns(min_fraction, explained, epochs, small):
    config = small("frames_per_batch=64", "slice_len=8", "epochs=5", f"min_epochs_fraction={min_fraction}")
    algorithm, batch = with_rollout(config)
    algorithm.gradient_signal.averages.copy_(torch.tensor([-1e6, 1e6]))
    algorithm.explained.fill_(explained)
    metrics = algorithm.update(batch, progress=0.0)
    assert metrics["optim/signal"] == 0.0
    assert metrics["optim/steps"] == epochs * (64 // 8 // 4)


@pytest.mark.parametrize(("averages", "ratio"), [((-1e6, 1e6), 3), ((1e6, 4e6), 2), ((1e6, 1e6), 1)])
def test_an_update_replays_earlier_rows_where_gradients_are_noise(averages, ratio, small):
    """By signal shares of 0, a quarter and 1; only with earlier rows are log-probabilities computed again."""
    config = small("frames_per_batch=64", "slice_len=8", "buffer.rollouts=2", "buffer.replay_ratio=3")
    algorithm, batches = with_rollouts(config, 3, std=0.5)
    for batch, done in zip(batches, (0.0, 0.1, 0.2), strict=True):
        algorithm.gradient_signal.averages.copy_(torch.tensor(averages))
        batch[LOG_PROB] += 1.0
        wrong = batch[LOG_PROB].clone()
        metrics = algorithm.update(batch, done)
    assert metrics["optim/replay_ratio"] == ratio
    assert len(algorithm.rows) == ratio * len(batch)
    assert torch.equal(algorithm.rows[LOG_PROB][: len(batch)], wrong) == (ratio == 1)


def test_the_explained_variance_is_averaged_from_zero_and_a_negative_one_counts_as_zero(small):
    algorithm, batch = with_rollout(small("buffer=on_policy", "frames_per_batch=64", "slice_len=8"))
    reward = torch.randn(batch.shape)
    batch["next", "done"].fill_(True)
    batch["state_value"] = reward.unsqueeze(-1) * 0.5
    explained = algorithm.prepare(batch, reward)["value/explained_variance"]
    assert explained > 0.5
    assert float(algorithm.explained) == pytest.approx(explained * AVERAGE_RATE)
    batch["state_value"] = reward.unsqueeze(-1) * 5
    assert algorithm.prepare(batch, reward)["value/explained_variance"] < -1
    assert float(algorithm.explained) == pytest.approx(explained * AVERAGE_RATE * (1 - AVERAGE_RATE))
