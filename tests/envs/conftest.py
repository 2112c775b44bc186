"""Configurations of environments that a test's own module makes."""

import pytest


@pytest.fixture
def of(compose, request):
    """The options of environments that something in the test's module makes; ``kwargs`` are its arguments."""
    module = request.module.__name__
    return lambda name, *overrides, **kwargs: compose("env=gym", f"env.id={module}:{name}", *overrides, **kwargs).env
