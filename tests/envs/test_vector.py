"""Vector environments that step all their environments in one call."""

import sys

import numpy as np
import pytest
import torch
from collected import fresh_policy, rollouts
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from rejections import error_of
from run_files import summary
from tasks import CARTPOLE, VECTOR
from torchrl.envs.utils import check_env_specs

from recurrl.envs import make_env
from recurrl.errors import ConfigError, EnvError

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED


@pytest.fixture(scope="module")
def cartpoles(compose):
    """As many CartPoles, with a time limit and a mask, as a vector environment and as single ones."""

    def cartpoles(count, limit, mask):
        ways = (*VECTOR, f"env.kwargs.max_episode_steps={limit}"), (*CARTPOLE, f"env.max_episode_steps={limit}")
        ways = [compose(*way, f"env.mask={mask}".replace(" ", "")).env for way in ways]
        native, inline = (make_env(config, count, seed=0).base_env for config in ways)
        return native, inline

    return cartpoles


@settings(max_examples=10, deadline=None)
@given(st.sampled_from([1, 3, 4]), st.integers(1, 30), st.sampled_from([[], [1, 3]]), st.integers(0, 99))
def test_the_vector_cartpole_equals_single_ones(cartpoles, count, limit, mask, seed):
    """From the same states, at each episode's start, with the same actions."""
    native, inline = cartpoles(count, limit, mask)
    random = torch.Generator().manual_seed(seed)

    def start_alike(chosen):
        native_now, inline_now = native.reset_tensors(chosen), inline.reset_tensors(chosen)
        which = range(count) if chosen is None else chosen.flatten().nonzero().flatten().tolist()
        for i in which:
            inline.raw.envs[i].unwrapped.state = tuple(native.raw._env.unwrapped.state[:, i])
        others = [i for i in range(count) if i not in which]
        assert torch.allclose(native_now["observation"][others], inline_now["observation"][others], rtol=0, atol=1e-6)

    start_alike(None)
    for _ in range(40):
        action = torch.randint(2, (count,), generator=random)
        found, expected = native.step_tensors(action), inline.step_tensors(action)
        assert set(found) == set(expected)
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, rtol=0, atol=1e-6, msg=str(key))
        if found["done"].any():
            start_alike(found["done"])


class Clocks(VectorEnv):
    """Shows each environment's number, its episode and the step within; episodes last 2, 3, 4, ... steps.

    The reward is ten times the episode plus the step that it is for.
    """

    single_observation_space = spaces.Box(0, 1e6, (3,), np.float32)
    single_action_space = spaces.Discrete(2)
    truncates = True

    def __init__(self, num_envs, autoreset_mode=SAME_STEP, final="apart", entries=False):
        self.num_envs, self.final, self.entries = num_envs, final, entries
        self.metadata = {"autoreset_mode": autoreset_mode}
        if entries:
            self.single_observation_space = spaces.Dict(
                {"clock": Clocks.single_observation_space, "inner": spaces.Dict({"even": spaces.Discrete(2)})}
            )
        self.number = np.arange(num_envs)

    def reset(self, *, seed=None, options=None):
        mask = None if options is None else options.get("reset_mask")
        if mask is None:
            self.episode, self.time = np.zeros(self.num_envs), np.zeros(self.num_envs)
            return self._observe(), {}
        self._begin(mask)
        observation = self._observe()
        # Nobody may look at what is not reset.
        (observation["clock"] if isinstance(observation, dict) else observation)[~mask] = 1e6
        return observation, {}

    def _begin(self, mask):
        self.episode[mask] += 1
        self.time[mask] = 0

    def _observe(self):
        clock = np.stack([self.number, self.episode, self.time], 1).astype(np.float32)
        return {"clock": clock, "inner": {"even": (self.time % 2).astype(np.int64)}} if self.entries else clock

    def step(self, actions):
        if self.metadata["autoreset_mode"] is NEXT_STEP:
            begins = self.time >= self.number + 2
            self.time[~begins] += 1
            self._begin(begins)
        else:
            self.time += 1
        reward = 10 * self.episode + self.time
        over = self.time >= self.number + 2
        info = {}
        if self.metadata["autoreset_mode"] is SAME_STEP and over.any():
            last = self._observe()
            if self.final == "together":
                info = {"final_obs": last}
            elif self.final == "apart":
                info = {"final_obs": np.full(self.num_envs, None)}
                for i in over.nonzero()[0]:
                    in_dicts = self.entries and {"clock": last["clock"][i], "inner": {"even": last["inner"]["even"][i]}}
                    info["final_obs"][i] = in_dicts or last[i]
            self._begin(over)
        return self._observe(), reward, over & ~self.truncates, over & self.truncates, info


@pytest.fixture
def register_vector(monkeypatch):
    """Gives what makes a vector environment a name by which a configuration finds it, until the test ends."""

    def register_vector(make):
        monkeypatch.setattr(sys.modules[__name__], "made", make, raising=False)
        return f"{__name__}:made"

    return register_vector


def clocks(**options):
    return lambda num_envs: Clocks(num_envs, **options)


ENTRIES = {"autoreset_mode": SAME_STEP, "entries": True}
WAYS = {
    "resets on demand": clocks(autoreset_mode=DISABLED),
    "resets at once, final observations apart": clocks(autoreset_mode=SAME_STEP),
    "resets at once, final observations together": clocks(autoreset_mode=SAME_STEP, final="together"),
    "resets in the next step": clocks(autoreset_mode=NEXT_STEP),
    "several entries on demand": clocks(autoreset_mode=DISABLED, entries=True),
    "several entries at once, apart": clocks(**ENTRIES),
    "several entries at once, together": clocks(**ENTRIES, final="together"),
}


@pytest.mark.parametrize("make", WAYS.values(), ids=WAYS.keys())
def test_rows_hold_every_step_of_every_episode_and_nothing_else(make, register_vector, compose, request):
    small = ("env.num_envs=3", "frames_per_batch=60", "cell.hidden_size=4", "encoder.sizes=[4]")
    config = compose("env=gym", f"env.id={register_vector(make)}", *small)
    all_rows = torch.cat([rows.clone() for rows in rollouts(config, fresh_policy(config), 2)], 1)
    inserted = all_rows["next"].get("inserted", torch.zeros_like(all_rows["is_init"])).squeeze(-1)
    key = "observation" if all_rows["observation"].__class__ is torch.Tensor else ("observation", "clock")
    for i in range(3):
        length = i + 2
        inserted_at = [*range(length, 40, length + 1)] if "next" in request.node.callspec.id else []
        assert inserted[i].nonzero().flatten().tolist() == inserted_at
        row = all_rows[i][~inserted[i]]
        steps = [(episode, time) for episode in range(40) for time in range(length)][: len(row)]
        expected = torch.tensor([(i, episode, time) for episode, time in steps], dtype=torch.float32)
        torch.testing.assert_close(row[key], expected, rtol=0, atol=0)
        torch.testing.assert_close(row["next"][key], expected + torch.tensor([0.0, 0.0, 1.0]), rtol=0, atol=0)
        reward = torch.tensor([10.0 * episode + time + 1 for episode, time in steps])
        torch.testing.assert_close(row["next", "reward"][:, 0], reward, rtol=0, atol=0)
        ends = torch.tensor([time == length - 1 for _, time in steps])
        assert torch.equal(row["next", "truncated"][:, 0], ends)
        assert not row["next", "terminated"].any()
        assert torch.equal(row["is_init"][:, 0], torch.tensor([time == 0 for _, time in steps]))
        assert torch.equal(row["next", "step_count"][:, 0], torch.tensor([time + 1 for _, time in steps]))
        returns = [sum(10.0 * episode + t + 1 for t in range(time + 1)) for episode, time in steps]
        torch.testing.assert_close(row["next", "episode_reward"][:, 0], torch.tensor(returns).double(), rtol=0, atol=0)


@pytest.mark.parametrize("way", [way for way in WAYS if "next" not in way])
def test_their_specs_match_what_they_return(way, register_vector, compose):
    env = make_env(compose("env=gym", f"env.id={register_vector(WAYS[way])}").env, 3, seed=0)
    check_env_specs(env)
    env.close()


def test_the_mask_applies_to_final_observations(register_vector, compose):
    env = make_env(compose("env=gym", f"env.id={register_vector(Clocks)}", "env.mask=[0]").env, 1, seed=0)
    env.reset()
    two_steps = env.rollout(2, break_when_any_done=False)
    assert two_steps["next", "observation"].tolist() == [[[0, 1], [0, 2]]]
    vector = register_vector(clocks(autoreset_mode=SAME_STEP, entries=True))
    env = make_env(compose("env=gym", f"env.id={vector}", "env.mask=[clock]").env, 1, seed=0)
    env.reset()
    shown = env.rollout(2, break_when_any_done=False)["next", "observation"]
    assert {key: entry.tolist() for key, entry in shown.items(True, True)} == {("inner", "even"): [[1, 0]]}


class Spoilt(Clocks):
    """Misbehaves in its third step."""

    def __init__(self, num_envs, failure):
        super().__init__(num_envs, SAME_STEP, final="no" if failure == "final" else "apart")
        self.failure, self.steps = failure, 0

    def reset(self, **options):
        if self.failure == "reset":
            raise KeyError("no map")
        return super().reset(**options)

    def step(self, actions):
        self.steps += 1
        observation, reward, terminated, truncated, info = super().step(actions)
        if self.steps == 3:
            if self.failure == "raises":
                raise RuntimeError("the simulator crashed")
            replaced = {"shape": observation[:, :2], "dtype": observation.astype(str)}
            observation = replaced.get(self.failure, observation)
            if self.failure == "observation":
                observation[1, 2] = np.nan
            if self.failure == "reward":
                reward[2] = np.inf
            reward = reward[:1] if self.failure == "rewards" else reward
            truncated = np.stack([truncated] * 2, 1) if self.failure == "flags" else truncated
            if self.failure == "final of objects":
                info["final_obs"] = observation.astype(object)
            if self.failure == "final of none":
                info["final_obs"] = np.array([], object)
            if self.failure == "final observation":
                info["final_obs"][1][0] = np.nan
        return observation, reward, terminated, truncated, info


MESSAGES = {
    "raises": "The vector environment of 4 (test_vector:made), at step 3, raised RuntimeError in step: the simulator",
    "reset": "raised KeyError in reset: 'no map'.",
    "reward": "Environment 2 of 4 (test_vector:made), at step 3, returned a non-finite reward: inf.",
    "observation": "Environment 1 of 4 (test_vector:made), at step 3, returned a non-finite value of observation "
    "'observation': [ 1.  1. nan].",
    "final observation": "Environment 1 of 4 (test_vector:made), at step 3, returned a non-finite value of "
    "observation 'observation': [nan  0.  3.].",
    "shape": "at step 3, gave the observation 'observation' the shape (4, 2) and the dtype float32, but its space has "
    "(4, 3) and float32.",
    "dtype": "gave the observation 'observation' the shape (4, 3) and the dtype <U32, but its space has (4, 3) and",
    "rewards": "The vector environment of 4 (test_vector:made), at step 3, returned rewards of shape (1,). Have step",
    "flags": "Environment 0 of 4 (test_vector:made), at step 3, returned the truncated array([False, False]), a "
    "ndarray. Have step",
    "final of objects": "at step 3, returned an info['final_obs'] that is neither a batch of observations nor an array "
    "of objects, one observation per environment whose episode ended: gave the observation 'observation' the shape "
    "(3,) and the dtype object",
    "final of none": "neither a batch of observations nor an array of objects, one observation per environment "
    "whose episode ended: index 1 is out of bounds",
    "final": "at step 2, ended episodes without info['final_obs'], which autoreset mode SAME_STEP requires.",
}


@pytest.mark.parametrize("failure", MESSAGES)
def test_an_error_names_the_environment_and_its_step(failure, compose, register_vector):
    config = compose("env=gym", f"env.id={register_vector(Spoilt)}", f"+env.kwargs.failure={failure}").env
    play = make_env(config, 4, seed=0).rollout
    assert MESSAGES[failure] in error_of(play, 4, break_when_any_done=False, kind=EnvError)


def test_a_run_with_evaluation_needs_no_single_environment(train, tiny, tmp_path, register_vector):
    overrides = ("env=gym", f"env.id={register_vector(Clocks)}", "hydra.run.dir=run")
    train(*tiny, *overrides).succeeded()
    # Two episodes, of two and three steps.
    assert summary(tmp_path / "run")["eval_return_mean"] == (3 + 6) / 2


def test_an_id_with_nothing_but_a_vector_environment_is_rejected(rejected, register):
    assert rejected("env=gym", f"env.id={register(Clocks, entry_point='vector_entry_point')}") == (
        "env.id=Registered-v0 is registered only with a vector_entry_point, which makes no single environments. Set "
        "env.id to the class of its vector environment, as module:Class."
    )


def test_options_of_single_environments_are_rejected(train):
    wrapper = "env.wrappers=[gymnasium.wrappers:FlattenObservation]"
    assert train(*VECTOR, wrapper).error == (
        "env.wrappers works on single environments, but env.id=tasks:VectorCartPole makes one vector environment. "
        "Leave it out."
    )


def test_a_vector_that_does_not_declare_when_it_resets_is_rejected(train, register_vector):
    outcome = train("env=gym", f"env.id={register_vector(clocks(autoreset_mode=None))}")
    assert outcome.error == (
        "The vector environment of env.id=test_vector:made must declare when it resets, metadata['autoreset_mode'] "
        "(got None). Choose one of AutoresetMode.SAME_STEP, AutoresetMode.DISABLED, AutoresetMode.NEXT_STEP."
    )


def test_same_step_autoreset_cannot_reset_mid_episode(register_vector, compose):
    env = make_env(compose("env=gym", f"env.id={register_vector(Clocks)}").env, 2, seed=0).base_env
    env.reset_tensors(None)
    env.step_tensors(torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ConfigError, match="resets its environments automatically when their episodes end"):
        env.reset_tensors(torch.tensor([[True], [False]]))
