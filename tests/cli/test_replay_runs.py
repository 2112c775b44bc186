"""``buffer=replay`` through the command line."""

import pytest
from run_files import column, whole_and_resumed
from slow_cases import slow

REPLAY = ("buffer.rollouts=2", "buffer.replay_ratio=3", "buffer.min_replay_ratio=3")
WAYS = ["state=refresh", slow("collector=multi_async"), slow("state=stored"), slow("state=burn_in")]


@pytest.mark.parametrize("way", WAYS)
def test_a_resumed_run_with_replay_goes_on_exactly(train, tiny, tmp_path, way):
    # At the resume, the buffer is full.
    arguments = (*tiny, *REPLAY, "total_frames=192", "checkpoint.every_frames=96", way, "backend=scan")
    whole_and_resumed(train, tmp_path, 96, *arguments)
    assert column(tmp_path / "whole", "optim/replay_ratio")[-1] == 3.0
    # 8 slices an iteration, in minibatches of 4, for 2 epochs, whether or not there is something to draw.
    assert column(tmp_path / "whole", "optim/steps") == [4.0] * 6


NOT_CORRECTED = (
    "buffer must be on_policy with algorithm=grpo, which does not correct for older weights (got replay). Use "
    "buffer=on_policy."
)
IMPOSSIBLE = [
    ("algorithm=grpo", NOT_CORRECTED),
    (
        "buffer.replay_ratio=10",
        "buffer.replay_ratio must be at most 9, the new rollout and the 8 before it (got 10). Keep more in "
        "buffer.rollouts, or replay less.",
    ),
    (
        "buffer.min_replay_ratio=10",
        "buffer.min_replay_ratio must be at most 9, the new rollout and the 8 before it (got 10). Keep more in "
        "buffer.rollouts, or replay less.",
    ),
    (
        "buffer.replay_ratio=3 buffer.min_replay_ratio=5",
        "buffer.min_replay_ratio must be at most buffer.replay_ratio=3 (got 5). Raise that, or lower this.",
    ),
]


@pytest.mark.parametrize(("override", "error"), IMPOSSIBLE)
def test_replay_that_cannot_work_is_rejected(rejected, override, error):
    assert rejected("buffer=replay", *override.split()) == error
