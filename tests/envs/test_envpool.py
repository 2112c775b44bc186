"""Environments of EnvPool, which begin an episode in the step after the last one's end."""

import gymnasium
import pytest
import torch
from collected import fresh_policy, rollouts

from recurrl.callbacks.builtin import EpisodeStatistics
from recurrl.envs.sources.vec_env import release

pytest.importorskip("envpool")

N, T = 4, 120


@pytest.fixture
def rows(compose):
    sizes = (f"env.num_envs={N}", f"frames_per_batch={N * T}", f"slice_len={T}", "encoder.sizes=[4]")
    config = compose("env=envpool", "env.id=CartPole-v1", *sizes, "cell.hidden_size=4")
    (found,) = rollouts(config, fresh_policy(config))
    yield found
    release()


def test_they_are_those_of_gymnasium_and_inserted_steps_are_in_no_episode(rows):
    returns = []
    for n in range(N):
        env = gymnasium.make("CartPole-v1")
        for t in range(T):
            row = rows[n, t]
            if row["next", "inserted"]:
                assert rows["next", "done"][n, t - 1]
                assert row["next", "reward"] == 0
                continue
            if row["is_init"]:
                env.reset()
                env.unwrapped.state = tuple(row["observation"].double().tolist())
            observation, reward, terminated, truncated, _ = env.step(int(row["action"]))
            after = row["next"]
            torch.testing.assert_close(after["observation"], torch.as_tensor(observation), rtol=1e-4, atol=1e-4)
            found = [after[name].item() for name in ("reward", "terminated", "truncated")]
            assert found == [reward, terminated, truncated]
            if terminated or truncated:
                returns.append(float(after["episode_reward"]))
                assert rows["next", "inserted"][n, t + 1 : t + 2].all()
    statistics = EpisodeStatistics()
    statistics.on_rollout(None, rows)
    assert sorted(each[0] for each in statistics.episodes) == sorted(returns)
    assert len(returns) > 2 * N
    assert min(returns) > 1


def test_an_unknown_name_is_rejected(rejected):
    error = "env.id=CartPole-v9 is not an environment of EnvPool"
    assert rejected("env=envpool", "env.id=CartPole-v9").startswith(error)
