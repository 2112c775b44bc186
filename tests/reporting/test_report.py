"""``recurrl-report``, ``recurrl-compare`` and the end of a sweep: the same figures about the same runs."""

import base64
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from recurrl.cli.sweep import SWEEP, BeforeSweep
from recurrl.errors import ConfigError
from recurrl.reporting.page import write_report
from recurrl.reporting.results import Result, grouped, results_of
from recurrl.returns import interval_95, interval_text, return_format
from recurrl.runtime.run_summary import RunSummary

HEADER = "frames,train/return_mean,eval/return_mean"
TITLES = ("Evaluation return: most probable actions", "Return of training: sampled actions", "Effect of memory", "Runs")


def write_run(run, overrides, **summary):
    (run / ".hydra").mkdir(parents=True)
    (run / ".hydra/overrides.yaml").write_text(overrides)
    (run / "summary.json").write_text(json.dumps(summary))


@pytest.fixture
def sweep(tmp_path):
    """A sweep of two cells and three seeds, one of which failed."""
    for number, (cell, seed) in enumerate((cell, seed) for cell in ("gru", "none") for seed in range(3)):
        run, value = tmp_path / "sweep" / str(number), 100.0 * seed + (50 if cell == "gru" else 0)
        summary = {"status": "failed", "frames": 0, "error": "ValueError: <b>bold</b> & more"}
        if number != 5:
            summary = {"status": "completed", "frames": 1000, "wall_time_s": 10.0, "frames_per_s": 160.0, "seed": seed}
            summary |= {"eval_return_mean": value, "eval_return_std": 1.0, "eval_episodes": 20}
            summary |= {"eval_return_mean_zeroed_state": 3.0 if cell == "gru" else None, "eval_return_mean_random": 1.0}
            warning = {"Entropy collapsed": "Entropy collapsed: 0.0001 nats. Try a smaller lr."}
            summary |= {"warnings": warning if number == 0 else {}}
        write_run(run, f"- cell={cell}\n- seed={seed}\n", **summary)
        rows = [f"{100 * i},{value * i / 10},{value * i / 10 if i % 2 else ''}" for i in range(1, 11)]
        (run / "metrics.csv").write_text("\n".join((HEADER, *rows)) + "\n")
    return tmp_path / "sweep"


def report(path, output=None):
    """The page without its script."""
    page = write_report(results_of([path]), [path], output)
    assert page == (output or path / "report.html")
    assert write_report(results_of([path]), [path], page.parent) == page.parent / "report.html"
    return re.sub(r"<script.*?</script>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_a_sweep_is_one_page_that_asks_for_nothing_else(sweep):
    text = report(sweep)
    assert [title for title in TITLES if title not in text] == []
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?!data:)""", text)
    assert "5 of 6" in text
    assert "cell=gru" in text
    # Names and errors are escaped.
    assert "&lt;b&gt;bold&lt;/b&gt; &amp; more" in text
    assert "<b>bold</b>" not in text
    assert '<li class="warn">0 (cell=gru): Entropy collapsed: 0.0001 nats. Try a smaller lr.</li>' in text


def test_failed_and_copied_runs_count_nowhere_and_are_named(sweep, recurrl_compare, recurrl_report, tmp_path, capsys):
    shutil.copytree(sweep / "1", sweep / "6")
    of_none = "2 50.00 70.71 too few seeds 50.00 0.00 100.00"
    rows = {"gru": "3 150.0 100.0 -98.4 to 398.4 150.0 50.0 250.0", "none": of_none}
    of_hydra = {"sweep": {"dir": str(sweep)}, "launcher": {"_target_": "BasicLauncher"}}
    BeforeSweep().on_multirun_start(OmegaConf.create({"hydra": of_hydra}))
    with SWEEP:
        pass
    assert recurrl_report("sweep", "--output", "page.html", cwd=tmp_path).out == "page.html\n"
    assert recurrl_report("sweep", "--output", "sweep/0/x.json", cwd=tmp_path).error.startswith("--output must be a fo")
    for text in (capsys.readouterr().out, recurrl_compare("sweep", cwd=tmp_path).out):
        lines = [re.sub(r"(^| )sweep/", r"\1", " ".join(line.split())) for line in text.splitlines()]
        assert {f"{cell} {row}" for cell, row in rows.items()} <= set(lines)
        assert {"left out: 6: a copy of 1", "left out: 5: failed"} <= set(lines)
    for page in (sweep / "report.html", tmp_path / "page.html"):
        cells = re.sub("(</?(td|tr)>)+", " ", page.read_text(encoding="utf-8"))
        assert [row for row in rows.values() if row not in cells] == []
        assert ">left out: 6: a copy of 1; left out: 5: failed<" in cells
    for text in ((sweep / "sweep.json").read_text(), recurrl_compare("sweep", "--json", cwd=tmp_path).out):
        gru, none = json.loads(text)["over_seeds"]
        assert gru["interval_95"] == pytest.approx([-98.4, 398.4], abs=0.1)
        assert gru["mean"] == gru["interquartile_mean"] == 150
        assert (none["mean"], none["interval_95"], none["seeds"]) == (50, None, ["0", "1"])
        assert [[Path(name).name, why] for name, why in none["left_out"].items()] == [["5", "failed"]]


DONE = {"status": "completed", "seed": 0, "eval_return_mean": 1.0}


GROUPS_BY_KEY = [
    *((key, 1) for key in ("resume", "consistency_check", "evaluation.memory", "evaluation.every_frames")),
    *((key, 1) for key in ("logger", "logger.mode", "checkpoint.keep_last")),
    *((key, 2) for key in ("lr", "env.id", "evaluation.episodes", "checkpoints", "consistency_check_of_mine")),
]


@pytest.mark.parametrize(("key", "groups"), GROUPS_BY_KEY)
def test_what_has_no_influence_on_returns_makes_no_groups(key, groups, tmp_path):
    runs = [Result(value, tmp_path, {key: value}, DONE | {"seed": seed}) for seed, value in enumerate("ab")]
    assert len(grouped(runs)) == groups


SECOND_RUNS = [
    ({}, "a copy of first"),
    ({"eval_return_mean": 1.1}, "the same seed as first"),
    ({"seed": 3, "eval_return_mean": None}, "without an evaluation"),
    ({"seed": 1}, None),
]


@pytest.mark.parametrize(("changed", "why"), SECOND_RUNS)
def test_what_is_not_another_seed_is_left_out(changed, why, tmp_path):
    first, second = Result("first", tmp_path, {}, DONE), Result("second", tmp_path, {}, DONE | changed)
    (group,) = grouped([first, second])
    assert group.left_out == ({"second": why} if why else {})
    assert group.seeds == ([first] if why else [first, second])


def test_a_job_that_was_rejected_differs_from_the_others_in_its_overrides_only(finished_run, recurrl_compare, tmp_path):
    write_run(tmp_path / "sweep/0", "- lr=abc\n- seed=0\n", status="failed", frames=0, error="ConfigError: lr")
    shutil.copytree(finished_run, tmp_path / "sweep/1")
    (tmp_path / "sweep/1/.hydra").mkdir(exist_ok=True)
    (tmp_path / "sweep/1/.hydra/overrides.yaml").write_text("- lr=1e-3\n- seed=0\n")
    head, *rows = recurrl_compare("sweep", cwd=tmp_path).out.splitlines()
    assert head.split()[:3] == ["run", "lr", "return"]
    assert [row.split()[0] for row in rows] == ["0", "1"]


# By scipy.stats.t.interval(0.95, count - 1, 0, 1 / sqrt(count)); fewer than three have no interval.
@pytest.mark.parametrize(("count", "half"), [(3, 2.4841), (4, 1.5912), (11, 0.67181), (12, 0.63537), (20, 0.46801)])
def test_the_interval_of_a_mean_is_students(count, half):
    assert interval_95(10.0, 1.0, count) == pytest.approx((10 - half, 10 + half), rel=1e-3)
    assert {interval_95(10.0, 1.0, few) for few in range(3)} == {None}
    summary = {"eval_return_mean": 10.0, "eval_return_std": 1.0, "eval_episodes": float(count)}
    assert Result("run", Path(), {}, summary).cells()[3] == interval_text(interval_95(10.0, 1.0, count), ".2f", "")


SCALES = """
0.00123456 0      0.001235 ± 0.000000
0          0      0 ± 0
0          0.25   0.0000 ± 0.2500
0.97851    0.0046 0.9785 ± 0.0046
1.70432    0.0212 1.704 ± 0.021
-43.1999   9.35   -43.20 ± 9.35
3.2        500    3.2 ± 500.0
500        0      500.0 ± 0.0
500        0.0213 500.000 ± 0.021
500        1e-9   500.0000 ± 0.0000
-1345.27   12.34  -1345 ± 12
123456.7   3.21   123456.7 ± 3.2
1e9        1e6    1000000000 ± 1000000
nan        1      nan ± 1
inf        1      inf ± 1
"""


@pytest.mark.parametrize("line", SCALES.strip().splitlines())
def test_returns_have_the_digits_that_their_scale_needs(line):
    mean, std, text = line.split(maxsplit=2)
    form = return_format(float(mean), float(std))
    assert f"{float(mean):{form}} ± {float(std):{form}}" == text


WRONG = [(key, [1], rf"{key} must be .* \(got \[1\]\)") for key in RunSummary(0.0).values()]
WRONG += [("frames", float("inf"), "Out of range float"), ("warnings", {"a": 1}, "warnings must hold texts")]


@pytest.mark.parametrize(("key", "value", "reason"), WRONG)
def test_a_value_of_the_wrong_type_in_a_summary_names_file_and_key(key, value, reason, tmp_path):
    write_run(tmp_path / "0", "[]", **{key: value})
    with pytest.raises(ConfigError, match=f"0/summary.json was not written by a run: {reason}"):
        results_of([tmp_path])


def test_a_metric_that_has_one_value_has_no_curve(sweep):
    for metrics in sweep.glob("*/metrics.csv"):
        metrics.write_text(f"{HEADER}\n100,1.0,\n200,2.0,3.0\n")
    text = report(sweep)
    assert "<h2>Evaluation return" not in text
    assert "<h2>Return of training" in text


def test_a_run_that_wrote_nothing_is_named_and_half_a_row_is_left_out(sweep):
    (sweep / "2/summary.json").unlink()
    (sweep / "2/metrics.csv").unlink()
    (sweep / "0/metrics.csv").write_text(f"{HEADER}\n100,1.0,2.0\n200,nan,3.0\n300,1")  # killed as it wrote a row
    (run, *_) = results_of([sweep])
    assert [run.curve(f"{of}/return_mean") for of in ("train", "eval")] == [[(100, 1.0)], [(100, 2.0), (200, 3.0)]]
    assert re.search(r"2 \(cell=\w+\): unfinished: it wrote no summary", report(sweep))


def test_a_video_is_inside_the_page(sweep):
    (sweep / "0/video").mkdir()
    (sweep / "0/video/replay.gif").write_bytes(b"GIF89a")
    assert f'src="data:image/gif;base64,{base64.b64encode(b"GIF89a").decode()}"' in report(sweep)


def test_of_a_video_too_large_for_the_page_it_says_where_it_is(sweep):
    (sweep / "0/video").mkdir()
    with open(sweep / "0/video/replay.mp4", "wb") as file:
        file.truncate(21 << 20)
    page = report(sweep)
    assert f"{sweep / '0/video/replay.mp4'} has 21 MiB" in page
    assert "data:video" not in page


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium, which is not installed")
@pytest.mark.parametrize(("scheme", "width"), [(0, 1040), (1, 390)], ids=["dark", "light and narrow"])
def test_a_browser_draws_it(scheme, width, sweep, tmp_path):
    report(sweep)
    page, shot = (sweep / "report.html").as_uri(), tmp_path / "shot.png"
    command = [
        *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
        *(f"--user-data-dir={tmp_path / 'profile'}", f"--blink-settings=preferredColorScheme={scheme}"),
        *(f"--window-size={width},2400", "--virtual-time-budget=5000", "--enable-logging=stderr", "--v=0"),
    ]
    drawn = subprocess.run([*command, "--dump-dom", page], capture_output=True, text=True, timeout=120)
    assert drawn.stdout.count('class="main-svg"') >= 4
    assert drawn.stdout.count('class="scatterlayer') >= 2
    assert "Uncaught" not in drawn.stderr
    subprocess.run([*command, f"--screenshot={shot}", page], capture_output=True, timeout=120, check=True)
    assert shot.stat().st_size > 30_000
