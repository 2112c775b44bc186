"""Small configurations of the tiny tasks, and batches collected with them."""

import pytest
from collected import fresh_policy, rollouts

from recurrl.policy import OBSERVATION


@pytest.fixture(scope="session")
def small(small):
    """The small configuration with rows of two slices of eight steps."""
    options = ("backend=reference", "frames_per_batch=64", "slice_len=8", "epochs=1")
    return lambda *overrides, **kwargs: small(*options, *overrides, **kwargs)


@pytest.fixture(scope="session")
def configure(small):
    """A small configuration of one of the tasks; ``kwargs`` are the task's arguments."""
    # The package of tasks is also imported in the processes of parallel environments.
    task = ("env=gym", "env.packages=[tasks]")
    return lambda env_id, *overrides, **kwargs: small(*task, f"env.id={env_id}", *overrides, **kwargs)


@pytest.fixture(scope="session")
def collect():
    """The policy of a configuration, its heads far from zero so that a wrong input shows, and its second batch."""

    def collect(config):
        policy = fresh_policy(config, std=0.5)
        batches = rollouts(config, policy, 2)
        policy.update_statistics(next(batches)[OBSERVATION])
        return policy, *(batch.clone() for batch in batches)

    return collect


@pytest.fixture(scope="session")
def encoder_options(small):
    """The options of ``encoder=mlp``, the default."""
    return lambda *overrides: small(*overrides).encoder
