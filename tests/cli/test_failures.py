"""``recurrl-train``, runs that end badly: what they say, record and leave."""

import gymnasium
import pytest
from run_files import ended, metrics

from recurrl.algorithms import Algorithm

REJECTION = "backend=pad does not support cell=mingru: torch has no fused kernel for it. Choose backend=scan."

PATHS = {"resume": (), "init_from": (), "pretrain.folder": (), "hydra.run.dir": (), "hydra.sweep.dir": ("-m",)}
"""The keys that take a path, with what they need."""


def test_a_rejected_run_prints_one_error_message_and_leaves_no_directory(train, tmp_path):
    for directory in ((), ("seed=3", "hydra.run.dir=deep/run")):
        outcome = train("cell=mingru", "backend=pad", *directory).failed()
        assert outcome.err.splitlines() == [f"error: {REJECTION}"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["file", "file/within"])
@pytest.mark.parametrize("key", PATHS)
def test_a_path_that_cannot_be_used_is_rejected_with_its_key(train, tiny, tmp_path, key, path):
    (tmp_path / "file").touch()
    outcome = train(*PATHS[key], *tiny, f"{key}={path}").failed()
    assert f"{key}=" in outcome.error, outcome.err


def test_a_run_that_its_first_batch_rejects_leaves_no_directory(train, tiny, tmp_path, register):
    class Grid(gymnasium.Env):
        observation_space, action_space = gymnasium.spaces.Discrete(3, start=1), gymnasium.spaces.Discrete(2)

    outcome = train(*tiny, "env=gym", f"env.id={register(Grid)}", "env.mask=[]")
    assert "does not start at zero" in outcome.error
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_fails_on_the_way_records_how_far_it_came(train, tiny, tmp_path, monkeypatch):
    learn, iterations = Algorithm.update, iter(range(2))

    def failing(*arguments):
        if next(iterations) == 1:
            raise RuntimeError("the GPU fell off")
        return learn(*arguments)

    monkeypatch.setattr(Algorithm, "update", failing)
    outcome = train(*tiny, "hydra.run.dir=run").failed()
    assert "RuntimeError: the GPU fell off" in outcome.err
    how = ended(tmp_path / "run", "error", "frames", "checkpoint")
    assert how == ("failed", "RuntimeError: the GPU fell off", 32, None)
    assert [row["frames"] for row in metrics(tmp_path / "run")] == ["32"]
