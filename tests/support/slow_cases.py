"""Cases of tests that run by ``pytest -m slow`` only."""

from functools import partial

import pytest

slow = partial(pytest.param, marks=pytest.mark.slow)


def slow_but(fast, cases):
    """The cases, of which only these are fast."""
    return [case if case in fast else slow(case) for case in cases]
