"""Environments that cannot be made: rejected with advice, where possible before any is made."""

import gymnasium
import pytest
from rejections import error_of

from recurrl.envs.source import source_of


@pytest.mark.parametrize("name", ["", ".games", "some-games", "games.", "some_games", "some_games.classic"])
def test_a_package_that_cannot_be_imported_is_rejected(rejection, name):
    error = rejection({"env.packages": [name]})
    assert error.startswith(f"env.packages=[{name}]: ")
    missing = "there is no module some_games. Install its package, or run from the folder it is in."
    assert missing in error if "some_games" in name else "fails with" in error or "there is no module" in error


def test_a_package_whose_import_fails_is_rejected_with_the_reason(train, tmp_path):
    (tmp_path / "broken_games.py").write_text("raise ImportError('libgames.so: wrong ELF class')\n")
    error = train("env=gym", "env.id=CartPole-v1", "env.packages=[broken_games]").error
    what = "env.packages=[broken_games]: importing broken_games fails with ImportError: libgames.so: wrong ELF class."
    assert error == f"{what} HYDRA_FULL_ERROR=1 shows where."


def test_a_package_that_is_an_extra_of_recurrl_is_rejected_with_the_extra(rejected, not_installed):
    not_installed("popgym")
    error = "env.packages=[popgym] needs the package popgym. Install it with: pip install 'recurrl[popgym]'"
    assert rejected("env=repeat_previous") == error


@pytest.mark.parametrize("index", [-1, 2.5])
def test_an_index_in_the_mask_is_an_integer_from_zero(rejection, index):
    assert rejection({"env.mask": [1, index]}) == f"env.mask[1] must be an integer from 0 (got {index})."


TASKS = ("env=gym", "env.packages=[tasks]")
OF_A_DICT = (*TASKS, "env.id=recurrl-test/Cue-v0", "+env.kwargs.observation=dict")
MASKED = (*TASKS, "env.id=recurrl-test/Masked-v0", "env.kwargs.mask_in=observation", "env.kwargs.action=discrete")
SOME = "env.mask must be some, but not all, of the "
WRONG_MASKS = [
    *(((), mask, f"{SOME}indices of the observation's 4 entries, 0 to 3") for mask in ("4", "0, 1, 2, 3", "velocity")),
    *((OF_A_DICT, mask, f"{SOME}observation's entries more, state") for mask in ("no", "0", "state, more", "state.2")),
    *((MASKED, mask, f"{SOME}observation's entries seen") for mask in ("action_mask", "seen")),
]


@pytest.mark.parametrize(("task", "mask", "some"), WRONG_MASKS)
def test_a_mask_that_does_not_fit_is_rejected_when_the_first_environment_is_made(train, task, mask, some):
    # Only the environment itself knows what its observation is.
    error = train(*task, f"env.mask=[{mask}]".replace(" ", "")).failed().error
    assert error == f"{some} (got {mask})." + " An entry is hidden as a whole." * bool(task)


def test_a_mask_of_an_observation_that_is_no_vector_is_rejected(train):
    outcome = train("env=gym", "env.id=CliffWalking-v1", "env.mask=[0]")
    what = "env.mask=[0] hides entries of a vector or a dict, but the observation space is Discrete(48)."
    assert outcome.error == f"{what} Remove env.mask."


UNREGISTERED = [
    *((near, " Did you mean CartPole-v1?") for near in ("CartPol-v1", "gymnasium:CartPol-v1")),
    *((unlike_any, "") for unlike_any in ("Nope-v0", "qqqqqqqq", "Maze-v3")),
    ("MiniGrid-Empty-5x5-v0", " Use env=minigrid env.id=MiniGrid-Empty-5x5-v0."),
    ("PongNoFrameskip-v4", " Use env=atari env.id=PongNoFrameskip-v4."),
    ("ALE/Breakout-v5", " Use env=atari env.id=ALE/Breakout-v5."),
]


@pytest.mark.parametrize(("env_id", "advice"), UNREGISTERED)
def test_an_id_that_is_not_registered_is_rejected_with_the_nearest_one_or_none(compose, monkeypatch, env_id, advice):
    # Without what other tests have registered.
    own = {name: spec for name, spec in gymnasium.registry.items() if str(spec.entry_point).startswith("gymnasium.")}
    monkeypatch.setattr(gymnasium, "registry", own)
    error = error_of(source_of(compose("env=gym", f"env.id={env_id}").env).check)
    what = f"env.id={env_id} is not registered with Gymnasium.{advice}"
    assert error == f"{what} If another package registers it, set env.packages=[package]."


def test_an_argument_that_the_environment_does_not_take_is_rejected_before_any_is_made(rejected):
    error = "env.id=CartPole-v1 does not take env.kwargs.gravitas. It takes: sutton_barto_reward, render_mode."
    assert rejected("env.kwargs.gravitas=1") == error


LICENCE = OSError("no licence for the simulator")
MUJOCO = gymnasium.error.DependencyNotInstalled('MuJoCo is not installed, run `pip install "gymnasium[mujoco]"`')
SEEN = "cannot be made: it raised OSError: no licence for the simulator. HYDRA_FULL_ERROR=1 shows where."
RAISED = [
    (LICENCE, (), f"env.id=Registered-v0 {SEEN}"),
    (LICENCE, ("env.kwargs.size=3",), f"env.id=Registered-v0 with env.kwargs={{'size': 3}} {SEEN}"),
    (MUJOCO, (), f"env.id=Registered-v0 needs another package: {MUJOCO}."),
]


@pytest.mark.parametrize(("error", "arguments", "message"), RAISED)
def test_an_environment_whose_constructor_raises_is_rejected_with_that(error, arguments, message, train, register):
    def make(**_):
        raise error

    assert train("env=gym", f"env.id={register(make)}", *arguments).failed().error == message
