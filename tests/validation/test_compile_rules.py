"""What is compiled, and what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
from my_package.elman_cell import ElmanConfig


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"backend.name": "pad"}, "Choose one of: auto, native, scan, triton"),
        ({"backend.name": "reference"}, "Choose one of: auto, native, scan, triton"),
    ],
)
def test_what_cannot_be_compiled_is_refused(
    refusal: Callable[[dict[str, object]], str], changes: dict[str, object], advice: str
) -> None:
    message = refusal({"compile": True, **changes})
    assert message.startswith("compile=true is not possible")
    assert advice in message


def test_a_cell_whose_scan_the_compiler_cannot_differentiate_is_refused(
    refusal: Callable[[dict[str, object]], str],
) -> None:
    name = "my_package.elman_cell:Elman"
    assert "a parallel form" in refusal({"compile": True, "cell": ElmanConfig(name=name, hidden_size=8, num_layers=1)})


def test_without_a_compiler_of_its_own_language_compiling_is_refused(
    refusal: Callable[[dict[str, object]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert shutil.which("no-such-compiler") is None
    assert "no-such-compiler is not on PATH" in refusal({"compile": True})
