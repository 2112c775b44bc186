"""Where metrics go: packages that are not installed, and options of another destination."""

from __future__ import annotations

import pytest


def test_tensorboard_is_refused_where_it_is_not_installed(refusal, not_installed):
    not_installed("tensorboard")
    assert refusal({"logger.name": "tensorboard"}) == (
        "logger=tensorboard needs the tensorboard package. Install it with: pip install 'recurrl[tensorboard]'"
    )


@pytest.mark.parametrize(("key", "value"), [("project", "mine"), ("mode", "offline"), ("id", "abc")])
def test_an_option_of_wandb_is_refused_with_another_logger(key, value, refusal):
    assert refusal({f"logger.{key}": value}) == (
        f"logger.{key}={value} is an option of logger=wandb, but this run has logger=csv. Leave it out, or choose "
        "logger=wandb."
    )
