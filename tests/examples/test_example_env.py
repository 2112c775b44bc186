"""The example of an environment with an option of its own, by the commands."""

import pytest
from run_files import metrics, settings, summary, without_times
from slow_cases import slow

import recurrl

BY_YAML = ("--config-dir", "configs", "env=corridor")
BY_NAME = ("env=my_package.corridor:Corridor", "env.length=6")


@pytest.mark.parametrize(("how", "length"), [(BY_YAML, 8), ((*BY_YAML, "env.length=3"), 3), (BY_NAME, 6)], ids=str)
def test_it_trains_with_or_without_a_yaml(how, length, train, tiny):
    run = train(*how, *tiny)
    assert summary(run)["status"] == "completed"
    env = settings(run)["env"]
    assert (env["source"], env["length"]) == ("my_package.corridor:Corridor", length)
    assert settings(recurrl.train(settings(run), run_dir=run / "again").directory)["env"] == env


OF_EVERY_ENVIRONMENT = (
    "env.wrappers=[{wrapper:gymnasium.wrappers:RescaleObservation,min_obs:-2,max_obs:2}]",
    *("policy.previous_action=true", "env.previous_reward=true", "env.max_episode_steps=4"),
)
IN_GROUPS = ("algorithm=grpo", "algorithm.group_size=2")
WORKERS = [slow((f"collector={name}", "collector.num_workers=2")) for name in ("multi_sync", "multi_async")]


@pytest.mark.parametrize("options", [OF_EVERY_ENVIRONMENT, IN_GROUPS, *WORKERS], ids=lambda options: options[0])
def test_it_trains_with(options, train, tiny):
    assert summary(train(*tiny, *BY_NAME, *options))["status"] == "completed"


def test_a_resumed_run_ends_like_an_uninterrupted_one(train, tiny):
    whole = train(*tiny, *BY_NAME, "total_frames=128", "checkpoint.every_frames=32")
    halfway = f"resume={whole / 'checkpoints' / 'frames_000000000064'}"
    resumed = train(*tiny, halfway, "env.source=my_package.corridor:Corridor", "total_frames=128", run="resumed")
    assert without_times(metrics(resumed))[-1] == without_times(metrics(whole))[-1]
