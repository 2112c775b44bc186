"""Which changes of a resumed run's settings begin new episodes."""

from dataclasses import fields

import pytest

from recurrl import checkpoint
from recurrl.config.collector import RayConfig

OF_EPISODES = {"name", "num_workers", "ahead"}
OPTIONS = {field.name for field in fields(RayConfig)}


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_of_a_collector_only_what_divides_the_rollout_begins_new_episodes(name, tmp_path, caplog):
    settings = {"seed": 0, "collector": dict.fromkeys(OPTIONS, "before")}
    path = checkpoint.save(tmp_path, 32, {}, {}, settings=settings)
    checkpoint.Checkpoint(path).load({}, settings | {"collector": settings["collector"] | {name: "now"}})
    assert (f"Unfinished episodes are restarted: collector.{name} is now" in caplog.text) == (name in OF_EPISODES)
