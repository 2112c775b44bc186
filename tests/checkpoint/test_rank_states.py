"""What a run of several ranks saves, and which changed settings of a resumed run begin new episodes on all of them."""

from dataclasses import fields

import pytest
from in_ranks import in_ranks, met
from rejections import error_of
from torch import nn

from recurrl import checkpoint
from recurrl.build import make_algorithm, make_policy_for, set_process_state
from recurrl.checkpoint import rank_states
from recurrl.config import EnvConfig
from recurrl.config.collector import RayConfig
from recurrl.errors import RunError
from recurrl.runtime.ranks import world

CLASSES = {"collector": RayConfig, "env": EnvConfig}
OPTIONS = [*(f"{group}.{field.name}" for group, of in CLASSES.items() for field in fields(of)), "frames_per_batch"]
KEEP_EPISODES = {
    *("collector.address", "collector.cpus_per_worker", "collector.gpus_per_worker"),
    *("collector.timeout_s", "collector.on_env_error"),
    *("env.normalize_observation", "env.normalize_reward", "env.reward_scale"),
}
"""All other options say which environments there are, what happens in them, or how the rollout is divided."""


class Part:
    """A component whose state is the rank that saved it."""

    def __init__(self):
        self.state = {}

    def state_dict(self):
        return {"of rank": world().rank}

    def load_state_dict(self, state):
        self.state = state


def restored(run_dir, changed):
    """The states that each part has on this rank after a resume with a changed option."""
    saved = {name: Part() for name in (*rank_states.OWN, "algorithm")}
    settings = {"seed": 0, **dict.fromkeys(OPTIONS, "before")}
    path = checkpoint.save(run_dir, 32, {}, {**saved, "policy": nn.Module()}, settings=settings)
    parts = {name: Part() for name in saved}
    if world().rank == 0:
        checkpoint.Checkpoint(path).load(parts, settings | {changed: "now"})
    else:
        rank_states.broadcast_states(parts)
    return {name: part.state for name, part in parts.items()}


def check_restored(states, rank, keeps_episodes):
    expected = {**{name: {"of rank": rank} for name in rank_states.OWN}, "algorithm": {"of rank": 0}}
    assert states == expected | ({} if keeps_episodes else {rank_states.EPISODES: {}})


@pytest.mark.parametrize("option", OPTIONS)
def test_a_change_of_what_divides_or_makes_the_environments_begins_new_episodes(option, tmp_path, caplog):
    keeps = option in KEEP_EPISODES
    check_restored(restored(tmp_path, option), 0, keeps)
    assert (f"Unfinished episodes are restarted: {option} is now and was before." in caplog.text) != keeps


@pytest.mark.parametrize("option", ["env.mask", "collector.timeout_s"])
def test_new_episodes_begin_on_all_ranks_or_on_none(option, tmp_path):
    for rank, states in enumerate(in_ranks(2, met(lambda: restored(tmp_path, option)))):
        check_restored(states, rank, option in KEEP_EPISODES)


@pytest.mark.parametrize("of", ["policy", "algorithm"])
def test_what_is_no_longer_the_same_on_all_ranks_is_not_saved(small, of):
    config = small()

    def of_a_rank():
        set_process_state(config)
        learner = make_algorithm(config, make_policy_for(config))
        components = learner.components()
        assert len(rank_states.gathered_states(components)) == (1 if world().rank == 0 else 0)
        if world().rank == 1:
            next(iter(components[of].state_dict().values())).add_(1)
            return rank_states.gathered_states(components)
        return [error_of(rank_states.gathered_states, components, kind=RunError)]

    [error], gathered = in_ranks(2, met(of_a_rank))
    assert error.startswith(f"Rank 0 and rank 1 differ in {of}.")
    assert gathered == {}
