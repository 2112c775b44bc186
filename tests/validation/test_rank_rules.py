"""What ranks share divides among them."""

from __future__ import annotations

import pytest

from recurrl.errors import ConfigError

DIVIDED = {"env.num_envs": 24, "frames_per_batch": 768, "minibatch_slices": 6}


@pytest.fixture(autouse=True)
def _three_ranks(monkeypatch):
    numbers = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 3, "LOCAL_WORLD_SIZE": 3, "MASTER_PORT": 1}
    for name, number in numbers.items():
        monkeypatch.setenv(name, str(number))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "env.num_envs=32, which is of all ranks together, does not divide among 3 ranks. Give a multiple of 3"),
        ({"env.num_envs": 24, "frames_per_batch": 768}, "minibatch_slices=8, which is of all ranks together"),
        (
            {
                **DIVIDED,
                "collector": {"name": "multi_sync", "num_workers": 4, "timeout_s": None, "on_fault": "raise"},
            },
            "collector.num_workers=4, which is of all ranks together",
        ),
        ({**DIVIDED, "pretrain.folder": "episodes"}, "pretrain.folder is not possible with several ranks"),
        ({**DIVIDED, "ranks.backend": "nccl"}, "ranks.backend=nccl is not possible with device=cpu"),
    ],
)
def test_what_does_not_divide_is_refused(refusal, changes, said):
    assert said in refusal(changes)


def test_several_runs_are_refused(train_in_ranks):
    assert "Start torchrun once for each run" in train_in_ranks("-m", "seed=0,1")


@pytest.fixture
def train_in_ranks(recurrl_train, tmp_path):
    return lambda *arguments: recurrl_train(*arguments, cwd=tmp_path).err


def test_training_from_python_is_refused():
    import recurrl

    with pytest.raises(ConfigError, match="torchrun started several"):
        recurrl.train([])
