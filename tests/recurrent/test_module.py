"""The TensorDict module: steps and sequences, keys, states."""

import pytest
import torch
from found import CELLS, layers_of
from parity import batch
from rejections import error_of
from tensordict import TensorDict

from recurrl.recurrent import GRUModule, LSTMModule, set_recurrent_mode


@pytest.fixture(params=CELLS)
def module(request):
    return layers_of(request.param, "auto", "none", (0, 0, 3, 5), num_layers=2)


def random_batch(module, *shape):
    is_init = torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.3
    return batch(module, is_init).set("is_init", is_init.unsqueeze(-1))


def test_a_sequence_equals_its_steps_one_by_one(module):
    data = random_batch(module, 4, 7)
    for key in module.state_keys:
        data[key][data["is_init"].squeeze(-1)] = 0.0  # like an environment's primer at a reset
    carried = {key: data[key][:, 0] for key in module.state_keys}
    outputs = []
    for t in range(7):
        step = module(data[:, t].select("x", "is_init").update(carried))
        carried = {key: step["next", key] for key in module.state_keys}
        outputs.append(step["y"])
    with set_recurrent_mode(True):
        sequence = module(data)
    torch.testing.assert_close(sequence["y"], torch.stack(outputs, 1))
    for key in module.state_keys:
        torch.testing.assert_close(sequence["next", key][:, -1], carried[key])


def test_a_step_zeroes_the_state_where_an_episode_starts(module):
    data = random_batch(module, 6)
    data["is_init"][:] = True
    zeroed = data.clone()
    for key in module.state_keys:
        zeroed[key].zero_()
        data[key].fill_(torch.nan)  # which must not survive
    zeroed["is_init"][:] = False
    torch.testing.assert_close(module(data)["y"], module(zeroed)["y"])


def test_next_states_are_zero_except_at_segment_ends(module):
    data = random_batch(module, 4, 7)
    ends = torch.ones(4, 7, dtype=torch.bool)
    ends[:, :-1] = data["is_init"].squeeze(-1)[:, 1:]
    with set_recurrent_mode(True):
        result = module(data)
    for key in module.state_keys:
        nonzero = (result["next", key] != 0).flatten(2).any(-1)
        assert torch.equal(nonzero, ends)


def test_a_flat_batch_of_slices_that_start_episodes_equals_the_stacked_slices(module):
    data = random_batch(module, 4, 7)
    data["is_init"][:, 0] = True
    with set_recurrent_mode(True):
        stacked = module(data.clone())["y"]
        flat = module(data.clone().reshape(28))["y"]
    torch.testing.assert_close(flat, stacked.reshape(28, 5))


def test_a_single_step_needs_no_batch_dimension(module):
    data = random_batch(module, 1)
    torch.testing.assert_close(module(data[0])["y"], module(data.clone())["y"][0])


def test_inputs_need_not_be_contiguous(module):
    data = random_batch(module, 7, 4)
    transposed = data.transpose(0, 1)
    with set_recurrent_mode(True):
        torch.testing.assert_close(module(transposed.clone())["y"], module(transposed.contiguous())["y"])


def test_a_primer_that_would_not_carry_the_state_is_rejected():
    module = GRUModule(3, 5, in_keys=["x", "h"], out_keys=["y", "h"])
    assert "written to [('next', 'h')]" in error_of(module.make_tensordict_primer, kind=RuntimeError)


def test_a_missing_entry_is_named(module):
    with pytest.raises(KeyError, match="is_init"):
        module(random_batch(module, 2).exclude("is_init"))
    with pytest.raises(KeyError, match="'x'"):
        module(random_batch(module, 2).exclude("x"))


def test_a_sequence_needs_a_time_dimension(module):
    with set_recurrent_mode(True), pytest.raises(ValueError, match="at least one batch dimension"):
        module(random_batch(module, 1)[0])


INVALID = [
    ({"in_key": "x", "in_keys": ["x", "h"], "out_key": "y"}, "Pass either in_key or in_keys"),
    ({"in_key": "x"}, "Pass either out_key or out_keys"),
    ({"in_keys": ["x"], "out_key": "y"}, "reads one input, 1 state"),
    ({"in_keys": ["x", "h", "resets"], "out_key": "y"}, "'is_init' last"),
    ({"in_key": "x", "out_keys": ["y"]}, "writes one output and 1 state"),
    ({"in_key": "x", "out_key": "y", "batch_first": False}, "batch_first=False is not possible"),
    ({"in_key": "x", "out_key": "y", "recurrent_backend": "fast"}, "Unknown recurrent_backend 'fast'"),
    ({"in_key": "x", "out_key": "y", "recurrent_recompute": "half"}, "Unknown recompute='half'"),
]


@pytest.mark.parametrize(("options", "message"), INVALID)
def test_invalid_options_raise_with_a_remedy(options, message):
    with pytest.raises(ValueError, match=message):
        GRUModule(3, 5, **options)


def test_dropout_acts_between_layers_in_training_only():
    torch.manual_seed(0)
    module = GRUModule(3, 64, num_layers=2, dropout=0.5, in_key="x", out_key="y")
    data = TensorDict({"x": torch.randn(4, 6, 3), "is_init": torch.zeros(4, 6, 1, dtype=torch.bool)}, [4, 6])
    with set_recurrent_mode(True):
        assert not torch.equal(module(data.clone())["y"], module(data.clone())["y"])
        module.eval()
        assert torch.equal(module(data.clone())["y"], module(data.clone())["y"])


@pytest.mark.parametrize("backend", ["reference", "pad", "scan"])
@pytest.mark.parametrize("module", [GRUModule, LSTMModule])
def test_training_may_follow_inference_on_the_same_resets(module, backend):
    layer = module(3, 4, recurrent_backend=backend, in_key="x", out_key="y")
    rows = TensorDict({"x": torch.randn(5, 12, 3), "is_init": torch.rand(5, 12, 1) < 0.3}, (5, 12))
    with set_recurrent_mode(True), torch.inference_mode():
        expected = layer(rows.clone())["y"]
    with set_recurrent_mode(True):
        found = layer(rows.clone())["y"]
    found.sum().backward()
    torch.testing.assert_close(found, expected)
