"""Encoders: each kind of observation by its own network, statistics where they belong, and what is too small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, TensorSpec, Unbounded

from recurrl.config import TrainConfig
from recurrl.errors import ConfigError
from recurrl.keys import ACTION_MASK, PREVIOUS_ACTION, PREVIOUS_REWARD
from recurrl.policy.encoders.images import make_image_encoder
from recurrl.policy.encoders.mlp import ONE_HOT_LIMIT, make_encoder, observe
from recurrl.policy.normalization import ObservationNormalizer

Compose = Callable[..., TrainConfig]


def image(*shape: int) -> Unbounded:
    return Unbounded(shape, dtype=torch.uint8)


def encoded(config: TrainConfig, spec: TensorSpec, observation: Any) -> torch.Tensor:
    torch.manual_seed(0)
    encoder, width = make_encoder(config, spec)
    result = encoder(observation)
    assert result.shape == (5, width)
    return result


def test_the_nature_network_is_the_papers() -> None:
    network, features = make_image_encoder("nature", "", image(84, 84, 4))
    assert features == 512
    assert sum(parameter.numel() for parameter in network.parameters()) == 1_684_128
    assert network(torch.zeros(2, 3, 84, 84, 4, dtype=torch.uint8)).shape == (2, 3, 512)


@pytest.mark.parametrize("shape", [(84, 84, 4), (72, 96, 3), (7, 7, 3), (1, 1)], ids=str)
def test_the_impala_network_has_fifteen_convolutions_and_takes_any_size(shape: tuple[int, ...]) -> None:
    network, features = make_image_encoder("impala", "", image(*shape))
    assert features == 256
    assert sum(isinstance(module, nn.Conv2d) for module in network.modules()) == 15
    assert network(torch.zeros(2, *shape, dtype=torch.uint8)).shape == (2, 256)


def test_an_image_is_the_same_with_its_channels_first_or_last_and_as_bytes_or_numbers() -> None:
    torch.manual_seed(0)
    last, _ = make_image_encoder("nature", "", image(36, 40, 3))
    first, _ = make_image_encoder("nature", "", image(3, 36, 40))
    numbers, _ = make_image_encoder("nature", "", Bounded(0, 1, (36, 40, 3), dtype=torch.float32))
    first.load_state_dict(last.state_dict())
    numbers.load_state_dict(last.state_dict())
    pixels = torch.randint(256, (5, 36, 40, 3), dtype=torch.uint8)
    torch.testing.assert_close(first(pixels.movedim(-1, 1)), last(pixels))
    torch.testing.assert_close(numbers(pixels / 255), last(pixels))
    assert not torch.equal(last(pixels)[0], last(pixels)[1])


def test_an_image_that_is_too_small_is_refused_with_what_to_do(compose: Compose) -> None:
    spec = Composite(camera=Composite(left=image(35, 80, 3)))
    with pytest.raises(ConfigError) as caught:
        make_encoder(compose(), spec)
    assert str(caught.value) == (
        "The observation camera.left is an image of 35×80 pixels, too small for encoder.images=nature, which "
        "needs 36×36. Choose encoder.images=impala, which takes any size, or enlarge the images, for example "
        "with gymnasium.wrappers.ResizeObservation."
    )
    make_encoder(compose("encoder.images=impala"), spec)


@pytest.mark.parametrize(
    ("spec", "observation", "vector"),
    [
        (Categorical(3), torch.tensor([0, 1, 2, 2, 0]), torch.eye(3)[[0, 1, 2, 2, 0]]),
        (MultiCategorical([2, 3]), torch.tensor([[0, 2]] * 5), torch.tensor([[1.0, 0, 0, 0, 1]] * 5)),
        (Categorical(2, shape=(2,)), torch.tensor([[0, 1]] * 5), torch.tensor([[1.0, 0, 0, 1]] * 5)),
        (Binary(3), torch.ones(5, 3, dtype=torch.int8), torch.ones(5, 3)),
        (Unbounded((2, 2)), torch.ones(5, 2, 2), torch.ones(5, 4)),
    ],
    ids=["discrete", "multi-discrete", "equally many values", "binary", "matrix"],
)
def test_what_is_no_vector_becomes_one(
    spec: TensorSpec, observation: torch.Tensor, vector: torch.Tensor, compose: Compose
) -> None:
    torch.testing.assert_close(encoded(compose("encoder.sizes=[]"), spec, observation), vector)


def test_many_values_are_looked_up_instead_of_one_hot(compose: Compose) -> None:
    spec = Categorical(ONE_HOT_LIMIT + 1)
    result = encoded(compose("encoder.sizes=[]"), spec, torch.tensor([0, 5, 5, ONE_HOT_LIMIT, 0]))
    assert result.shape[1] == compose().cell.hidden_size
    assert torch.equal(result[1], result[2])
    assert not torch.equal(result[0], result[1])


DICT = Composite(
    vector=Unbounded((3,)),
    symbol=Categorical(4),
    camera=image(36, 36, 1),
    inner=Composite(number=Unbounded((1,))),
    action_mask=Binary(6),
    previous_action=Bounded(-1, 1, (2,)),
    previous_reward=Unbounded((1,)),
)


def test_each_entry_of_a_dict_has_its_own_network_and_the_mask_has_none(compose: Compose) -> None:
    config = compose("encoder.sizes=[16]")
    encoder, width = make_encoder(config, DICT)
    assert width == 16 + 16 + 512 + 16 + 2 + 1
    assert (ACTION_MASK,) not in encoder.paths
    assert {(PREVIOUS_ACTION,), (PREVIOUS_REWARD,)} < set(encoder.paths)


def test_a_mask_alone_is_nothing_to_see(compose: Compose) -> None:
    with pytest.raises(ConfigError, match="holds only an action mask"):
        make_encoder(compose(), Composite(action_mask=Binary(3)))


def test_statistics_are_of_vectors_only(compose: Compose) -> None:
    encoder, _ = make_encoder(compose(), DICT)
    sizes = [module.mean.numel() for module in encoder.modules() if isinstance(module, ObservationNormalizer)]
    assert sorted(sizes) == [1, 1, 3]  # the number, the previous reward and the vector
    seen = DICT.expand(7).zero()
    seen["vector"] += torch.tensor([1.0, 2.0, 3.0])
    observe(encoder, seen)
    means = {module.mean.numel(): module.mean for module in encoder.modules() if hasattr(module, "moments")}
    assert means[3].tolist() == [1.0, 2.0, 3.0]


def test_hidden_layers_are_orthogonal_with_gain_sqrt_2(compose: Compose) -> None:
    encoder, _ = make_encoder(compose("encoder.sizes=[8]"), image(36, 36, 1))
    weights = [module.weight.flatten(1) for module in encoder.modules() if isinstance(module, nn.Conv2d)]
    vector, _ = make_encoder(compose("encoder.sizes=[8]"), Unbounded((9,)))
    weights += [module.weight for module in vector.modules() if isinstance(module, nn.Linear)]
    assert len(weights) == 4
    for weight in weights:
        torch.testing.assert_close(weight @ weight.T, 2 * torch.eye(weight.shape[0]), rtol=0, atol=1e-5)
