"""What reaches an encoder: dtypes, the spec of it, and normalisation where it belongs."""

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, Unbounded

from recurrl.errors import ConfigError
from recurrl.policy.normalization import ObservationNormalizer
from recurrl.policy.preprocessing import make_preprocessing

MAPPING = Composite(
    vector=Unbounded((3,)),
    matrix=Unbounded((2, 2), dtype=torch.float64),
    ram=Bounded(0, 255, (5,), dtype=torch.uint8),
    symbol=Categorical(4),
    symbols=MultiCategorical([2, 3]),
    bits=Binary(3),
    camera=Unbounded((36, 36, 1), dtype=torch.uint8),
    picture=Bounded(0, 1, (4, 4, 3), dtype=torch.float64),
    inner=Composite(number=Unbounded((1,)), other=Unbounded((1,))),
    action_mask=Binary(6),
    previous_reward=Unbounded((1,)),
)
AS_THEY_ARE = {"symbol": torch.int64, "symbols": torch.int64, "camera": torch.uint8}


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("batch", [(5,), (5, 7)], ids=["steps", "sequences"])
def test_what_reaches_the_encoder_is_what_its_spec_says(batch, normalize):
    preprocess, spec = make_preprocessing(MAPPING, normalize)
    observation = MAPPING.rand(batch)
    prepared = TensorDict(preprocess(observation), batch)
    assert spec.expand(*batch).is_in(prepared)
    assert set(prepared.keys(True, True)) == set(MAPPING.keys(True, True)) - {"action_mask"}
    for key, value in prepared.items(True, True):
        assert value.dtype == AS_THEY_ARE.get(key, torch.float32)
        if key != "ram" or not normalize:  # bytes above the normaliser's limit
            torch.testing.assert_close(value.double(), observation[key].double())


def test_each_entry_of_numbers_has_its_own_statistics():
    preprocess, _ = make_preprocessing(MAPPING, normalize=True)
    seen = MAPPING.expand(7, 2).zero()
    seen["vector"] += torch.tensor([1.0, 2.0, 3.0])
    seen["matrix"] += torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    preprocess.update_statistics(seen, nn.Identity())
    assert preprocess(seen)["vector"].abs().max() == 0
    means = [module.mean for module in preprocess.modules() if isinstance(module, ObservationNormalizer)]
    # The vector, the matrix, the bytes, two numbers within, and the previous reward.
    assert [tuple(mean.shape) for mean in means] == [(3,), (2, 2), (5,), (1,), (1,), (1,)]
    assert [mean.tolist() for mean in means[:2]] == [[1.0, 2.0, 3.0], [[1.0, 2.0], [3.0, 4.0]]]
    without, _ = make_preprocessing(MAPPING, normalize=False)
    assert not any(isinstance(module, ObservationNormalizer) for module in without.modules())


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.int32])
def test_numbers_that_vary_little_beside_their_size_remain_apart(dtype):
    preprocess, _ = make_preprocessing(Unbounded((1,), dtype=dtype), normalize=True)
    seconds = (1_700_000_000 + torch.arange(60).unsqueeze(-1)).to(dtype)
    preprocess.update_statistics(seconds)
    torch.testing.assert_close(preprocess(seconds), (torch.arange(60) - 29.5).unsqueeze(-1) / (3599 / 12) ** 0.5)


def test_a_mask_alone_is_rejected():
    with pytest.raises(ConfigError, match="holds only an action mask"):
        make_preprocessing(Composite(action_mask=Binary(3)), normalize=False)
