"""What the rules of a configuration come to as a whole."""

from __future__ import annotations

from pathlib import Path

from recurrl import checkpoint, envs
from recurrl.validation import check


def test_the_defaults_are_fine(compose):
    config = compose()
    check(config)
    envs.check(config.env)
    checkpoint.check_resume(config, checkpoint.to_resume(config.resume, Path()))


def test_values_that_do_not_go_together_are_refused_at_the_command_line(refused):
    assert refused("recompute=full", "backend=pad").startswith("recompute=full is not possible with backend=pad, ")
