from types import SimpleNamespace

import pytest


@pytest.fixture
def config_for():
    """Makes the part of a run's configuration that tracking looks at."""

    def config(logger="csv", mode=None, project=None, resume=None):
        return SimpleNamespace(logger=SimpleNamespace(name=logger, mode=mode, project=project), resume=resume)

    return config
