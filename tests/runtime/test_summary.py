"""``summary.json``."""

import json

from recurrl.runtime.run_summary import write_summary


def test_non_finite_values_become_null_at_any_depth(tmp_path):
    def reject(constant):
        raise AssertionError(f"{constant} is not JSON")

    summary = {"a": float("nan"), "b": {"c": [float("inf"), 1.0]}, "d": (-float("inf"), "nan"), "e": None}
    write_summary(tmp_path, summary)
    parsed = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"), parse_constant=reject)
    assert parsed == {"a": None, "b": {"c": [None, 1.0]}, "d": [None, "nan"], "e": None}
