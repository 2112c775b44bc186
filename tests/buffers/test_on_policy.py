"""Slices: every frame is seen exactly once an epoch, and a slice is a contiguous piece of one row."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from recurrl.buffers.on_policy import SliceBuffer
from recurrl.config import BufferConfig

OPTIONS = BufferConfig(name="on_policy")


def made_rows(rows, steps):
    """Rows with episodes of random lengths; each frame has its own number."""
    frame = torch.arange(rows * steps).reshape(rows, steps)
    return TensorDict({"frame": frame, "is_init": torch.rand(rows, steps, 1) < 0.2}, [rows, steps])


@settings(max_examples=100, deadline=None)
@given(data=st.data(), rows=st.integers(1, 6), slices_per_row=st.integers(1, 5), slice_len=st.integers(1, 8))
def test_an_epoch_is_every_frame_once_in_pieces_of_rows(data, rows, slices_per_row, slice_len):
    slices, steps = rows * slices_per_row, slices_per_row * slice_len
    minibatch = data.draw(st.sampled_from([divisor for divisor in range(1, slices + 1) if slices % divisor == 0]))
    buffer = SliceBuffer(OPTIONS, slice_len, minibatch)
    for _ in range(2):
        batch = made_rows(rows, steps)
        for _ in range(3):
            minibatches = list(buffer.minibatches(batch))
            assert all(part.batch_size == torch.Size([minibatch, slice_len]) for part in minibatches)
            seen = torch.cat([part["frame"] for part in minibatches])
            assert torch.equal(seen.flatten().sort().values, torch.arange(rows * steps))
            # Of one row, which is whole slices.
            assert torch.equal(seen, seen[:, :1] // slice_len * slice_len + torch.arange(slice_len))
            is_init = torch.cat([part["is_init"] for part in minibatches])
            assert torch.equal(is_init, batch["is_init"].flatten(0, 1)[seen])


def test_minibatches_come_in_another_order_each_epoch():
    torch.manual_seed(0)
    buffer = SliceBuffer(OPTIONS, 2, 4)
    rows = made_rows(8, 8)
    first, second = (torch.cat([part["frame"] for part in buffer.minibatches(rows)]) for _ in range(2))
    assert not torch.equal(first, second)
