"""The TensorDict module: steps and sequences, keys, states."""

import pytest
import torch
from found import CELLS, layers_of
from parity import batch, resets, sequence
from rejections import error_of

from recurrl.recurrent import GRUModule, set_recurrent_mode


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
    carried = {key: data[key][:, 0].clone() for key in module.state_keys}
    outputs = []
    for t in range(7):
        for state in carried.values():
            state[data["is_init"][:, t, 0]] = torch.nan  # of an earlier episode, which must not survive
        step = module(data[:, t].select("x", "is_init").update(carried))
        carried = {key: step["next", key] for key in module.state_keys}
        outputs.append(step["y"])
    whole = sequence(module, data)
    torch.testing.assert_close(whole["y"], torch.stack(outputs, 1))
    for key in module.state_keys:
        torch.testing.assert_close(whole["next", key][:, -1], carried[key])


def test_next_states_are_zero_except_at_segment_ends(module):
    data = random_batch(module, 4, 7)
    ends = torch.ones(4, 7, dtype=torch.bool)
    ends[:, :-1] = data["is_init"].squeeze(-1)[:, 1:]
    result = sequence(module, data)
    for key in module.state_keys:
        nonzero = (result["next", key] != 0).flatten(2).any(-1)
        assert torch.equal(nonzero, ends)


def test_a_flat_batch_of_slices_that_start_episodes_equals_the_stacked_slices(module):
    data = random_batch(module, 4, 7)
    data["is_init"][:, 0] = True
    stacked, flat = (sequence(module, rows)["y"] for rows in (data, data.reshape(28)))
    torch.testing.assert_close(flat, stacked.reshape(28, 5))


def test_a_single_step_needs_no_batch_dimension(module):
    data = random_batch(module, 1)
    torch.testing.assert_close(module(data[0])["y"], module(data.clone())["y"][0])


def test_inputs_need_not_be_contiguous(module):
    data = random_batch(module, 7, 4)
    results = (sequence(module, rows)["y"] for rows in (data.transpose(0, 1), data.transpose(0, 1).contiguous()))
    torch.testing.assert_close(*results)


def test_a_primer_that_would_not_carry_the_state_is_rejected():
    module = GRUModule(3, 5, in_keys=["x", "h"], out_keys=["y", "h"])
    assert "written to [('next', 'h')]" in error_of(module.make_tensordict_primer, kind=RuntimeError)


def test_a_sequence_needs_a_time_dimension(module):
    with set_recurrent_mode(True), pytest.raises(ValueError, match="at least one batch dimension"):
        module(random_batch(module, 1)[0])


def test_dropout_acts_between_layers_in_training_only():
    torch.manual_seed(0)
    module = GRUModule(3, 64, num_layers=2, dropout=0.5, in_key="x", out_key="y")
    data = batch(module, resets("none", 4, 6))
    assert not torch.equal(sequence(module, data)["y"], sequence(module, data)["y"])
    module.eval()
    assert torch.equal(sequence(module, data)["y"], sequence(module, data)["y"])


@pytest.mark.parametrize("backend", ["reference", "pad", "scan"])
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_training_may_follow_inference_on_the_same_resets(cell, backend):
    layer = layers_of(cell, backend, "none", (5, 12, 3, 4))
    rows = random_batch(layer, 5, 12)
    rows["is_init"].bernoulli_(0.3)  # nothing has packed these before
    with torch.inference_mode():
        expected = sequence(layer, rows)["y"]
    found = sequence(layer, rows)["y"]
    found.sum().backward()
    torch.testing.assert_close(found, expected)
