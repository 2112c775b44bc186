"""Videos show what an evaluation plays: the same episode, what the policy does not see, remembers and expects."""

import io
from typing import ClassVar

import gymnasium
import imageio_ffmpeg
import numpy as np
import pytest
import torch
from counting_env import Counting
from gymnasium import spaces
from PIL import Image
from rejections import error_of

from recurrl.envs.passed_env import with_maker
from recurrl.errors import ConfigError
from recurrl.evaluation import SEED_OFFSET, evaluate
from recurrl.runs.open_run import open_run
from recurrl.runtime.seeds import seeds
from recurrl.video import episode as recording
from recurrl.video.drawing import HEIGHT, WIDTH, frames
from recurrl.video.episode import Episode, Recorder, drawable
from recurrl.video.writing import files_of


class Blinking(Counting):
    """Images as observations; draws what ``drawn`` names."""

    length = 5
    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = spaces.Box(0, 255, (8, 8), np.uint8)
    action_space = spaces.Dict({"move": spaces.Discrete(2), "aim": spaces.Box(-1, 1, (2,), np.float32)})

    def __init__(self, render_mode=None, drawn="pixels"):
        self.render_mode, self.drawn = render_mode, drawn

    def observation(self):
        if self.steps == 0:
            self.shade = int(self.np_random.integers(100))
        return np.full((8, 8), self.shade + self.steps, np.uint8)

    def reward(self, action):
        return float(action["move"])

    def render(self):
        if self.drawn == "fails":
            raise RuntimeError("no screen")
        pixels = np.full((16, 24, 3), self.shade + self.steps, np.uint8)
        wrong = {"nothing": None, "numbers": pixels / 255, "gray": pixels[..., 0], "empty": pixels[:0]}
        return {"pixels": pixels, **wrong}[self.drawn]


gymnasium.register("recurrl-test/Blinking-v0", entry_point=Blinking)

TASKS = [
    ("CartPole-v1", ("env.mask=[1,3]",)),
    ("Pendulum-v1", ("env.mask=[2]", "policy.bounded_action=tanh", "env.max_episode_steps=6")),
    ("Acrobot-v1", ("env.mask=[5,4]", "cell=lstm", "env.max_episode_steps=6", "algorithm.critic=recurrent")),
    ("recurrl-test/Blinking-v0", ("policy.previous_action=true", "cell=none")),
]


def recorded(policy, config, episodes=3):
    """The returns of an evaluation, and its first episode."""
    recorder = Recorder(policy, config.env.mask, "an episode")
    returns = evaluate(drawable(config.env), policy, episodes, 5, observer=recorder)
    return returns, recorder.episode()


@pytest.mark.parametrize(("env", "overrides"), TASKS)
def test_the_episode_shown_is_the_first_of_the_evaluation(agent_of, env, overrides):
    agent, config = agent_of(env, *overrides)
    returns, episode = recorded(agent.policy, config)
    assert returns == evaluate(config.env, agent.policy, 3, 5)
    assert episode.returns[-1] == returns[0]
    # The same actions in an environment that starts from the same state lead to the same pictures and hidden entries.
    plain = gymnasium.make(env, render_mode="rgb_array")
    plain.reset(seed=seeds(5 + SEED_OFFSET, 1)[0])
    observation, _ = plain.reset()
    for step in range(len(episode.actions) + 1):
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(episode.pictures[step]))), plain.render())
        if step < len(episode.actions):
            for index, values in episode.hidden.items():
                assert values[step] == observation[index]
            observation, *_ = plain.step(episode.actions[step])
    assert list(episode.hidden) == config.env.mask
    assert len(episode.pictures) == len(episode.actions) + 1
    assert episode.fps == plain.metadata["render_fps"]


def test_the_states_and_values_shown_are_the_policys(agent_of):
    agent, config = agent_of("CartPole-v1", "env.mask=[1,3]", "cell=lstm", "env.max_episode_steps=7")
    _, episode = recorded(agent.policy, config, episodes=1)
    env, state = gymnasium.make("CartPole-v1"), agent.policy.initial_state(1)
    env.reset(seed=seeds(5 + SEED_OFFSET, 1)[0])
    observation, _ = env.reset()
    for step, action in enumerate(episode.actions):
        seen = torch.from_numpy(observation[[0, 2]])[None]
        with torch.no_grad():
            _, _, value, state, *_ = agent.policy.step(seen, state, torch.zeros(1, dtype=torch.bool))
        assert episode.values[step] == pytest.approx(value.item(), abs=1e-6)
        for name in agent.policy.state_keys:
            assert episode.states[name][step] == pytest.approx(state[name].flatten().numpy(), abs=1e-6)
        observation, *_ = env.step(action)


def test_of_a_long_episode_the_first_steps_are_kept(agent_of, monkeypatch):
    monkeypatch.setattr(recording, "MAX_STEPS", 4)
    agent, config = agent_of("Pendulum-v1", "env.max_episode_steps=9")
    returns, episode = recorded(agent.policy, config)
    assert (len(episode.actions), len(episode.pictures), len(episode.states["recurrent_state"])) == (4, 5, 4)
    assert returns == evaluate(config.env, agent.policy, 3, 5)


def test_the_command_writes_a_video_and_a_small_gif(recurrl_evaluate, finished_run, tmp_path):
    arguments = ("--episodes", 2, "--seed", "3,4", "--video", "shown")
    outcome = recurrl_evaluate(finished_run, *arguments, cwd=tmp_path).succeeded()
    assert outcome.out.splitlines()[-2:] == ["shown/replay.mp4", "shown/replay.gif"]
    returns = open_run(finished_run).evaluate(episodes=2, seed=[3, 4])["kept"]
    video = imageio_ffmpeg.read_frames(tmp_path / "shown" / "replay.mp4")
    facts = next(video)
    assert facts["size"] == (WIDTH, HEIGHT)
    assert facts["codec"] == "h264"
    # Each step of CartPole gives 1; of both seeds the first episode, and a second of its last picture.
    assert len(list(video)) == returns[0] + returns[2] + 2 * (1 + 50)
    gif = Image.open(tmp_path / "shown" / "replay.gif")
    assert gif.n_frames > 5
    assert (tmp_path / "shown" / "replay.gif").stat().st_size < 2_000_000
    assert not list((tmp_path / "shown").glob(".recurrl*"))


@pytest.mark.filterwarnings("error", "ignore::ResourceWarning")  # a process that another test left
@pytest.mark.parametrize(("values", "states", "hidden"), [(True, 2, 12), (False, 2, 0), (True, 0, 0), (False, 0, 12)])
def test_whatever_an_episode_has_is_drawn_and_the_future_is_faded(values, states, hidden):
    rng = np.random.default_rng(0)
    file = io.BytesIO()
    Image.fromarray(rng.integers(255, size=(7, 9, 3), dtype=np.uint8)).save(file, "png")
    episode = Episode(
        "a title that is longer than fits in one line of text",
        *([file.getvalue()] * 5, [{"move": 1, "aim": np.zeros(9)}, (np.int64(1), np.zeros(9))] * 2, np.arange(4.0)),
        {index: rng.standard_normal(4) for index in range(hidden)},
        {f"state_{i}": rng.standard_normal((4, 30)) for i in range(states)},
        rng.standard_normal(4) if values else None,
        fps=3,
    )
    first, *_, last = (np.asarray(page) for page in frames(episode))
    assert first.shape == last.shape == (HEIGHT, WIDTH, 3)
    darkness = [(255.0 - page[:, WIDTH // 2 :]).sum() for page in (first, last)]
    assert darkness[0] < darkness[1]


NOT_DRAWN = [
    ("env=gym env.id=tasks:VectorCartPole", "its render modes are none, and rgb_array is needed. Leave out"),
    ("env=t_maze", "env.source=memory makes environments of tensors, which nothing draws."),
]


@pytest.mark.parametrize(("overrides", "message"), NOT_DRAWN)
def test_environments_that_cannot_be_drawn_are_rejected(small, overrides, message):
    config = small(*overrides.split())
    error = error_of(drawable, config.env)
    assert f"A video of env.id={config.env.id} was requested, but" in error
    assert message in error


def test_what_draws_unasked_is_not_asked(small):
    config = small("env=gym", "env.id='<it>'").env
    env = with_maker(config, lambda: gymnasium.make("CartPole-v1", render_mode="rgb_array"))
    assert drawable(env).kwargs == {}


WRONG_PICTURES = {
    "fails": "its render raised RuntimeError: no screen. Leave out --video, or install",
    "nothing": "its render returned a NoneType. Have it return pixels",
    "numbers": "its render returned an array of float64 of shape (16, 24, 3)",
    "gray": "its render returned an array of uint8 of shape (16, 24)",
    "empty": "its render returned an array of uint8 of shape (0, 24, 3)",
}


@pytest.mark.parametrize("drawn", WRONG_PICTURES)
def test_what_an_environment_draws_wrongly_is_named(agent_of, drawn):
    agent, config = agent_of("recurrl-test/Blinking-v0", drawn=drawn)
    assert WRONG_PICTURES[drawn] in error_of(recorded, agent.policy, config)


@pytest.mark.parametrize(("declared", "shown"), [(0.05, 1.0), (float("nan"), 1.0), (-5, 1.0), ("30", 30.0), (1e6, 1e3)])
def test_frames_per_second_are_the_environments_within_bounds(agent_of, monkeypatch, declared, shown):
    monkeypatch.setitem(Blinking.metadata, "render_fps", declared)
    agent, config = agent_of("recurrl-test/Blinking-v0")
    _, episode = recorded(agent.policy, config, episodes=1)
    assert episode.fps == shown


def test_missing_packages_are_named_with_the_command_that_installs_them(agent_of, not_installed, tmp_path):
    agent, config = agent_of("CartPole-v1")
    not_installed("pygame")
    with pytest.raises(ConfigError, match=r"pygame is not installed.*pip install 'recurrl\[video\]'"):
        recorded(agent.policy, config)
    not_installed("imageio_ffmpeg")
    with pytest.raises(ConfigError, match=r"imageio-ffmpeg. Install it with: pip install 'recurrl\[video\]'"):
        files_of(tmp_path)
    assert files_of(tmp_path / "a.gif") == [tmp_path / "a.gif"]


def test_wrong_uses_are_rejected(evaluate, finished_run, tmp_path):
    (tmp_path / "lone").symlink_to(finished_run / "checkpoints/frames_000000000064")
    for run in (finished_run, "lone"):
        error = evaluate(run, "--video", "shown.avi").failed().error
        assert "--video shown.avi must be a file named .mp4 or .gif" in error
    assert "--video shows one run (got 2)." in evaluate(finished_run, finished_run, "--video").failed().error
