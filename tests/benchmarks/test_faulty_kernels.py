"""The barrier check on compiled kernels with known faults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.barriers import faults

KERNELS = Path(__file__).parent / "faulty_kernels.py"


@pytest.fixture(scope="module", params=[80, 90, 100])
def compiled(request: pytest.FixtureRequest) -> dict[str, str]:
    """The PTX of each kernel, without barriers (0) and with (1), compiled without triton's interpreter."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, KERNELS, str(request.param)], capture_output=True, text=True, env=environment, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("kernel", "store", "load"), [("transposes", 21, 24), ("accumulates", 34, 32), ("branches", 43, 48)]
)
def test_racy_kernels_are_reported_and_not_with_barriers(
    compiled: dict[str, str], kernel: str, store: int, load: int
) -> None:
    reported = faults(compiled[f"{kernel} 0"], ["x", "scratch", "out", "steps"])
    assert reported
    for fault in reported:
        assert fault.kernel == kernel
        assert fault.store.origins == fault.load.origins == {"scratch"}
        assert f"(faulty_kernels.py:{store})" in str(fault.store)
        assert f"(faulty_kernels.py:{load})" in str(fault.load)
    assert faults(compiled[f"{kernel} 1"], ["x", "scratch", "out", "steps"]) == []
