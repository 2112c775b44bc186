"""The states that slices start from, and what gradients flow where: against a loop over single steps."""

from itertools import pairwise

import pytest
import torch
from collected import with_rollout
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from recurrl.algorithms.advantages import next_values, reevaluate
from recurrl.algorithms.states import SliceStates
from recurrl.buffers.on_policy import SliceBuffer
from recurrl.build import make_policy_for
from recurrl.config import BufferConfig
from recurrl.config.plugins import options_class
from recurrl.config.run import STATE_MODES
from recurrl.keys import PREVIOUS_ACTION
from recurrl.policy import ACTION, LOG_PROB, OBSERVATION, VALUE


@pytest.fixture(scope="module", params=["gru", "lstm", "my_package.fast_weight_cell:FastWeight"])
def policy(request, small):
    """A policy in float64, far from its initial zeros."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    config = small("encoder.sizes=[4]", "backend=reference")
    config.cell = options_class("cell", request.param)(name=request.param, hidden_size=5, num_layers=2)
    policy = make_policy_for(config).double()
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    yield policy
    torch.set_default_dtype(torch.float32)


@st.composite
def cut_rows(draw):
    """Rows, slices per row, steps per slice, and where episodes start."""
    rows, per_row, slice_len = draw(st.integers(1, 3)), draw(st.integers(2, 3)), draw(st.integers(2, 4))
    count = rows * per_row * slice_len
    return rows, per_row, slice_len, draw(st.lists(st.booleans(), min_size=count, max_size=count))


def rows_of(policy, rows, per_row, slice_len, resets):
    """Rows of random numbers with resets."""
    steps = per_row * slice_len
    is_init = torch.tensor(resets).reshape(rows, steps, 1)
    done = torch.cat((is_init[:, 1:], torch.zeros(rows, 1, 1, dtype=torch.bool)), 1)
    states = {key: torch.randn(rows, steps, *shape) for key, shape in policy.state_shapes.items()}
    for state in states.values():
        state[is_init.squeeze(-1)] = 0.0
    after = {OBSERVATION: torch.randn(rows, steps, 2), "done": done, "terminated": torch.zeros_like(done)}
    after |= {key: torch.randn_like(state) for key, state in states.items()}
    entries = {OBSERVATION: torch.randn(rows, steps, 2), "is_init": is_init, ACTION: torch.randint(2, (rows, steps))}
    entries |= {LOG_PROB: torch.randn(rows, steps), VALUE: torch.randn(rows, steps, 1), "next": after}
    return TensorDict(entries | states, [rows, steps])


def stored_at(policy, row, t):
    return {key: row[key][t : t + 1] for key in policy.state_keys}


def one_by_one(policy, row, entering):
    """Runs the steps of a row one after the other; an episode's start takes the state stored there."""
    done = []
    for t in range(row.shape[0]):
        step = row[t : t + 1].select(OBSERVATION, ACTION)
        state = stored_at(policy, row, t) if t > 0 and bool(row["is_init"][t]) else entering
        state = {**state, PREVIOUS_ACTION: row[PREVIOUS_ACTION][t : t + 1]}  # recorded, whatever the weights
        _, _, step[VALUE], entering, distribution, _ = policy.step(step[OBSERVATION], state)
        step[LOG_PROB], step["next"] = distribution.log_prob(step[ACTION]), TensorDict(entering, [1])
        done.append(step)
    return done, entering


def expected_start(policy, state, slice_len, row, begin):
    """The state that the slice beginning at step ``begin`` of a row starts from, by the definition of each policy."""
    stored = stored_at(policy, row, begin)
    if state == "zero":
        return {key: torch.zeros_like(value) for key, value in stored.items()}
    if state == "stored" or begin == 0 or bool(row["is_init"][begin]):
        return stored
    first = begin - slice_len // 2 if state == "burn_in" else 0
    return one_by_one(policy, row[first:begin], stored_at(policy, row, first))[1]


def plain_loss(steps):
    value = torch.cat([step[VALUE].flatten() for step in steps])
    return (value**2).sum() + torch.cat([step[LOG_PROB].flatten() for step in steps]).sum()


def gradients(policy, loss):
    # Those that the loss does not reach are none.
    return list(torch.autograd.grad(loss, list(policy.parameters()), allow_unused=True, materialize_grads=True))


def slices_of(states, rows, slice_len):
    """All slices of the rows, each with the state it starts from."""
    states.set_rows(rows)
    states.begin_epoch(rows)
    (slices,) = SliceBuffer(BufferConfig(name="on_policy"), slice_len, rows.numel() // slice_len).minibatches(rows)
    states.set_initial_states(slices)
    return slices


@pytest.mark.parametrize("state", STATE_MODES)
@settings(max_examples=5, deadline=None)
@given(cut=cut_rows())
def test_losses_and_gradients_are_those_of_a_loop_from_a_constant_state(policy, state, cut):
    rows, slice_len = rows_of(policy, *cut), cut[2]
    expected = torch.zeros(())
    for row in rows.clone().unbind(0):
        for begin in range(0, row.shape[0], slice_len):
            start = expected_start(policy, state, slice_len, row, begin)
            detached = {key: value.detach() for key, value in start.items()}
            expected = expected + plain_loss(one_by_one(policy, row[begin : begin + slice_len], detached)[0])
    minibatch = slices_of(SliceStates(policy, state, slice_len), rows, slice_len)
    assert not any(minibatch[key].requires_grad for key in policy.state_keys)
    output = policy.sequence(*policy.inputs(minibatch))
    loss = (output.value**2).sum() + output.distribution.log_prob(minibatch[ACTION]).sum()
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(gradients(policy, loss), gradients(policy, expected), rtol=1e-8, atol=1e-9)


@settings(max_examples=5, deadline=None)
@given(cut=cut_rows())
def test_values_and_bootstraps_are_recomputed_with_the_current_weights(policy, cut):
    rows = rows_of(policy, *cut)
    before = rows.clone()
    ratio = reevaluate(rows, policy)
    torch.testing.assert_close(ratio.squeeze(-1).log() + before[LOG_PROB], rows[LOG_PROB], rtol=1e-9, atol=1e-9)
    bootstraps = next_values(rows, policy)
    for n, row in enumerate(before.unbind(0)):
        with torch.no_grad():
            steps, _ = one_by_one(policy, row, stored_at(policy, row, 0))
        values, log_probs = (torch.cat([step[key] for step in steps]) for key in (VALUE, LOG_PROB))
        torch.testing.assert_close((rows[VALUE][n], rows[LOG_PROB][n]), (values, log_probs), rtol=1e-9, atol=1e-9)
        for t, step in enumerate(steps):
            if not (bool(row["next", "done"][t]) or t == row.shape[0] - 1):
                torch.testing.assert_close(bootstraps[n, t], values[t + 1], rtol=1e-9, atol=1e-9)
                continue
            after = row[t : t + 1].select(ACTION, *policy.state_keys)
            after.update(row["next"][t : t + 1].select(OBSERVATION, PREVIOUS_ACTION))
            with torch.no_grad():
                (last,), _ = one_by_one(policy, after, dict(step["next"]))
            torch.testing.assert_close(bootstraps[n, t], last[VALUE][0], rtol=1e-9, atol=1e-9)
    of_another = rows.clone().set(VALUE, 3 * rows[VALUE])
    torch.testing.assert_close(next_values(of_another, policy, lambda output: 3 * output.value), 3 * bootstraps)
    for key in policy.state_keys:
        torch.testing.assert_close(rows[key][:, 0], before[key][:, 0], rtol=0, atol=0)


OPTIONS = ("frames_per_batch=128", "slice_len=8", "minibatch_slices=16", "backend=pad")


def test_the_norm_of_each_state_is_logged_as_it_was_collected(small):
    algorithm, batch = with_rollout(small(*OPTIONS, "cell=lstm", "state=refresh"))
    before = batch.clone()
    metrics = algorithm.update(batch, progress=0.0)
    for name in ("recurrent_state_h", "recurrent_state_c"):
        expected = before[name].squeeze(2).square().sum(-1).sqrt().mean().item()
        assert expected > 0
        assert metrics[f"state/{name}_norm"] == pytest.approx(expected, rel=1e-5)


def test_states_are_refreshed_before_each_epoch_and_nothing_else_is(small, monkeypatch):
    algorithm, batch = with_rollout(small(*OPTIONS, "state=refresh", "epochs=3"))
    begin_epoch, seen = algorithm.states.begin_epoch, []

    def spy(rows):
        begin_epoch(rows)
        seen.append(rows.clone())

    monkeypatch.setattr(algorithm.states, "begin_epoch", spy)
    algorithm.update(batch, progress=0.0)
    assert len(seen) == 3
    (key,) = algorithm.policy.state_keys
    for earlier, later in pairwise(seen):
        steps = (earlier[key] != later[key]).flatten(2).any(-1).any(0).nonzero().flatten()
        assert steps.tolist() == list(range(8, batch.shape[1], 8))  # the starts of slices but the first of a row
        assert (earlier.exclude(key) == later.exclude(key)).all()


def test_drift_is_the_relative_distance_of_current_states_from_recorded_ones(policy):
    resets = [False, False, True, False, False, False, True, False, False]
    rows = rows_of(policy, 1, 3, 3, resets)
    minibatch = slices_of(states := SliceStates(policy, "stored", 3), rows, 3)
    difference, recorded = 0.0, 0.0
    row = rows[0]
    for begin in (0, 3, 6):
        with torch.no_grad():
            steps, _ = one_by_one(policy, row[begin : begin + 3], stored_at(policy, row, begin))
        for t, step in enumerate(steps):
            if t == 2 or resets[begin + t + 1]:
                for key in policy.state_keys:
                    then = row["next", key][begin + t]
                    difference += float((step["next", key][0] - then).square().sum())
                    recorded += float(then.square().sum())
    assert states.drift(minibatch)["state/drift"] == pytest.approx((difference / recorded) ** 0.5)
