"""``encoder=mlp``: each kind of observation by its own network."""

from dataclasses import replace

import pytest
import torch
from rejections import error_of
from torch import nn
from torch.nn import functional
from torchrl.data import Categorical, Composite, MultiCategorical, Unbounded

from recurrl.config.cell import ACTIVATIONS
from recurrl.policy.encoders.mlp import EMBEDDING, ONE_HOT_LIMIT, make

IMAGE = Unbounded((36, 36, 1), dtype=torch.uint8)


VECTORS = {
    "discrete": (Categorical(3), torch.tensor([0, 1, 2, 2, 0]), torch.eye(3)[[0, 1, 2, 2, 0]]),
    "multi-discrete": (MultiCategorical([2, 3]), torch.tensor([[0, 2]] * 5), torch.tensor([[1.0, 0, 0, 0, 1]] * 5)),
    "equally many values": (Categorical(2, shape=(2,)), torch.tensor([[0, 1]] * 5), torch.tensor([[1.0, 0, 0, 1]] * 5)),
    "matrix": (Unbounded((2, 2)), torch.ones(5, 2, 2), torch.ones(5, 4)),
}


@pytest.mark.parametrize(("spec", "observation", "vector"), VECTORS.values(), ids=VECTORS)
def test_every_observation_becomes_a_vector(spec, observation, vector, encoder_options):
    torch.testing.assert_close(make(encoder_options("encoder.sizes=[]"), spec)(observation), vector)


def test_each_layer_is_followed_by_the_activation(encoder_options):
    inputs, default = torch.randn(5, 3), encoder_options("encoder.sizes=[8,4]")
    assert default.activation == "tanh"
    for name in ACTIVATIONS:
        encoder, function = make(replace(default, activation=name), Unbounded((3,))), getattr(functional, name)
        first, second = (module for module in encoder.modules() if isinstance(module, nn.Linear))
        torch.testing.assert_close(encoder(inputs), function(second(function(first(inputs)))), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.uint16, torch.uint32, torch.uint64])
@pytest.mark.parametrize("spec", [Categorical(3), MultiCategorical([2, 3]), Categorical(ONE_HOT_LIMIT + 1)])
def test_choices_may_have_any_integer_type(spec, dtype, encoder_options):
    encoder, chosen = make(encoder_options(), spec), spec.zero((5,)) + 1
    assert torch.equal(encoder(chosen.to(dtype)), encoder(chosen))


def test_many_values_have_an_embedding_rather_than_one_hot_vectors(encoder_options):
    encoder = make(encoder_options("encoder.sizes=[]"), Categorical(ONE_HOT_LIMIT + 1))
    features = encoder(torch.tensor([0, 5, 5, ONE_HOT_LIMIT, 0]))
    assert features.shape == (5, EMBEDDING)
    assert torch.equal(features[1], features[2])
    assert not torch.equal(features[0], features[1])


def test_each_entry_of_a_mapping_has_its_own_network(encoder_options):
    inner = Composite(number=Unbounded((1,)))
    spec = Composite(vector=Unbounded((3,)), symbol=Categorical(4), camera=IMAGE, inner=inner)
    assert make(encoder_options("encoder.sizes=[16]"), spec)(spec.zero((7,))).shape == (7, 16 + 16 + 512 + 16)


def test_an_image_that_is_too_small_is_rejected_by_the_name_of_its_entry(encoder_options):
    spec = Composite(camera=Composite(left=Unbounded((35, 80, 3), dtype=torch.uint8)))
    assert error_of(make, encoder_options("encoder.images=nature"), spec) == (
        "Observation entry camera.left: An image of 35×80 pixels is too small for encoder.images=nature, which needs "
        "36×36. Choose encoder.images=impala, which takes any size, or enlarge the images, for example with "
        "gymnasium.wrappers.ResizeObservation."
    )


def test_hidden_layers_are_orthogonal_with_gain_sqrt_2(encoder_options):
    networks = nn.ModuleList([make(encoder_options(), spec) for spec in (IMAGE, Unbounded((9,)))])
    layers = [module for module in networks[0].modules() if isinstance(module, nn.Conv2d)]
    layers += [module for module in networks[1].modules() if isinstance(module, nn.Linear)]
    assert len(layers) == 4
    for layer in layers:
        matrix = layer.weight.flatten(1)
        torch.testing.assert_close(matrix @ matrix.T, 2 * torch.eye(len(matrix)), rtol=0, atol=1e-5)
