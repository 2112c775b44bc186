"""``recurrl-report``: one page about runs."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recurrl.cli.results import results_of
from recurrl.errors import ConfigError
from recurrl.reporting.page import write_report
from recurrl.reporting.runs import Result
from recurrl.returns import interval_95

HEADER = "frames,train/return_mean,eval/return_mean"
TITLES = ("Evaluation return", "Return of training", "What the memory is worth", "Where the time went", "Runs")


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """A sweep of two cells and three seeds, one of which failed."""
    for number, (cell, seed) in enumerate((cell, seed) for cell in ("gru", "none") for seed in range(3)):
        run = tmp_path / "sweep" / str(number)
        (run / ".hydra").mkdir(parents=True)
        (run / ".hydra/overrides.yaml").write_text(f"- cell={cell}\n- seed={seed}\n")
        value = 100 * seed + (50 if cell == "gru" else 0)
        rows = [f"{100 * i},{value * i / 10},{value * i / 10 if i % 2 else ''}" for i in range(1, 11)]
        (run / "metrics.csv").write_text("\n".join((HEADER, *rows)) + "\n")
        summary: dict[str, Any] = {
            "status": "completed",
            "frames": 1000,
            "wall_time_s": 10.0,
            "collect_time_s": 2.0,
            "learn_time_s": 4.0,
            "startup_time_s": 1.0,
            "compile_time_s": None,
            "frames_per_s": 160.0,
            "eval_return_mean": float(value),
            "eval_return_std": 1.0,
            "eval_episodes": 20,
            "eval_return_mean_zeroed_state": 3.0 if cell == "gru" else None,
            "eval_return_mean_random": 1.0,
            "warnings": {"Entropy gone": "0.0001 nats"} if number == 0 else {},
        }
        if number == 5:
            summary = {"status": "failed", "frames": 0, "error": "ValueError: <b>bold</b> & more"}
        (run / "summary.json").write_text(json.dumps(summary))
    return tmp_path / "sweep"


def report(path: Path, output: Path | None = None) -> Path:
    return write_report(results_of(path), [path], output)


def text_of(page: Path) -> str:
    """The page without its script."""
    return re.sub(r"<script.*?</script>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_a_sweep_is_one_page_that_asks_for_nothing_else(sweep: Path) -> None:
    page = report(sweep)
    assert page == sweep / "report.html"
    text = text_of(page)
    assert all(title in text for title in TITLES)
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?!data:)""", text)
    assert "5 of 6" in text
    assert "cell=gru" in text
    # The mean over the seeds, its interval and the interquartile mean.
    assert re.search(r"<td>cell=gru</td><td>3</td><td>150.00</td><td>-98.43 to 398.43</td><td>150.00</td>", text)


# By scipy.stats.t.interval(0.95, count - 1, 0, 1 / sqrt(count)).
@pytest.mark.parametrize(("count", "half"), [(2, 8.9846), (3, 2.4841), (11, 0.67181), (12, 0.63537), (20, 0.46801)])
def test_the_interval_of_a_mean_is_students(count: int, half: float) -> None:
    low, high = interval_95(10.0, 1.0, count)
    assert (10 - low, high - 10) == (pytest.approx(half, rel=2e-3), pytest.approx(half, rel=2e-3))


def test_names_and_errors_are_escaped(sweep: Path) -> None:
    text = text_of(report(sweep))
    assert "&lt;b&gt;bold&lt;/b&gt; &amp; more" in text
    assert "<b>bold</b>" not in text
    assert "Entropy gone: 0.0001 nats" in text


def test_a_run_that_was_evaluated_once_has_no_evaluation_curve(finished_run: Path, tmp_path: Path) -> None:
    text = text_of(report(finished_run, tmp_path / "page.html"))
    assert "<h2>Evaluation return</h2>" not in text
    assert "<h2>Return of training" in text
    assert not (finished_run / "report.html").exists()


def test_a_run_that_wrote_nothing_is_named(sweep: Path) -> None:
    (sweep / "2/summary.json").unlink()
    (sweep / "2/metrics.csv").unlink()
    assert "2: unfinished: it wrote no summary" in text_of(report(sweep))


def test_a_row_that_is_cut_off_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(f"{HEADER}\n100,1.0,2.0\n200,nan,3.0\n300,1")
    run = Result("r", tmp_path, {}, {})
    assert run.curve("train/return_mean") == [(100, 1.0)]
    assert run.curve("eval/return_mean") == [(100, 2.0), (200, 3.0)]


def test_a_video_is_inside_the_page(sweep: Path) -> None:
    (sweep / "0/video").mkdir()
    (sweep / "0/video/replay.gif").write_bytes(b"GIF89a")
    assert f'src="data:image/gif;base64,{base64.b64encode(b"GIF89a").decode()}"' in text_of(report(sweep))


def test_a_folder_without_runs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a run nor"):
        report(tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium, which is not installed")
@pytest.mark.parametrize("width", [1040, 390])
@pytest.mark.parametrize("scheme", [0, 1], ids=["dark", "light"])
def test_a_browser_draws_it(scheme: int, width: int, sweep: Path, tmp_path: Path) -> None:
    page, shot = report(sweep), tmp_path / "shot.png"
    command = [
        *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
        *(f"--user-data-dir={tmp_path / 'profile'}", f"--blink-settings=preferredColorScheme={scheme}"),
        *(f"--window-size={width},2400", "--virtual-time-budget=5000", "--enable-logging=stderr", "--v=0"),
    ]
    drawn = subprocess.run([*command, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=120)
    assert drawn.stdout.count('class="main-svg"') >= 4
    assert drawn.stdout.count('class="scatterlayer') >= 2
    assert "Uncaught" not in drawn.stderr
    subprocess.run([*command, f"--screenshot={shot}", page.as_uri()], capture_output=True, timeout=120, check=True)
    assert shot.stat().st_size > 30_000


@pytest.fixture
def recurrl_report(console: Callable[..., Any]) -> Callable[..., Any]:
    """Runs ``recurrl-report``."""
    return lambda *arguments, cwd: console("recurrl-report", *arguments, cwd=cwd)


def test_the_command_says_where_the_page_is(recurrl_report: Callable[..., Any], sweep: Path, tmp_path: Path) -> None:
    done = recurrl_report("sweep", cwd=tmp_path)
    assert (done.code, done.out) == (0, "sweep/report.html\n")
    done = recurrl_report("nowhere", cwd=tmp_path)
    assert done.code == 1
    assert done.err.startswith("error: nowhere holds neither a run")
