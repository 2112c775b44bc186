"""``recurrl-train``, runs that end badly: what they say, record and leave."""

import pytest
from failing_env import FAILING
from run_files import ended, metrics, settings
from slow_cases import slow_but

REJECTION = "backend=pad does not support the cell mingru: torch has no fused kernel. Choose backend=scan."

PATHS = {"resume": (), "init_from": (), "pretrain.folder": (), "hydra.run.dir": (), "hydra.sweep.dir": ("-m",)}
"""The keys that take a path, with what they need."""


def test_a_rejected_run_prints_one_error_message_and_leaves_no_directory(train, tmp_path):
    for directory in ((), ("seed=3", "hydra.run.dir=deep/run")):
        assert train("cell=mingru", "backend=pad", *directory).failed().err == f"error: {REJECTION}\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["file", "file/within"])
@pytest.mark.parametrize("key", PATHS)
def test_a_path_that_cannot_be_used_is_rejected_with_its_key(train, tiny, tmp_path, key, path):
    (tmp_path / "file").touch()
    outcome = train(*PATHS[key], *tiny, f"{key}={path}").failed()
    assert f"{key}=" in outcome.error, outcome.err


FAILURES = {
    "raises": ("raising",),
    "hangs": ("hanging", "collector.timeout_s=0.5"),
    "raises, restarts spent": ("raising", "collector.on_env_error=restart"),
    "raises in a worker": ("raising", "collector=multi_sync"),
    "raises in a worker ahead": ("raising", "collector=multi_async"),
    "raises in a worker after the last iteration": ("raising", "collector=multi_async", "total_frames=64"),
    "kills its worker": ("being killed", "collector=multi_sync"),
    "kills its worker, restarts spent": ("being killed", "collector=multi_sync", "collector.on_env_error=restart"),
}


@pytest.mark.parametrize("kind", slow_but(("raises", "hangs", "raises, restarts spent"), FAILURES))
def test_a_run_whose_environment_fails_saves_its_last_iteration(train, tiny, tmp_path, monkeypatch, kind):
    by, *options = FAILURES[kind]
    kwargs = f"+env.kwargs={{at: 20, by: {by}, marker: {tmp_path / 'failed'}}}"
    monkeypatch.setattr("recurrl.collector.restarts.MAX_IN_A_ROW", 0)  # no restart is left
    arguments = (*tiny, *FAILING, kwargs, "env.max_episode_steps=60", "total_frames=128", *options, "hydra.run.dir=run")
    outcome = train(*arguments).failed()
    run, checkpoint = tmp_path / "run", "checkpoints/frames_000000000064"
    status, error, frames, saved = ended(run, "error", "frames", "checkpoint")
    assert (status, frames, saved) == ("failed", 64, checkpoint)
    assert error.partition(": ")[2] == outcome.error.strip()
    assert f"failed at 64 frames; last checkpoint: {run / checkpoint}; to resume: " in outcome.out
    resumed = train("resume=run").succeeded()
    assert "Unfinished episodes are restarted: their environments had failed" in resumed.out
    assert [row["frames"] for row in metrics(run)] == ["32", "64", "96", "128"][: settings(run)["total_frames"] // 32]
