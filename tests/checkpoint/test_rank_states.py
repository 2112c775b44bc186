"""What a run of several ranks saves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from in_ranks import in_ranks, met

from recurrl import checkpoint
from recurrl.build import make_learner, make_policy_for, set_process_state
from recurrl.checkpoint import ranks
from recurrl.errors import ConfigError, RunError
from recurrl.runtime.ranks import world


def test_policies_that_are_no_longer_the_same_are_not_saved(small):
    config = small()

    def of_a_rank() -> list[str]:
        set_process_state(config)
        learner = make_learner(config, make_policy_for(config))
        parts = checkpoint.components(learner)
        assert len(ranks.own_states(parts)) == (1 if world().rank == 0 else 0)
        if world().rank == 1:
            next(learner.policy.buffers()).add_(1)
        try:
            ranks.own_states(parts)
        except RunError as error:
            return [str(error)]
        return []

    said, nothing = in_ranks(2, met(of_a_rank))
    assert len(said) == 1
    assert said[0].startswith("The policies of rank 0 and rank 1 differ in ")
    assert nothing == []


@pytest.mark.parametrize("size", [1, 4])
def test_rows_that_workers_are_ahead_are_divided_with_the_workers(size):
    def of_a_rank(workers: list[int]) -> dict[str, object]:
        ahead = [[(f"row {depth} of {worker}", depth) for worker in workers] for depth in (1, 2)]
        episodes = {"why_not": None, "workers": [f"worker {each}" for each in workers], "ahead": ahead}
        return {"reward_scaler": {"discounted_return": torch.zeros(2)}, "collector_state": episodes}

    shares = ranks.divided([of_a_rank([0, 1]), of_a_rank([2, 3])], size, Path("frames_000000000096"))
    for rank, share in enumerate(shares):
        workers = list(range(4))[rank * 4 // size : (rank + 1) * 4 // size]
        expected = of_a_rank(workers)["collector_state"]
        assert share["collector_state"] == {**expected, "restarts": 0}


def test_environments_that_do_not_divide_among_the_ranks_are_refused(small):
    scaler = {"reward_scaler": {"discounted_return": torch.zeros(4)}}
    with pytest.raises(ConfigError, match="is of 8 environments, which do not divide among 3 ranks"):
        ranks.divided([scaler, scaler], 3, Path("run/checkpoints/frames_000000000096"))
