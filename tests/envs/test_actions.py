"""Actions as environments receive them: within the action space, whatever the policy and the bounds."""

import numpy as np
import pytest
import torch
from counting_env import Counting
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from recurrl.envs.gymnasium_envs import InlineEnv
from recurrl.envs.interface import ActionPart
from recurrl.envs.policy_env import PolicyEnv
from recurrl.envs.spaces import spec_of
from recurrl.policy.preprocessing import PreviousAction


@st.composite
def boxes(draw):
    """Boxes of some dtype and shape; each dimension has two bounds, one, none, or two that are equal."""
    dtype = np.dtype(draw(st.sampled_from((np.float16, np.float32, np.float64))))
    shape = draw(arrays.array_shapes(min_dims=1, max_dims=2, max_side=3))
    finite = st.floats(allow_nan=False, allow_infinity=False, width=dtype.itemsize * 8)
    ends = np.sort(draw(arrays.arrays(dtype, (2, *shape), elements=finite)), 0)
    kinds = draw(arrays.arrays(np.int64, shape, elements=st.integers(0, 4)))
    low = np.where((kinds == 1) | (kinds == 3), -np.inf, ends[0])
    high = np.where((kinds == 2) | (kinds == 3), np.inf, np.where(kinds == 4, ends[0], ends[1]))
    return spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype.type)


def scaling(box):
    """From a policy's actions ``[N, ...]`` to those of a box, as arrays."""
    part = ActionPart((), spec_of(box, 1)[0])
    return lambda actions: part.to_env(torch.from_numpy(np.asarray(actions))).numpy()


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_an_action_is_inside_its_space_and_finite_and_keeps_the_order(data):
    box = data.draw(boxes())
    to_env = scaling(box)
    finite = st.one_of(st.floats(-1.5, 1.5, width=32), st.floats(allow_nan=False, allow_infinity=False, width=32))
    low, high = np.sort(data.draw(arrays.arrays(np.float32, (2, *box.shape), elements=finite)), 0)
    with np.errstate(over="ignore"):  # of bounds near the largest number of float64
        received = [to_env(action) for action in (low, high)]
    for action in received:
        assert action.dtype == box.dtype
        assert np.isfinite(action).all()
        assert box.contains(action)
    assert (received[0] <= received[1]).all()
    # A batch gets the same.
    assert np.array_equal(to_env(np.stack([low, high])), received)


@settings(max_examples=200, deadline=None)
@given(box=boxes(), place=st.floats(-1, 1, width=32))
def test_between_two_bounds_an_action_is_in_units_of_half_their_distance(box, place):
    to_env = scaling(box)
    found = to_env(np.full(box.shape, place, np.float32)).astype(np.longdouble)
    low, high = box.low.astype(np.longdouble), box.high.astype(np.longdouble)
    bounded = np.isfinite(box.low) & np.isfinite(box.high)
    expected = (low + (high - low) * (np.longdouble(place) + 1) / 2)[bounded]
    size = np.maximum(np.abs(low), np.abs(high))[bounded] + np.finfo(box.dtype).tiny
    assert (np.abs(found[bounded] - expected) <= 2 * np.finfo(box.dtype).eps * size).all()


class Recording(Counting):
    """Records its actions."""

    action_space = spaces.Box(np.float32([-0.3, 2, -np.inf, 0]), np.float32([0.9, 2, 1, np.inf]))

    def reward(self, action):
        assert self.action_space.contains(action), action
        self.received = action
        return 0.0


@pytest.mark.parametrize("size", [0.0, 0.5, 9.0, 3e38])
def test_each_dimension_obeys_its_own_bounds(size, compose):
    inner = Recording()
    raw = InlineEnv([inner], "Recording-v0")
    env = PolicyEnv(raw, compose("env.mask=[]").env)
    seen = PreviousAction(env.interface.action_spec)
    env.reset_tensors(None)
    for sign in (-1, 1):
        action = torch.full((1, 4), sign * size)
        env.step_tensors(action)
        a = np.float32(sign * size)
        assert inner.received[1:].tolist() == [2.0, min(a, 1), max(a, 0)]
        assert seen(action)[0].tolist() == [np.clip(a, -1, 1), 0.0, min(a, 1), max(a, 0)]


def test_an_environment_may_write_into_its_action():
    part, chosen = ActionPart((), spec_of(spaces.MultiDiscrete([3, 3]), 1)[0]), torch.ones(1, 2, dtype=torch.int64)
    assert part.to_env(chosen).data_ptr() != chosen.data_ptr()
