"""Worker processes: their number."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("collector=single", "collector.num_workers=2"),
            "collector.num_workers is an option of collector=multi_async or multi_sync, and this run has another "
            "collector. Leave it out, or choose collector=multi_async or multi_sync.",
        ),
        (
            ("collector=multi_sync", "env.num_envs=32", "collector.num_workers=5"),
            "env.num_envs=32 is not a multiple of collector.num_workers=5. Give a multiple of 5, for example "
            "env.num_envs=30.",
        ),
        (
            ("collector=multi_async", "collector.num_workers=0"),
            "collector.num_workers=0 is out of range. Give an integer from 1 to 1_024.",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_workers_that_do_not_work_out_are_refused(refused, overrides, message):
    assert refused(*overrides) == message
