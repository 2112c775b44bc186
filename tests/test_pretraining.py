"""Pretraining: what recorded episodes become, what they teach, and what is rejected."""

import os
import pickle
import re
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoint_files import Code
from collected import fresh_policy
from rejections import error_of
from run_files import metrics, summary, whole_and_resumed
from tasks import KINDS, MASKED, MASKED_KINDS, SQUASHED
from tensordict import is_tensor_collection

import recurrl
from recurrl.agent import Agent
from recurrl.build import make_policy_for
from recurrl.config import PretrainConfig
from recurrl.config.keys import flat
from recurrl.errors import ConfigError
from recurrl.evaluation import evaluate
from recurrl.pretraining import _in_rows, pretrain, read_episodes


def record(agent, folder, episodes):
    """Records an agent's episodes in turn, because it acts in a single environment."""
    env, added = agent.make_env(), agent.step.interface.added
    folder.mkdir(exist_ok=True)
    for episode in range(episodes):
        observation, info = env.reset(seed=episode)
        state, over, reward, steps = agent.initial_state(), False, 0.0, []
        while not over:
            before = {"previous_reward": reward, "action_mask": info.get("action_mask", 0)}
            passed = {name.removeprefix("previous_"): before[name] for name in added}
            action, state = agent.act(observation, state, **passed)
            seen = {"observations": observation, "actions": action, "action_masks": before["action_mask"]}
            observation, reward, terminated, truncated, info = env.step(action)
            steps.append(flat(seen) | {"rewards": reward})
            over = terminated or truncated
        arrays = {name: [step[name] for step in steps] for name in steps[0]}
        np.savez_compressed(folder / f"{episode:04d}.npz", **arrays)


def options(folder, epochs=1):
    return PretrainConfig(folder=str(folder), epochs=epochs)


PENDULUM = ("Pendulum-v1", ("env.mask=[2]", "env.max_episode_steps=9", *SQUASHED), {})
RECORDED = KINDS | MASKED_KINDS | {"pendulum": PENDULUM}


@pytest.mark.parametrize(("env_id", "overrides", "kwargs"), RECORDED.values(), ids=RECORDED)
def test_what_is_read_is_what_the_policy_saw_and_did(env_id, overrides, kwargs, agent_of, tmp_path):
    agent, config = agent_of(env_id, *overrides, **kwargs)
    record(agent, tmp_path, episodes=3)
    episodes = read_episodes(tmp_path, agent.policy, config.env)
    assert len(episodes) == 3
    for episode in episodes:
        whole = episode.unsqueeze(0)
        shapes = agent.policy.trunk.state_shapes
        state = {key: torch.zeros(1, episode.numel(), *shape) for key, shape in shapes.items()}
        state |= {key: whole[key] for key in set(agent.policy.input_keys) - set(shapes)}
        distribution = agent.policy.sequence(whole["observation"], state, whole["is_init"]).distribution
        chosen = getattr(distribution, "deterministic_sample", distribution.mode)
        if kwargs.get("action") == "bounded":
            chosen = chosen.clamp(-1, 1)  # as the environment did
        taken, chosen = (each.to_dict() if is_tensor_collection(each) else each for each in (whole["action"], chosen))
        torch.testing.assert_close(taken, chosen, rtol=1e-4, atol=1e-4, check_dtype=False)


def test_rows_hold_every_step_once_from_the_beginnings_of_episodes(agent_of, tmp_path):
    agent, config = agent_of("CartPole-v1", "env.mask=[1,3]")
    record(agent, tmp_path, episodes=7)
    episodes = read_episodes(tmp_path, agent.policy, config.env)
    rows = _in_rows(episodes, 3)
    assert rows.batch_size[0] == 3
    assert rows["is_init"][:, 0].all()
    kept = rows["observation"][rows["recorded"]]
    expected = torch.cat([episode["observation"] for episode in episodes])
    assert sorted(map(tuple, kept.tolist())) == sorted(map(tuple, expected.tolist()))
    assert int(rows["is_init"][rows["recorded"]].sum()) == 7


TASKS = [
    *((cell, "CartPole-v1", "env.mask=[1,3]") for cell in ("lstm", "none")),
    ("gru", "Pendulum-v1", "env.max_episode_steps=20"),
]


@pytest.mark.parametrize(("cell", "env_id", "override"), TASKS)
def test_a_policy_learns_what_was_done(cell, env_id, override, agent_of, tmp_path):
    expert, _ = agent_of(env_id, override)
    record(expert, tmp_path, episodes=4)
    _, config = agent_of(env_id, override, f"cell={cell}", "algorithm.critic=feedforward")
    policy = make_policy_for(config)
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    first = pretrain(policy, config.env, options(tmp_path), 2e-3, 8, 4)
    last = pretrain(policy, config.env, options(tmp_path, epochs=30), 1e-2, 8, 4)
    assert last > first
    after = policy.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in after if name.startswith("critic_head"))
    assert all(torch.equal(after[name], before[name]) for name in after if name.endswith("log_std"))
    steps = sum(len(np.load(file)["actions"]) for file in tmp_path.glob("*.npz"))
    for name in ("trunk", "critic_trunk"):
        assert after[f"{name}.preprocess.moments.count"] == 2 * steps
        assert not torch.equal(after[f"{name}.preprocess.mean"], before[f"{name}.preprocess.mean"])


@pytest.mark.parametrize(("cell", "learns"), [("gru", True), ("none", False)])
def test_states_are_carried_from_slice_to_slice(cell, learns, small, tmp_path):
    # Only memory can repeat it: the first observation's sign decides every action.
    for episode in range(16):
        observations = np.zeros((24, 4), np.float32)
        observations[0, 0] = (-1.0) ** episode
        np.savez(tmp_path / f"{episode:02d}.npz", observations=observations, actions=np.full(24, episode % 2))
    config = small("env=gym", "env.id=CartPole-v1", f"cell={cell}", "encoder.sizes=[8]", "cell.hidden_size=16")
    # In slices of 4 steps only the first of six has the sign; the others have it in their state.
    log_likelihood = pretrain(fresh_policy(config), config.env, options(tmp_path, epochs=40), 1e-2, 4, 8)
    assert (log_likelihood > -0.1) == learns


def test_a_critic_that_sees_more_is_left_alone(small, tmp_path):
    config = small("algorithm.critic=feedforward", "algorithm.critic_observation=[privileged]")
    policy = make_policy_for(config)
    record(Agent(policy, config.env), tmp_path, episodes=2)
    pretrain(policy, config.env, options(tmp_path), 2e-3, 8, 4)
    counts = {name: float(value) for name, value in policy.named_buffers() if name.endswith("moments.count")}
    assert {value > 0 for name, value in counts.items() if name.startswith("trunk")} == {True}
    assert {value for name, value in counts.items() if name.startswith("critic_trunk")} == {0.0}


@pytest.mark.slow
def test_a_fresh_policy_imitates_an_expert_of_the_default_run(compose, tmp_path):
    recurrl.train(["evaluation.memory=false", "evaluation.random=false", "device=cpu"], run_dir=tmp_path / "expert")
    record(recurrl.load(tmp_path / "expert"), tmp_path / "episodes", episodes=20)
    config = compose("device=cpu", "seed=7")
    policy = fresh_policy(config)
    assert np.mean(evaluate(config.env, policy, 20, seed=1)) < 50
    task = options(tmp_path / "episodes", epochs=40)
    pretrain(policy, config.env, task, 2e-3, config.slice_len, config.minibatch_slices)
    assert np.mean(evaluate(config.env, policy, 20, seed=1)) >= 450


def test_a_run_imitates_what_the_page_records_once_and_when_resumed_equals_an_uninterrupted_one(
    train, tiny, finished_run, tmp_path, in_tmp_path
):
    page = (Path(__file__).parents[1] / "docs" / "pretraining.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(code.replace("outputs/mine", str(finished_run)).replace("range(20)", "range(3)"), {})
    task = (*tiny, "pretrain.folder=episodes", "pretrain.epochs=2", "checkpoint.every_frames=32")
    whole, resumed = whole_and_resumed(train, tmp_path, 32, *task)
    assert "in 3 episodes of " in whole.out
    assert "pretraining: epoch 2 of 2: log likelihood -0." in whole.out
    assert "pretraining" not in resumed.out
    assert [row["frames"] for row in metrics(tmp_path / "whole")] == ["32", "64"]
    likelihoods = [summary(tmp_path / run)["pretrain_log_likelihood"] for run in ("whole", "resumed")]
    assert -1 < likelihoods[0] == likelihoods[1] < 0
    changed = train("resume=whole", "total_frames=96", "pretrain.epochs=3")
    assert changed.error.startswith("pretrain.epochs=3 has no effect in a resumed run, where it was 2")


# What is rejected

STEPS = 5
GOOD = {"observations": np.zeros((STEPS, 4), np.float32), "actions": np.zeros(STEPS, np.int64)}
WRONG = {
    "no actions": ({"actions": None}, "it holds observations and lacks actions"),
    "no steps": ({"actions": np.zeros(0, int), "observations": np.zeros((0, 4))}, "the actions hold no steps"),
    "a number": ({"actions": np.zeros(())}, "the actions hold no steps"),
    "too many observations": ({"observations": np.zeros((7, 4))}, "must have the shape (5, 4) (got (7, 4))"),
    "too large for float32": ({"observations": np.full((STEPS, 4), 1e300)}, "observations must be finite (got "),
    "complex numbers": ({"actions": np.zeros(STEPS, complex)}, "actions must have the dtype int64 (got complex128)"),
    "a negative action": ({"actions": np.full(STEPS, -1)}, "actions must hold integers from 0 to 1 (got "),
    "actions in rows": ({"actions": np.zeros((5, 1), int)}, "actions must have the shape (5,) (got (5, 1))"),
    "a reward before the first step": (
        {"rewards": np.zeros(STEPS + 1)},
        "rewards must have the shape (5,) (got (6,))",
        "env.previous_reward=true",
    ),
    "actions that their mask forbids": (
        {"observations": np.zeros((STEPS, 2)), "action_masks": [[0, 1, 1, 1, 1, 1]] * STEPS},
        "a mask forbids the action that was taken. See docs/pretraining.md.",
        *("env=gym", "env.packages=[tasks]", f"env.id={MASKED}", "env.action_mask_from_info=true"),
        *("env.kwargs.mask_in=info", "env.kwargs.action=discrete"),
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_an_episode_of_something_else_is_rejected(kind, small, tmp_path):
    changes, message, *overrides = WRONG[kind]
    config = small(*overrides)
    arrays = {name: value for name, value in {**GOOD, **changes}.items() if value is not None}
    np.savez(tmp_path / "one.npz", **arrays)
    error = error_of(read_episodes, tmp_path, make_policy_for(config), config.env)
    assert f"{tmp_path / 'one.npz'} is not an episode of {config.env.id}" in error
    assert message in error


def test_actions_in_units_of_the_policy_are_not_those_of_the_environment(small, tmp_path):
    config = small("env=gym", "env.id=Pendulum-v1")
    read = partial(read_episodes, tmp_path, make_policy_for(config), config.env)
    seen = np.zeros((STEPS + 1, 3), np.float32)  # with the one after the last step
    np.savez(tmp_path / "one.npz", observations=seen, actions=np.full((STEPS, 1), 2.0, np.float32))
    (episode,) = read()
    assert episode["action"].eq(torch.ones(STEPS, 1)).all()  # the upper bound
    assert episode["observation"].shape == (STEPS, 3)
    np.savez(tmp_path / "one.npz", observations=seen, actions=np.full((STEPS, 1), 2.1, np.float32))
    assert re.search(r"actions lies outside .* record actions as the environment takes them", error_of(read))


def test_hostile_files_are_rejected_and_run_no_code(small, tmp_path):
    config = small()
    read = partial(read_episodes, tmp_path, make_policy_for(config), config.env)
    file, marker = tmp_path / "one.npz", tmp_path / "marker"
    np.savez(file, observations=GOOD["observations"], actions=np.array([Code(marker)] * STEPS, dtype=object))
    assert "cannot be read: it fails with ValueError: Object arrays cannot be loaded" in error_of(read)
    np.savez(file, **GOOD)
    whole = file.read_bytes()
    cut_short = [whole[:count] for count in range(0, len(whole), 37)]
    for content in (pickle.dumps(Code(marker)), b"PK\x03\x04", b"x" * 999, *cut_short):
        file.write_bytes(content)
        assert "cannot be read: " in error_of(read)
    assert not marker.exists()
    header = b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999999, 4), }"
    for body in (header.ljust(127) + b"\n", b"\x93NUMPY\x01\x00\xff\xff", b"[" * 10_000):
        with zipfile.ZipFile(file, "w") as members:
            members.writestr("observations.npy", body)
        assert "cannot be read: " in error_of(read) or "lacks actions" in error_of(read)
    for at in range(0, len(whole), 11):
        file.write_bytes(bytes([*whole[:at], whole[at] ^ 255, *whole[at + 1 :]]))
        try:
            read()
        except ConfigError as error:
            assert str(file) in str(error)  # noqa: PT017


def test_a_folder_without_episodes_is_rejected(small, tmp_path):
    config = small()
    os.mkfifo(tmp_path / "pipe.npz")  # nobody would ever write to it
    for path, what in ((tmp_path, "holds no .npz files"), (tmp_path / "nowhere", "is not a folder")):
        assert what in error_of(read_episodes, path, make_policy_for(config), config.env)
