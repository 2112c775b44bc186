"""Configurations of environments that a test's own module makes."""

import pytest


@pytest.fixture
def of(compose, request):
    """The options of environments that something in the test's module makes; ``kwargs`` are its arguments."""

    def of(name, *overrides, **kwargs):
        config = compose("env=gym", f"env.id={request.module.__name__}:{name}", *overrides)
        config.env.kwargs = kwargs
        return config.env

    return of
