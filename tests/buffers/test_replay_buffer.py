"""Replay: drawn slices are contiguous pieces of one environment's steps, all frames are drawn, and a ring resumes."""

from collections import Counter

import pytest
import torch
from collected import fresh_policy, rollouts
from tensordict import TensorDict

import recurrl
from recurrl.buffers.replay import ReplayBuffer
from recurrl.config.collector import ReplayConfig
from recurrl.consistency import check_consistency
from recurrl.errors import ConfigError, ConsistencyError
from recurrl.runtime.serialization import from_bytes, to_bytes

ENVS, STEPS, SLICE = 3, 8, 8


class Simulated:
    """Environments with episodes of random lengths. Each frame has its environment, time, and a state of its own."""

    def __init__(self, seed):
        self.random = torch.Generator().manual_seed(seed)
        self.time = 0
        self.starts = torch.ones(ENVS, dtype=torch.bool)
        self.frames = {}

    def rows(self, steps=STEPS):
        """The next rows ``[N, T]``; at times an episode is abandoned between two of them, as after an error."""
        if torch.rand((), generator=self.random) < 0.2:
            self.starts[1] = True
        columns = []
        for _ in range(steps):
            done = torch.rand(ENVS, generator=self.random) < 0.3
            state = torch.where(self.starts, 0.0, torch.rand(ENVS, generator=self.random))
            for env in range(ENVS):
                self.frames[env, self.time] = bool(self.starts[env]), float(state[env])
            entries = {"env": torch.arange(ENVS), "time": torch.full((ENVS,), self.time), "state": state.view(-1, 1, 1)}
            after = {"done": done.view(-1, 1), "reward": torch.rand(ENVS, 1, generator=self.random)}
            columns.append(TensorDict({**entries, "is_init": self.starts.view(-1, 1), "next": after}, [ENVS]))
            self.starts = done
            self.time += 1
        return torch.stack(columns, 1)


def check(slices, simulated, oldest):
    """Every slice is a contiguous piece of one environment's kept steps, with what was stored at each of them."""
    env, time = slices["env"], slices["time"]
    assert (env == env[:, :1]).all()
    assert (time.diff(dim=1) == 1).all()
    assert oldest <= int(time.min()) <= int(time.max()) < simulated.time
    places = zip(env.flatten().tolist(), time.flatten().tolist(), strict=True)
    stored = [simulated.frames[place] for place in places]
    assert slices["is_init"].flatten().tolist() == [start for start, _ in stored]
    assert torch.equal(slices["state"].flatten(), torch.tensor([state for _, state in stored]))
    # Where the next step starts an episode, this one ends one.
    assert torch.equal(slices["next", "done"][:, :-1], slices["is_init"][:, 1:])


@pytest.mark.parametrize("steps", [20, 24], ids=["rows split by the wrap", "whole rows"])
def test_ten_thousand_slices_are_pieces_of_one_environments_steps(steps):
    torch.manual_seed(0)
    ring = recurrl.make_replay_buffer(steps, SLICE)
    simulated = Simulated(seed=steps)
    for _ in range(10):
        ring.extend(simulated.rows())
        for _ in range(5):
            check(ring.sample(200), simulated, oldest=max(0, simulated.time - steps))


def test_every_frame_can_be_drawn_and_all_starts_equally_often():
    torch.manual_seed(0)
    ring, simulated, steps = recurrl.make_replay_buffer(20, SLICE), Simulated(seed=0), 20
    for _ in range(5):
        ring.extend(simulated.rows())
    slices = ring.sample(20_000)
    starts = Counter(zip(slices["env"][:, 0].tolist(), slices["time"][:, 0].tolist(), strict=True))
    frames = Counter(zip(slices["env"].flatten().tolist(), slices["time"].flatten().tolist(), strict=True))
    assert len(starts) == ENVS * (steps - SLICE + 1)
    expected = 20_000 / len(starts)
    assert all(abs(count - expected) < 5 * expected**0.5 for count in starts.values())
    kept = {(env, time) for env in range(ENVS) for time in range(simulated.time - steps, simulated.time)}
    assert frames.keys() == kept
    # As often as slices contain it: fewer at both ends of the ring.
    for (_, time), count in frames.items():
        place = time - (simulated.time - steps)
        slices_with_it = min(place + 1, SLICE, steps - place, steps - SLICE + 1)
        assert abs(count - slices_with_it * expected) < 5 * (slices_with_it * expected) ** 0.5


@pytest.mark.parametrize("iterations", [0, 1, 2, 3, 5])
def test_a_restored_ring_draws_the_same_slices_and_goes_on_equally(iterations):
    simulated = Simulated(seed=1)
    options = ReplayConfig(name="replay", rollouts=2, replay_ratio=3)
    first, second = (ReplayBuffer(options, 4, 1) for _ in range(2))
    for _ in range(iterations):
        first.extend(simulated.rows())
    second.load_state_dict(from_bytes(to_bytes(first.state_dict())))
    for _ in range(4):
        rows, joined = simulated.rows(), []
        for buffer in (first, second):
            torch.manual_seed(simulated.time)
            joined.append(buffer.extend(rows))
        assert (joined[0] == joined[1]).all()


@pytest.mark.parametrize("steps", [20, 24], ids=["rows split by the wrap", "whole rows"])
@pytest.mark.parametrize("iterations", range(1, 8))
def test_a_ring_saves_its_steps_in_their_order(steps, iterations):
    ring, restored = (recurrl.make_replay_buffer(steps, SLICE) for _ in range(2))
    simulated = Simulated(seed=1)
    for _ in range(iterations):
        ring.extend(simulated.rows())
    state = ring.state_dict()
    restored.load_state_dict(from_bytes(to_bytes(state)))
    newest = torch.arange(max(0, simulated.time - steps), simulated.time).unsqueeze(1).expand(-1, ENVS)
    assert torch.equal(state["time"], newest)
    rows = simulated.rows()
    for each in (ring, restored):
        each.extend(rows)
    for key, value in restored.state_dict().items():
        assert torch.equal(value, ring.state_dict()[key])
    check(restored.sample(200), simulated, oldest=max(0, simulated.time - steps))


def test_a_single_environment_is_enough():
    simulated, ring = Simulated(seed=3), recurrl.make_replay_buffer(20, SLICE)
    for _ in range(5):
        ring.extend(simulated.rows()[1:2])
    check(ring.sample(100), simulated, oldest=simulated.time - 20)


def test_new_rows_come_first_and_older_ones_from_the_second_iteration_on():
    simulated = Simulated(seed=2)
    buffer = ReplayBuffer(ReplayConfig(name="replay", rollouts=2, replay_ratio=3), 4, 1)
    first, second = simulated.rows(), simulated.rows()
    assert (buffer.extend(first) == first).all()
    joined = buffer.extend(second)
    assert joined.shape == (3 * ENVS, STEPS)
    assert (joined[:ENVS] == second).all()
    assert int(joined["time"][ENVS:].max()) < STEPS


def test_epochs_take_turns_until_each_slice_was_learned_from_once():
    """With a ratio of three, three epochs of as many slices as the rollout has; the fourth begins again."""
    simulated = Simulated(seed=2)
    buffer = ReplayBuffer(ReplayConfig(name="replay", rollouts=2, replay_ratio=3), 4, 2)
    sizes = []
    for _ in range(3):
        joined = buffer.extend(simulated.rows())
        of_a_rollout = ENVS * STEPS // 4
        epochs = [torch.cat([batch["index"][:, 0] for batch in buffer.minibatches(joined)]) for _ in range(7)]
        assert {len(epoch) for epoch in epochs} == {of_a_rollout}
        count = len(joined) * STEPS // 4
        sizes.append(count // of_a_rollout)
        for first in range(0, 6, sizes[-1]):
            together = torch.cat(epochs[first : first + sizes[-1]])
            assert together.sort().values.tolist() == list(range(count))
    assert sizes == [1, 3, 3]


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_with_unchanged_weights_drawn_rows_replay_as_collected(cell, compose):
    """Rows that start anywhere in three rollouts of real environments pass the consistency check of a run."""
    config = compose(f"cell={cell}", "cell.hidden_size=8", "env.num_envs=8", "frames_per_batch=128", "slice_len=8")
    policy = fresh_policy(config)
    ring = recurrl.make_replay_buffer(32, 16)
    for batch in rollouts(config, policy, 3):
        ring.extend(batch)
    drawn = ring.sample(64)
    assert not drawn["is_init"][:, 0].all()
    line = check_consistency(policy, drawn, config, resumed=True)
    assert "1024 frames" in line
    drawn[policy.state_keys[0]][3, 0] += 1.0
    with pytest.raises(ConsistencyError):
        check_consistency(policy, drawn, config, resumed=True)


def test_a_slice_longer_than_the_ring_or_than_what_is_in_it_is_rejected():
    with pytest.raises(ConfigError, match=r"A slice of 8 steps is longer than a ring of 7 steps\."):
        recurrl.make_replay_buffer(7, 8)
    ring = recurrl.make_replay_buffer(20, 9)
    ring.extend(Simulated(seed=0).rows())
    with pytest.raises(ValueError, match=r"A slice of 9 steps cannot be drawn from 8 steps\. Add more\."):
        ring.sample(1)
