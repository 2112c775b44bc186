"""Errors addressed to the user."""

from types import SimpleNamespace

import pytest
import torch
from gymnasium.error import DependencyNotInstalled

from recurrl.cli.search import _proposed
from recurrl.collector.worker_errors import reported
from recurrl.config.plugins import load
from recurrl.envs.checks import making
from recurrl.errors import ConfigError, message_of, user_code
from recurrl.recurrent.backends.native import library
from recurrl.video.rendering import picture_of


def test_what_an_error_of_others_says_is_one_line():
    assert message_of(ValueError("It\n  broke.\n")) == "It broke"
    assert message_of(KeyError()) == "KeyError"
    assert len(message_of(ValueError("x" * 10_000))) == 500


def raising(error):
    def call(*_, **__):
        raise error

    return call


def within(manager, error):
    with manager:
        raise error


def imported(folder, code):
    (folder / "broken_module.py").write_text(code)
    load("broken_module:Name", "cell=broken_module:Name")


BROKEN = ValueError("It broke.")
SAID = {
    "code of the user": lambda _: within(user_code("It fails", "Mend it."), BROKEN),
    "a module": lambda folder: imported(folder, "raise ValueError('It broke.')"),
    "an environment": lambda _: within(making("env.id=x"), BROKEN),
    "a missing package": lambda _: within(making("env.id=x"), DependencyNotInstalled("It broke.")),
    "a worker": lambda _: raising(reported(BROKEN, ""))(),
    "a drawing": lambda _: picture_of(SimpleNamespace(render=raising(BROKEN))),
    "another search space": lambda _: _proposed(SimpleNamespace(ask=raising(BROKEN)), {}),
    "a kernel": lambda _: raising(ConfigError(library.kernel.__wrapped__(torch.float32)))(),
}


@pytest.mark.parametrize("of", SAID)
def test_what_an_error_of_others_says_ends_with_one_full_stop(of, tmp_path, in_tmp_path, monkeypatch):
    monkeypatch.setattr(library, "_load", raising(OSError("It broke.")))
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(Exception, match=r"It broke\.( |$)"):
        SAID[of](tmp_path)
