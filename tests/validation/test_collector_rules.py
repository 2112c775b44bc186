"""Worker processes: their number."""

from __future__ import annotations

import sys

import pytest


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("collector=single", "collector.num_workers=2"),
            "collector.num_workers is an option of collector=multi_async or multi_sync or ray, but this run has "
            "another collector. Leave it out, or choose collector=multi_async or multi_sync or ray.",
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
        (
            ("collector=ray", "collector.num_workers=5"),
            "env.num_envs=32 is not a multiple of collector.num_workers=5. Give a multiple of 5, for example "
            "env.num_envs=30.",
        ),
        (
            ("collector=ray", "collector.object_store_mb=10"),
            "collector.object_store_mb=10 is out of range. Give an integer from 80 to 1_000_000.",
        ),
        (
            ("collector=ray", "collector.address=auto", "collector.object_store_mb=100"),
            "collector.object_store_mb=100 has no effect here: it goes with collector.address=null. Leave it out, or "
            "choose collector.address=null.",
        ),
        (
            ("collector=ray", "collector.address=cluster"),
            "collector.address=cluster is not an address of a Ray cluster. Give auto, host:port, ray://host:port "
            "or null.",
        ),
        (
            ("collector=multi_sync", "collector.address=auto"),
            "collector.address is an option of collector=ray, but this run has another collector. Leave it out, or "
            "choose collector=ray.",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_workers_that_do_not_work_out_are_refused(refused, overrides, message):
    assert refused(*overrides) == message


def test_a_cluster_without_ray_is_rejected_with_what_to_install(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "recurrl.collector.ray", raising=False)
    assert refused("collector=ray") == (
        "collector=ray needs the module ray, which is not installed. Install it, for example with: pip install "
        "'recurrl[ray]'."
    )
