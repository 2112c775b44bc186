import json

from recurrl.runtime.report import write_summary


def read(run_dir):
    def reject(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads((run_dir / "summary.json").read_text(), parse_constant=reject)


def test_what_was_written_is_read_back(tmp_path):
    summary = {"status": "completed", "frames": 50_000, "train_return_mean": 1.25, "error": None, "cell": "gru"}
    path = write_summary(tmp_path, summary)
    assert path == tmp_path / "summary.json"
    assert read(tmp_path) == summary
    assert path.read_text().startswith('{\n  "status"')


def test_non_finite_values_become_null_at_any_depth(tmp_path):
    summary = {"a": float("nan"), "b": {"c": [float("inf"), 1.0]}, "d": (-float("inf"), "nan")}
    write_summary(tmp_path, summary)
    assert read(tmp_path) == {"a": None, "b": {"c": [None, 1.0]}, "d": [None, "nan"]}
