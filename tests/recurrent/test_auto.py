"""What ``backend=auto`` chooses, and the log line that says so; what ``backend=native`` says where it cannot run."""

import logging

import pytest
import torch
from found import CELLS
from parity import batch, resets, sequence
from rejections import error_of

from recurrl.recurrent import RecurrentModule, choice
from recurrl.recurrent.backends import Options
from recurrl.recurrent.backends.native import library
from recurrl.recurrent.cells import make_cell


@pytest.fixture(autouse=True)
def _nothing_logged_before():
    choice._log_once.cache_clear()


def run(cell, *, dtype=torch.float32, **options):
    """The backend that ran."""
    module = RecurrentModule(cell, 3, 5, in_key="x", out_key="y", **options).to(dtype)
    sequence(module, batch(module, resets("random", 4, 8)))
    return module.backend_in_use


CHOSEN = [
    *(("gru", options, "native") for options in ({}, {"dtype": torch.float64}, {"recurrent_recompute": "full"})),
    ("lstm", {"proj_size": 2}, "scan"),
    ("mingru", {}, "native"),
]


@pytest.mark.native
@pytest.mark.parametrize(("cell", "options", "chosen"), CHOSEN)
def test_the_first_that_supports_the_layer_is_chosen(cell, options, chosen):
    assert run(cell, **options) == chosen


HAS = "only for gru, lstm, and cells that are linear in their states."
WITHOUT_THE_KERNEL = [
    ("slstm", "cpu", f"scan: backend=native has no kernel for the cell slstm, {HAS}"),
    ("mingru", "cuda", "scan: backend=pad does not support the cell mingru: torch has no fused kernel."),
    ("gru", "cuda", "pad"),
]


@pytest.mark.parametrize(("cell", "device", "line"), WITHOUT_THE_KERNEL)
def test_a_choice_that_does_not_depend_on_the_kernel_compiles_none(cell, device, line, monkeypatch, caplog):
    monkeypatch.setattr(library, "unavailable_reason", lambda: pytest.fail("The kernel was compiled."))
    resolved = "auto", Options(), torch.device(device), torch.float32
    with caplog.at_level(logging.INFO):
        chosen = choice.resolve("here", make_cell(cell, 5), *resolved)
    assert (caplog.messages, chosen) == ([f"backend=auto chose {line}"], line.partition(":")[0])


MISSING = [("CC", "no-such-compiler", "no-such-compiler"), ("PATH", "", "cc, gcc, clang")]


@pytest.mark.parametrize(("variable", "value", "missing"), MISSING)
def test_it_logs_its_choice_once_and_what_is_missing(folder, monkeypatch, caplog, variable, value, missing):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv(variable, value)
    with caplog.at_level(logging.INFO):
        assert run("gru") == "scan"
        run("gru")
    assert caplog.messages == [
        f"backend=auto chose scan: backend=native needs a C compiler, and there is no {missing} in PATH. Install one "
        "(on Debian and Ubuntu: apt install gcc libc6-dev), or choose backend=scan."
    ]


def compiler(tmp_path, script):
    path = tmp_path / "compiler"
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


FAILING_COMPILERS = [
    ("echo 'warning: odd' >&2; echo 'error: no stdlib.h' >&2; exit 1", "fails with: error: no stdlib.h Repair it"),
    ("touch $(echo \"$@\" | sed 's/.* -o //')", "cannot be stored and loaded: .*file too short"),
    ("echo 'int a;' | cc -shared -x c - -o $(echo \"$@\" | sed 's/.* -o //')", "is another library"),
    ("echo 'cc1: fatal error: error writing to /tmp/a.s: No space left on device' >&2; exit 1", "Set TMPDIR to a"),
]


@pytest.mark.parametrize(("script", "message"), FAILING_COMPILERS)
def test_a_compiler_that_fails_is_named(folder, tmp_path, monkeypatch, script, message):
    monkeypatch.setenv("CC", compiler(tmp_path, script))
    with pytest.raises(ValueError, match=message):
        run("gru", recurrent_backend="native")


def test_what_native_has_no_kernel_for_is_rejected():
    with pytest.raises(ValueError, match="no kernel for the cell several, only for gru"):
        RecurrentModule(CELLS["Several"](5), 3, recurrent_backend="native", in_key="x", out_key="y")
    assert "proj_size=2 is not" in error_of(run, "lstm", recurrent_backend="native", proj_size=2, kind=ValueError)
