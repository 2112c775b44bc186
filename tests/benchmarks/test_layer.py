"""``benchmark.py layer``: the line fit."""

import pytest

from benchmarks.layer import fit_line


def test_times_on_a_line_give_its_fixed_part_and_slope():
    costs = {str(frames): (500.0 + 2.0 * frames) / frames for frames in (100, 200, 400, 800)}
    assert fit_line(costs) == pytest.approx((500.0, 2.0, 0.0), abs=1e-6)


def test_a_time_off_the_line_shows_as_part_of_itself():
    fixed, each, off = fit_line({"100": 2.0, "200": 2.0, "400": 2.0, "800": 2.2})
    costs = ((100, 2), (200, 2), (400, 2), (800, 2.2))
    furthest = max(abs(fixed / frames + each - cost) / cost for frames, cost in costs)
    assert off == pytest.approx(furthest)
    assert 0.03 < off < 0.1
