"""All rules of a configuration together."""

from __future__ import annotations

import sys

import pytest

from recurrl.validation import check_config


def test_the_defaults_are_valid(compose):
    check_config(compose())


def test_values_that_do_not_go_together_are_refused_at_the_command_line(refused):
    assert refused("recompute=full", "backend=pad").startswith("recompute=full is not possible with backend=pad, ")


def test_a_logger_whose_package_is_not_installed_is_rejected_with_what_to_install(refused, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorboard" or "tracking.tensor" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # as Python marks what cannot be imported
    assert refused("logger=tensorboard") == (
        "logger=tensorboard needs the module tensorboard, which is not installed. Install it, for example with: pip "
        "install 'recurrl[tensorboard]'."
    )


@pytest.mark.parametrize("package", ["nonesuch_package", "nonesuch_package.inner"])
def test_a_package_that_does_not_exist_is_rejected(refused, package):
    assert package.partition(".")[0] in refused("env=gym", "env.id=CartPole-v1", f"env.packages=[{package}]")
