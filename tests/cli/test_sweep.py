"""``recurrl-train -m``: sweeps over combinations of overrides."""

import json
import os
import signal
from statistics import fmean, stdev

import pytest
from run_files import metrics, summary, without_times
from slow_cases import slow_but

from recurrl.reporting.results import OUTCOME
from recurrl.returns import return_format

GRID = [("gru", 0), ("gru", 1), ("lstm", 0), ("lstm", 1)]


@pytest.fixture(scope="module")
def sweep_call(recurrl_train, tiny, tmp_path_factory):
    """A sweep over two cells and two seeds: its folder, and what the command came to."""
    folder = tmp_path_factory.mktemp("sweep")
    return folder, recurrl_train("-m", *tiny, "cell=gru,lstm", "seed=0,1", cwd=folder).succeeded()


@pytest.fixture(scope="module")
def sweep(sweep_call):
    """The run directories of its jobs, in the order of ``GRID``."""
    (directory,) = sweep_call[0].glob("outputs/sweeps/*/*")
    return [directory / str(job) for job in range(len(GRID))]


def test_a_sweep_runs_each_combination_in_a_directory_of_its_own(sweep, sweep_call):
    assert [(summary(run)["cell"], summary(run)["seed"]) for run in sweep] == GRID
    assert {summary(run)["status"] for run in sweep} == {"completed"}
    assert {len(metrics(run)) for run in sweep} == {2}
    assert {(run / "learning_curve.png").is_file() for run in sweep} == {True}
    assert "4 of 4 jobs completed" in sweep_call[1].err.splitlines()


def test_the_last_job_of_a_sweep_equals_the_same_run_in_its_own_process(sweep, console_run):
    assert without_times(metrics(sweep[-1])) == without_times(metrics(console_run))


LAUNCHERS = {"basic": "hydra", "joblib": "joblib", "submitit_local": "submitit"}
"""The package that each needs."""


@pytest.mark.parametrize("launcher", slow_but(("basic",), LAUNCHERS))
def test_failed_and_rejected_jobs_fail_alone_and_are_named_at_the_end(train, tiny, tmp_path, launcher):
    pytest.importorskip(LAUNCHERS[launcher])
    sweep = (f"hydra/launcher={launcher}", "compile=cudagraphs,none,abc", "hydra.sweep.dir=sweep")
    outcome = train("-m", *tiny, *sweep).failed()
    statuses = ["failed", "completed", "failed"]
    assert [summary(tmp_path / "sweep" / job)["status"] for job in ("0", "1", "2")] == statuses
    lines = outcome.err.splitlines()
    _, failed, rejected, *_, error = lines[lines.index("1 of 3 jobs completed") :]
    assert failed.startswith("failed: 0: compile=cudagraphs: ConfigError: device must be a CUDA device with compile=")
    assert rejected.startswith("failed: 2: compile=abc: ConfigError: compile must be one of ")
    assert error.startswith("error: device must be a CUDA device with compile=")
    jobs = json.loads((tmp_path / "sweep" / "sweep.json").read_text(encoding="utf-8"))["jobs"]
    of_jobs = [(job["settings"]["compile"], job["status"]) for job in jobs]
    assert of_jobs == list(zip(("cudagraphs", "none", "abc"), statuses, strict=True))
    assert outcome.out.splitlines()[-3].split()[:2] == ["1", "none"]


def test_a_job_that_was_rejected_again_is_shown_with_its_new_error(train, tiny, tmp_path):
    for wrong in ("slice_len=5", "minibatch_slices=3"):
        again = ("-m", *tiny, "resume=auto", wrong, "hydra.sweep.dir=sweep")
        assert f": ConfigError: {wrong.partition('=')[0]} must" in train(*again).failed().err
    (tmp_path / "sweep/0/metrics.csv").write_text("frames\nmany\n")  # of which there is no report
    assert "0 of 1 jobs completed\nfailed: 0: " in train(*again).failed().err


def test_a_sweep_over_an_unknown_choice_is_rejected_before_its_first_job(train, tiny, tmp_path):
    outcome = train("-m", *tiny, "cell=gru,nonesuch", "hydra.sweep.dir=sweep").failed()
    assert outcome.error.startswith("cell=nonesuch does not exist.")
    assert not list(tmp_path.glob("sweep/*/summary.json"))


def shown(value, beside):
    return format(value, return_format(abs(value), abs(beside)))


def rows_of(table):
    return [line.split() for line in table.splitlines()]


def test_a_sweep_ends_with_a_table_of_its_jobs_and_one_over_seeds(sweep, sweep_call):
    _, jobs, seeds = sweep_call[1].out.strip().rsplit("\n\n", 2)
    head, *rows = rows_of(jobs)
    assert head == ["job", "cell", "seed", *(word for head in OUTCOME for word in head.split())]
    summaries = [summary(run) for run in sweep]
    for number, (row, (cell, seed), of) in enumerate(zip(rows, GRID, summaries, strict=True)):
        assert row[:4] == [str(number), cell, str(seed), shown(of["eval_return_mean"], of["eval_return_std"])]
        assert (row[-4], row[-1]) == ("64", "completed")
    head, *rows = rows_of(seeds)
    assert " ".join(head) == "cell seeds mean std 95% interval interquartile mean min max"
    returns = [of["eval_return_mean"] for of in summaries]
    best_first = sorted({"gru": returns[:2], "lstm": returns[2:]}.items(), key=lambda group: -fmean(group[1]))
    for row, (cell, returns) in zip(rows, best_first, strict=True):
        assert row[:4] == [cell, "2", shown(fmean(returns), stdev(returns)), shown(stdev(returns), fmean(returns))]
        assert row[4:7] == ["too", "few", "seeds"]


def test_the_table_is_also_a_file(sweep):
    written = json.loads((sweep[0].parent / "sweep.json").read_text(encoding="utf-8"))
    assert [job["return"] for job in written["jobs"]] == [summary(run)["eval_return_mean"] for run in sweep]
    gru, lstm = (fmean(job["return"] for job in written["jobs"][at : at + 2]) for at in (0, 2))
    best_first = ["gru", "lstm"] if gru >= lstm else ["lstm", "gru"]
    assert [group["settings"] for group in written["over_seeds"]] == [{"cell": cell} for cell in best_first]
    assert [group["seeds"] for group in written["over_seeds"]] == [["0", "1"]] * 2
    assert [(job["settings"]["cell"], int(job["settings"]["seed"])) for job in written["jobs"]] == GRID


def test_ctrl_c_ends_a_sweep_with_its_table_and_it_can_be_continued(train, tiny, tmp_path, signalled):
    signalled(signal.SIGINT)
    outcome = train("-m", *tiny, "seed=0,1", "hydra.sweep.dir=sweep")
    assert outcome.code == 130
    assert "0 of 1 jobs completed\ninterrupted: 0: " in outcome.err
    assert rows_of(outcome.out)[-2][-1] == "interrupted"
    again = ("-m", *tiny, "hydra.sweep.dir=sweep", "resume=auto")
    assert "2 of 2 jobs completed" in train(*again, "seed=0,1").succeeded().err
    assert [len(metrics(tmp_path / "sweep" / job)) for job in ("0", "1")] == [2, 2]
    # Runs that are complete are shown with the values that they had, whatever is typed now.
    (tmp_path / "sweep/1/summary.json").unlink()  # as if it had been killed
    outcome = train(*again, "seed=1,0").failed()
    assert not (tmp_path / "sweep/1/summary.json").exists()
    assert "0 of 2 jobs completed\nfailed: 0: seed=0: ConfigError: seed=1 has no effect in a resumed" in outcome.err
    jobs = json.loads((tmp_path / "sweep" / "sweep.json").read_text(encoding="utf-8"))["jobs"]
    assert [job["settings"]["seed"] for job in jobs] == ["0", "1"]


def test_a_signal_between_jobs_ends_a_sweep_with_its_exit_code(train, tiny, monkeypatch):
    monkeypatch.setattr("recurrl.cli.train.sweep_job", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    assert train("-m", *tiny, "seed=0,1", "hydra.sweep.dir=sweep").code == 128 + signal.SIGTERM


@pytest.mark.parametrize("nothing", ["seed=range(0,0)", "cell=glob(x*)"])
def test_a_sweep_of_no_jobs_is_an_error(train, tmp_path, nothing):
    key, _, value = nothing.partition("=")
    error = f"{key} must have at least one value in a sweep (got {value}). Give it one, or leave it out."
    assert train("-m", nothing, "hydra.sweep.dir=sweep").error == error
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize("text", ["5", "{", "- [", "lr: 1", "", "[" * 1000])
def test_overrides_that_are_not_a_list_are_an_error(recurrl_compare, tmp_path, text):
    file = tmp_path / "0/.hydra/overrides.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    error = f"{file} must be a list of overrides. Correct it, or delete it to omit the job."
    assert recurrl_compare(tmp_path, cwd=tmp_path).error == error


def test_runs_of_any_origin_are_compared(recurrl_compare, sweep, console_run, tmp_path):
    outcome = recurrl_compare(sweep[0].parent, console_run, cwd=tmp_path).succeeded()
    head, *rows = rows_of(outcome.out.split("\n\n")[0])
    assert head[:4] == ["run", "cell", "seed", "return"]
    assert [row[0] for row in rows] == [*map(str, sweep), str(console_run)]
    assert [(row[1], int(row[2])) for row in rows] == [*GRID, ("lstm", 1)]
    # The same run twice; only times differ.
    assert rows[3][3:-3] == rows[4][3:-3]


def test_a_folder_without_runs_cannot_be_compared(recurrl_compare, tmp_path):
    assert recurrl_compare(tmp_path, cwd=tmp_path).error.startswith(f"{tmp_path} holds neither a run nor the jobs of")
