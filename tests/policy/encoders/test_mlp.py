"""``encoder=mlp``: each kind of observation by its own network."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torchrl.data import Categorical, Composite, MultiCategorical, Unbounded

from recurrl.config.cell import ACTIVATIONS
from recurrl.errors import ConfigError
from recurrl.policy.encoders.mlp import EMBEDDING, ONE_HOT_LIMIT, make

IMAGE = Unbounded((36, 36, 1), dtype=torch.uint8)


@pytest.fixture(scope="session")
def options(small):
    return lambda *overrides: small(*overrides).encoder


VECTORS = {
    "discrete": (Categorical(3), torch.tensor([0, 1, 2, 2, 0]), torch.eye(3)[[0, 1, 2, 2, 0]]),
    "multi-discrete": (MultiCategorical([2, 3]), torch.tensor([[0, 2]] * 5), torch.tensor([[1.0, 0, 0, 0, 1]] * 5)),
    "equally many values": (Categorical(2, shape=(2,)), torch.tensor([[0, 1]] * 5), torch.tensor([[1.0, 0, 0, 1]] * 5)),
    "matrix": (Unbounded((2, 2)), torch.ones(5, 2, 2), torch.ones(5, 4)),
}


@pytest.mark.parametrize(("spec", "observation", "vector"), VECTORS.values(), ids=VECTORS)
def test_every_observation_becomes_a_vector(spec, observation, vector, options):
    torch.testing.assert_close(make(options("encoder.sizes=[]"), spec)(observation), vector)


def test_each_layer_is_followed_by_the_activation(options):
    inputs = torch.randn(5, 3)
    for name in ("", *ACTIVATIONS):
        chosen = [f"encoder.activation={name}"] if name else []
        encoder = make(options("encoder.sizes=[8,4]", *chosen), Unbounded((3,)))
        function = getattr(functional, name or "tanh")
        first, second = (module for module in encoder.modules() if isinstance(module, nn.Linear))
        torch.testing.assert_close(encoder(inputs), function(second(function(first(inputs)))), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.uint16, torch.uint32, torch.uint64])
@pytest.mark.parametrize("spec", [Categorical(3), MultiCategorical([2, 3]), Categorical(ONE_HOT_LIMIT + 1)])
def test_choices_may_have_any_integer_type(spec, dtype, options):
    encoder, chosen = make(options(), spec), spec.zero((5,)) + 1
    assert torch.equal(encoder(chosen.to(dtype)), encoder(chosen))


def test_many_values_have_an_embedding_rather_than_one_hot_vectors(options):
    encoder = make(options("encoder.sizes=[]"), Categorical(ONE_HOT_LIMIT + 1))
    features = encoder(torch.tensor([0, 5, 5, ONE_HOT_LIMIT, 0]))
    assert features.shape == (5, EMBEDDING)
    assert torch.equal(features[1], features[2])
    assert not torch.equal(features[0], features[1])


def test_each_entry_of_a_mapping_has_its_own_network(options):
    inner = Composite(number=Unbounded((1,)))
    spec = Composite(vector=Unbounded((3,)), symbol=Categorical(4), camera=IMAGE, inner=inner)
    encoder = make(options("encoder.sizes=[16]"), spec)
    assert encoder(spec.zero((7,))).shape == (7, 16 + 16 + 512 + 16)


def test_the_error_for_an_image_names_its_entry(options):
    spec = Composite(camera=Composite(left=Unbounded((35, 80, 3), dtype=torch.uint8)))
    with pytest.raises(ConfigError, match=r"^Observation entry camera\.left: An image of 35×80 pixels is too small"):
        make(options("encoder.images=nature"), spec)


def test_hidden_layers_are_orthogonal_with_gain_sqrt_2(options):
    weights = [module.weight for module in make(options(), IMAGE).modules() if isinstance(module, nn.Conv2d)]
    weights += [module.weight for module in make(options(), Unbounded((9,))).modules() if isinstance(module, nn.Linear)]
    assert len(weights) == 4
    for weight in weights:
        matrix = weight.flatten(1)
        torch.testing.assert_close(matrix @ matrix.T, 2 * torch.eye(len(matrix)), rtol=0, atol=1e-5)
