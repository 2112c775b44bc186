"""``benchmark.py layer``: the line fit."""

import pytest

from benchmarks.layer import fit_line


def test_times_on_a_line_give_its_fixed_part_and_slope():
    costs = {str(frames): (500.0 + 2.0 * frames) / frames for frames in (100, 200, 400, 800)}
    assert fit_line(costs) == pytest.approx((500.0, 2.0, 0.0), abs=1e-6)
