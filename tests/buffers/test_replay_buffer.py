"""Replay: rows of the last rollouts come again whole, as they were collected, equally often, and resume."""

from collections import Counter

import pytest
import torch
from tensordict import TensorDict

from recurrl.buffers.replay import ReplayBuffer
from recurrl.config.collector import ReplayConfig
from recurrl.runtime.serialization import from_bytes, to_bytes

STEPS = 8
NOISE = 0.0
"""The share of signal in gradients that are noise."""


class Simulated:
    """Environments with episodes of random lengths. Each row has a unique number, ``place``, and random states."""

    def __init__(self, seed, envs=3):
        self.random = torch.Generator().manual_seed(seed)
        self.envs, self.count = envs, 0
        self.collected = {}

    def rows(self, steps=STEPS):
        """The next rows ``[N, T]``."""
        place = torch.arange(self.envs * self.count, self.envs * (self.count + 1)).unsqueeze(1).expand(-1, steps)
        done, is_init = (torch.rand(self.envs, steps, 1, generator=self.random) < 0.3 for _ in range(2))
        state = torch.rand(self.envs, steps, 1, 1, generator=self.random)
        after = {"done": done, "reward": 1.0 * done}
        rows = {"place": place.clone(), "is_init": is_init, "action": done, "state": state, "next": after}
        batch = TensorDict(rows, [self.envs, steps])
        self.count += 1
        self.collected |= dict(zip(place[:, 0].tolist(), batch.clone().unbind(0), strict=True))
        return batch


def buffer_of(rollouts=4, ratio=2, least=1, slice_len=4, minibatch=1):
    """A replay buffer with these options."""
    options = ReplayConfig(name="replay", rollouts=rollouts, replay_ratio=ratio, min_replay_ratio=least)
    return ReplayBuffer(options, slice_len, minibatch)


def filled(count, simulated, **options):
    """A buffer that has the next rollouts."""
    buffer = buffer_of(**options)
    for _ in range(count):
        buffer.extend(simulated.rows(), NOISE)
    return buffer


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize(("rollouts", "ratio"), [(1, 2), (2, 3), (4, 2), (4, 5)])
def test_earlier_rows_come_again_as_they_were_collected(rollouts, ratio, envs):
    """New rows first, then rows of the last rollouts, none twice. A later change of either has no effect on them."""
    buffer, simulated = buffer_of(rollouts, ratio), Simulated(seed=rollouts, envs=envs)
    for iteration in range(8):
        new = simulated.rows()
        rows = buffer.extend(new, NOISE)
        places = rows["place"][:, 0].tolist()
        assert places[:envs] == list(range(iteration * envs, (iteration + 1) * envs))
        earlier = places[envs:]
        assert len(set(earlier)) == len(earlier) == min(ratio - 1, rollouts, iteration) * envs
        assert all((iteration - rollouts) * envs <= place < iteration * envs for place in earlier)
        for row, place in zip(rows.unbind(0), places, strict=True):
            assert (row == simulated.collected[place]).all()
        for each in (new, rows):
            each["next", "reward"].fill_(7.0)
            each.set("value", each["state"])


RATIOS = {1: (5, 4, 3, 2, 1), 3: (5, 5, 4, 4, 3), 5: (5, 5, 5, 5, 5)}


@pytest.mark.parametrize(("least", "ratios"), RATIOS.items(), ids=RATIOS)
def test_the_noisier_gradients_are_the_more_rows_come_again(least, ratios):
    simulated = Simulated(seed=0)
    buffer = filled(4, simulated, ratio=5, least=least)
    assert [len(buffer.extend(simulated.rows(), signal)) / 3 for signal in (0.0, 0.05, 0.25, 0.5, 1.0)] == list(ratios)


UNSET = [(torch.bool, 1, 4), (torch.int64, 1, 4), (torch.int64, 5, 5), (torch.float32, 1, 1), (torch.float32, 2, 2)]


@pytest.mark.parametrize(("dtype", "least", "most"), UNSET)
def test_without_a_ratio_the_kind_of_action_and_the_least_decide(dtype, least, most):
    buffer, simulated = buffer_of(ratio=None, least=least), Simulated(seed=0)
    for count in range(6):
        rows = simulated.rows()
        rows["action"] = rows["action"].to(dtype)
        assert len(buffer.extend(rows, NOISE)) / 3 == min(most, 1 + count)
    assert bool(buffer.state_dict()["rollouts"]) == (most > 1)


def test_all_earlier_rows_are_drawn_equally_often():
    torch.manual_seed(0)
    draws, counts, simulated = 2000, Counter(), Simulated(seed=0)
    buffer = filled(4, simulated)
    state, new = buffer.state_dict(), simulated.rows()
    for _ in range(draws):
        buffer.load_state_dict(state)
        counts.update(buffer.extend(new, NOISE)["place"][3:, 0].tolist())
    assert counts.keys() == set(range(12))
    expected = draws * 3 / 12
    assert all(abs(count - expected) < 5 * expected**0.5 for count in counts.values())


@pytest.mark.parametrize("iterations", [0, 1, 2, 3, 5])
def test_a_restored_buffer_draws_the_same_rows_and_goes_on_equally(iterations):
    simulated = Simulated(seed=1)
    first, second = (filled(count, simulated, rollouts=2, ratio=3) for count in (iterations, 0))
    second.load_state_dict(from_bytes(to_bytes(first.state_dict())))
    assert second.state_dict().keys() == first.state_dict().keys()
    for _ in range(4):
        rows, joined = simulated.rows(), []
        for buffer in (first, second):
            torch.manual_seed(simulated.count)
            joined.append(buffer.extend(rows, NOISE))
        assert (joined[0] == joined[1]).all()


@pytest.mark.parametrize(("envs", "drawn"), [(1, 2), (2, 4), (4, 4), (9, 0)])
def test_a_buffer_goes_on_with_another_number_of_environments(envs, drawn):
    """Six earlier rows serve a rollout of any number of rows, a multiple of which is drawn."""
    restored = buffer_of(rollouts=2, ratio=3)
    restored.load_state_dict(filled(2, Simulated(seed=1), rollouts=2, ratio=3).state_dict())
    assert len(restored.extend(Simulated(seed=2, envs=envs).rows(), NOISE)) == envs + drawn


def test_a_buffer_of_fewer_rollouts_goes_on_with_the_newest():
    simulated, smaller = Simulated(seed=1), buffer_of(rollouts=1)
    smaller.load_state_dict(filled(4, simulated).state_dict())
    assert sorted(smaller.extend(simulated.rows(), NOISE)["place"][3:, 0].tolist()) == [9, 10, 11]


@pytest.mark.parametrize("change", ["steps", "entry", "shape", "dtype"])
def test_rows_of_a_checkpoint_that_do_not_fit_are_dropped_with_a_warning(change, caplog):
    simulated = Simulated(seed=1)
    buffer = filled(1, simulated)
    new = simulated.rows(steps=STEPS // 2 if change == "steps" else STEPS)
    if change == "entry":
        new.set("more", new["state"])
    if change in ("shape", "dtype"):
        new.set("state", new["state"].double() if change == "dtype" else new["state"].expand(-1, -1, 2, -1))
    buffer.load_state_dict(buffer.state_dict())
    rows = buffer.extend(new, NOISE)
    assert "The replay buffer starts empty, because rows have other entries or another length now." in caplog.text
    assert len(rows) == len(new)
    assert len(buffer.extend(new, NOISE)) == 2 * len(new)


def test_epochs_take_turns_until_each_slice_was_learned_from_once():
    """With a ratio of three, three epochs of as many slices as the rollout has; the fourth begins again."""
    simulated = Simulated(seed=2)
    buffer = buffer_of(rollouts=2, ratio=3, minibatch=2)
    sizes = []
    for _ in range(3):
        joined = buffer.extend(simulated.rows(), NOISE)
        of_a_rollout = simulated.envs * STEPS // 4
        epochs = [torch.cat([batch["index"][:, 0] for batch in buffer.minibatches(joined)]) for _ in range(7)]
        assert {len(epoch) for epoch in epochs} == {of_a_rollout}
        count = len(joined) * STEPS // 4
        sizes.append(count // of_a_rollout)
        for first in range(0, 6, sizes[-1]):
            together = torch.cat(epochs[first : first + sizes[-1]])
            assert together.sort().values.tolist() == list(range(count))
    assert sizes == [1, 2, 3]
