"""``env.wrappers``: wrappers of Gymnasium and of one's own, with arguments, around each environment."""

import pytest

from recurrl.envs import make_env

SKIP = "env.wrappers=[{wrapper:gymnasium.wrappers:MaxAndSkipObservation,skip:4}]"
WRAPPERS = """
import gymnasium

class Shift(gymnasium.ObservationWrapper):
    def __init__(self, env, by=1.0):
        super().__init__(env)
        self.by = by

    def observation(self, observation):
        return observation + self.by

class Fussy(gymnasium.Wrapper):
    def __init__(self, env):
        raise ValueError("only for games")

def function(env):
    return env
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "wrappers_of_mine.py").write_text(WRAPPERS)
    return tmp_path


def test_wrappers_apply_in_order(compose):
    wrappers = "[{wrapper:gymnasium.wrappers:ClipReward,min_reward:-1},gymnasium.wrappers:FlattenObservation]"
    made = make_env(compose("env=pendulum_no_velocity", f"env.wrappers={wrappers}").env, 2, seed=0)
    for env in made.base_env.raw.envs:
        assert str(env).startswith("<FlattenObservation<ClipReward<TimeLimit<")
    made.close()


def test_an_episode_limit_counts_the_steps_of_the_policy(compose):
    made = make_env(compose("env.mask=[]", "env.max_episode_steps=2", SKIP).env, 1, seed=0)
    steps = made.rollout(10)
    made.close()
    # Two steps of four of CartPole's.
    assert steps.shape == (1, 2)
    assert steps["next", "episode_reward"].flatten().tolist() == [4, 8]
    assert steps["next", "truncated"].flatten().tolist() == [False, True]


IMPOSSIBLE = [
    ("[nowhere:Shift]", "env.wrappers=nowhere:Shift: there is no module nowhere. Install its package, or run from"),
    ("[wrappers_of_mine:function]", "derived from gymnasium.Wrapper (got wrappers_of_mine:function)."),
    (
        "[gymnasium.wrappers.vector:ClipReward]",
        "derived from gymnasium.Wrapper (got gymnasium.wrappers.vector:ClipReward).",
    ),
    ("[{wrapper:wrappers_of_mine:Shift,buy:2}]", "Shift does not take buy. It takes: env, by."),
    ("[ClipReward]", "(got ClipReward)."),
    ("[3]", "(got 3)."),
    ("[{by:2}]", "(got {'by': 2})."),
    ("wrappers_of_mine:Shift", "env.wrappers must be a list"),
]


@pytest.mark.parametrize(("wrappers", "error"), IMPOSSIBLE)
def test_wrappers_that_cannot_work_are_rejected_before_any_environment_is_made(wrappers, error, rejected, folder):
    assert error in rejected(*f"env.wrappers={wrappers}".split())


def test_a_wrapper_that_does_not_fit_the_environment_is_named(train, folder):
    message = "wrappers_of_mine:Fussy around env.id=CartPole-v1 cannot be made: it raised ValueError: only for games."
    assert train("env.wrappers=[wrappers_of_mine:Fussy]").error.startswith(f"env.wrappers={message}")
