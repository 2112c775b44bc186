"""Workers: how many, and what follows their faults."""

from __future__ import annotations

import pytest
from changes import changed


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"collector.num_workers": 2},
            "collector.num_workers=2 was requested, but collector=single runs in one process. Choose "
            "collector=multi_sync or collector=multi_async.",
        ),
        (
            {"collector.name": "multi_sync", "collector.num_workers": 5},
            "env.num_envs=32 is not a multiple of collector.num_workers=5. Give a multiple of 5, for example "
            "env.num_envs=30.",
        ),
        (
            {"collector.name": "multi_async", "collector.num_workers": 0},
            "collector.num_workers=0 is out of range. Give an integer from 1 to 1_024.",
        ),
    ],
    ids=changed,
)
def test_workers_that_do_not_work_out_are_refused(refusal, changes, sentence):
    assert refusal(changes) == sentence
