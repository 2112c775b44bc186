"""Convolutional networks: the papers' sizes, and every layout of an image."""

import pytest
import torch
from torch import nn
from torchrl.data import Bounded, Unbounded

from recurrl.errors import ConfigError
from recurrl.policy.encoders.images import image_network, make_image_network
from recurrl.policy.encoders.mlp import Bits, make


def image(*shape):
    return Unbounded(shape, dtype=torch.uint8)


def test_the_nature_network_is_the_papers():
    network = make_image_network("nature", image(84, 84, 4))
    assert sum(parameter.numel() for parameter in network.parameters()) == 1_684_128
    assert network(torch.zeros(2, 84, 84, 4, dtype=torch.uint8)).shape == (2, 512)


@pytest.mark.parametrize("shape", [(84, 84, 4), (72, 96, 3), (7, 7, 3), (1, 1)], ids=str)
def test_the_impala_network_has_fifteen_convolutions_and_takes_any_size(shape):
    network = make_image_network("impala", image(*shape))
    assert sum(isinstance(module, nn.Conv2d) for module in network.modules()) == 15
    assert network(torch.zeros(2, *shape, dtype=torch.uint8)).shape == (2, 256)


@pytest.mark.parametrize("kind", ["nature", "impala"])
def test_features_do_not_grow_with_the_weights_of_convolutions(kind):
    network = make_image_network(kind, image(36, 36, 3))
    pixels = torch.randint(256, (5, 36, 36, 3), dtype=torch.uint8)
    for _ in range(2):
        features = network(pixels)
        assert (features.square().mean(-1) < 1).all()
        assert (features.square().mean(-1) > 0.1).all()
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.mul_(4)


def test_an_image_is_the_same_with_channels_first_or_last_and_in_any_dtype():
    torch.manual_seed(0)
    last = make_image_network("nature", image(36, 40, 3))
    first = make_image_network("nature", image(3, 36, 40))
    numbers = make_image_network("nature", Bounded(0, 1, (36, 40, 3), dtype=torch.float32))
    first.load_state_dict(last.state_dict())
    numbers.load_state_dict(last.state_dict())
    pixels = torch.randint(256, (5, 36, 40, 3), dtype=torch.uint8)
    torch.testing.assert_close(first(pixels.movedim(-1, 1)), last(pixels))
    torch.testing.assert_close(numbers(pixels / 255), last(pixels))
    assert not torch.equal(last(pixels)[0], last(pixels)[1])


CHOSEN = {
    "bits": (image(7, 7, 3), image(3, 13, 13), image(8, 8)),
    "impala": (image(20, 20, 3), image(35, 80, 3), Bounded(0, 1, (7, 7, 3), dtype=torch.float32)),
    "nature": (image(64, 64, 3), image(84, 84, 4)),
}


@pytest.mark.parametrize(("spec", "kind"), [(spec, kind) for kind, specs in CHOSEN.items() for spec in specs])
def test_the_network_is_chosen_by_the_size(spec, kind, encoder_options):
    assert image_network("auto", spec) == kind
    assert image_network("nature", spec) == "nature"
    layers = [type(module) for module in make(encoder_options("encoder.images=auto"), spec).modules()]
    assert (Bits in layers) == (kind == "bits")
    assert (nn.Conv2d in layers) == (kind != "bits")


def test_bits_are_those_of_each_byte_in_order(encoder_options):
    pixels = torch.randint(256, (4, 7, 6, 3), dtype=torch.uint8)
    bits = Bits()(pixels).reshape(4, -1, 8)
    assert torch.equal((bits * 2 ** torch.arange(8)).sum(-1).byte(), pixels.flatten(1))
    with pytest.raises(ConfigError, match=r"encoder.images must be nature or impala for torch.float32 \(got bits\)"):
        make(encoder_options("encoder.images=bits"), Bounded(0, 1, (7, 7, 3), dtype=torch.float32))
