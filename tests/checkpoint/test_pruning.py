"""Which checkpoints of a run are kept."""

import pytest

from recurrl import checkpoint
from recurrl.checkpoint import files


def write(run, frames, return_mean=None):
    path = checkpoint.save(run, frames, {}, {})
    files.complete(path, {} if return_mean is None else {"eval/return_mean": return_mean})


def left(run):
    return sorted(int(path.name.partition("_")[2]) for path in (run / "checkpoints").iterdir())


KEPT = [(1, [2, 5]), (2, [2, 4, 5]), (4, [2, 3, 4, 5]), (None, [1, 2, 3, 4, 5])]


@pytest.mark.parametrize(("keep_last", "kept"), KEPT)
def test_the_last_ones_and_the_best_evaluated_one_are_kept(tmp_path, keep_last, kept):
    for frames, return_mean in enumerate([1.0, 7.0, None, 3.0, 2.0], 1):
        write(tmp_path, frames, return_mean)
    checkpoint.prune(tmp_path, keep_last)
    assert left(tmp_path) == kept


@pytest.mark.parametrize(("damaged", "kept"), [({3}, [2, 3]), ({2, 3}, [1, 2, 3]), ({1, 2, 3}, [1, 2, 3]), ({1}, [3])])
def test_damaged_ones_take_no_place_and_the_only_whole_one_is_kept(tmp_path, damaged, kept):
    for frames in (1, 2, 3):
        write(tmp_path, frames)
    for frames in damaged:
        (tmp_path / "checkpoints" / f"frames_{frames:012d}" / "manifest.json").write_text("{}")
    checkpoint.prune(tmp_path, 1)
    assert left(tmp_path) == kept
