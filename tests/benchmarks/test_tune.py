"""``benchmark.py tune``, with a fake clock and a fake compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch

from benchmarks import tune
from benchmarks.compiled import Figures, Job, compile_all
from benchmarks.main import main
from benchmarks.tune import (
    Pair,
    Problem,
    Stopwatch,
    all_candidates,
    first_fitting,
    fitting,
    in_order,
    preferred,
    replaced,
    tuned,
)
from recurrl.recurrent.backends.triton import table
from recurrl.recurrent.backends.triton.table import Configuration, Row, Table


def everything_fits(pairs: Iterable[Pair]) -> set[Pair]:
    return set(pairs)


def nothing_resident_fits(pairs: Iterable[Pair]) -> set[Pair]:
    return {(problem, candidate) for problem, candidate in pairs if not candidate.resident}


def clock(problem: Problem, candidates: list[Configuration]) -> dict[Configuration, float]:
    """One launch per step wins with many lanes, resident weights otherwise; 32 lanes per program are best."""
    slow = {c: c.resident == (problem.lanes is None) for c in candidates}
    return {
        c: 100 * slow[c] + abs(c.lanes - 32) + 0.1 * c.warps + 0.01 * c.stages + 0.001 * c.units for c in candidates
    }


@pytest.fixture(scope="module")
def timed() -> Table:
    return replaced(table.current(), 90, "a clock", tuned([90], all_candidates, everything_fits, clock))


def test_the_fastest_is_chosen_for_each_hidden_size_and_number_of_lanes(
    timed: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "current", lambda: timed)
    for hidden in (16, 64, 100, 128):
        assert table.configuration("gru", hidden, "tf32", 90, lanes=2048)[:2] == (True, 16)
        assert table.configuration("gru", hidden, "tf32", 90, lanes=2049)[:2] == (False, 32)
    assert table.configuration("gru", 129, "tf32", 90, lanes=1)[:3] == (False, 32, 32)


def test_a_resident_row_is_followed_by_a_step_row_for_recomputation(
    timed: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "current", lambda: timed)
    assert table.configuration("lstm", 100, "bf16", 90, lanes=1).resident
    assert not table.step_configuration("lstm", 100, "bf16", 90, lanes=1).resident


def test_other_architectures_keep_their_rows_and_their_source(timed: Table) -> None:
    before = table.current()
    assert timed.sources == {**before.sources, 90: "timed on a clock"}
    assert [row for row in timed.rows if row.architecture != 90] == [r for r in before.rows if r.architecture != 90]


def test_no_row_is_redundant(timed: Table) -> None:
    for row in timed.rows:
        if row.architecture == 90:
            without = [other for other in timed.rows if other is not row]
            assert choices(without, row) != choices(timed.rows, row)


def choices(rows: Iterable[Row], like: Row) -> list[Configuration | None]:
    of_layer = [row for row in rows if row[:3] == like[:3]]
    return [
        next(
            (r.configuration for r in of_layer if r.covers(hidden, lanes) and not (step and r.configuration.resident)),
            None,
        )
        for hidden in (1, 16, 17, 32, 33, 64, 65, 128, 129, 256, 257, 512, 513, 1024)
        for lanes in (1, 512, 513, 2048, 2049, 10**5)
        for step in (False, True)
    ]


def test_candidates_that_do_not_fit_are_not_timed() -> None:
    rows = tuned([80], all_candidates, nothing_resident_fits, clock)
    assert not any(row.configuration.resident for row in rows)


def test_a_layer_without_a_fitting_candidate_raises() -> None:
    with pytest.raises(ValueError, match=r"No candidate with one launch per step fits .*cell='gru'"):
        tuned([80], all_candidates, lambda _: set(), clock)


def test_untimed_weights_are_resident_if_they_fit_and_tiles_are_as_large_as_the_lanes_fill() -> None:
    rows = tuned([90], preferred, everything_fits, in_order)
    of_layer = {row[3:5]: row.configuration for row in rows if row[:3] == ("gru", "bf16", 90)}
    assert {key: c.lanes for key, c in of_layer.items() if not c.resident} == {
        (1024, 512): 16,
        (1024, 2048): 32,
        (1024, None): 64,
    }
    assert {key: c.units for key, c in of_layer.items() if c.resident} == {
        (16, None): 16,
        (32, None): 32,
        (64, None): 64,
        (128, None): 128,
    }


def test_without_a_gpu_tune_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="times the kernels on a CUDA device, but none is available"):
        main(["tune", "--output", str(tmp_path / "table.json")])
    assert not any(tmp_path.iterdir())


def test_an_unwritable_output_is_refused_before_compiling(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"folder .*missing does not exist\. Create it first"):
        main(["tune", "--untimed", "--output", str(tmp_path / "missing" / "table.json")])


def test_a_gpu_that_is_too_old_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    with pytest.raises(SystemExit, match=r"need compute capability 8.0, but cuda:0 has 7.5"):
        main(["tune", "--output", str(tmp_path / "table.json")])


def test_untimed_writes_a_readable_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "fitting", nothing_resident_fits)
    main(["tune", "--untimed", "--output", str(tmp_path / "table.json")])
    found = table.read(tmp_path / "table.json")
    assert found.sources.keys() == set(table.ARCHITECTURES)
    assert all("not timed" in source for source in found.sources.values())
    assert not any(row.configuration.resident for row in found.rows)


@pytest.mark.skipif(torch.cuda.is_available(), reason="triton interprets only where there is no GPU")
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_the_stopwatch_runs_each_candidate_forwards_and_backwards(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    candidates = [Configuration(True, 8, 16, 16, 4, 1), Configuration(False, 16, 16, 16, 4, 1)]
    launched = []
    run = tune._with

    def spied(candidate: Configuration, layer: tune.Run) -> tune.Run:
        def each() -> None:
            run(candidate, layer)()
            launched.append(candidate)

        return each

    monkeypatch.setattr(tune, "_with", spied)
    seconds = Stopwatch(torch.device("cpu"), steps=2, repetitions=1)(Problem(cell, "ieee", 90, 16, 2), candidates)
    assert seconds.keys() == set(candidates)
    assert all(second > 0 for second in seconds.values())
    assert sorted(launched) == sorted(2 * candidates)


@pytest.mark.parametrize(
    ("fits", "expected"),
    [
        (lambda c: c.lanes <= 32, [(True, 8, 8, 1), (False, 64, 8, 3), (False, 64, 8, 2), (False, 32, 4, 3)]),
        (
            lambda c: c.warps == 4 and c.stages < 3,
            [
                *[(True, 8, 8, 1), (True, 16, 8, 1), (True, 8, 4, 1)],
                *[(False, 64, 8, 3), (False, 64, 8, 2), (False, 32, 4, 3), (False, 32, 4, 2)],
            ],
        ),
    ],
    ids=["the first resident fits", "the third resident fits"],
)
def test_untimed_a_candidate_is_compiled_only_if_none_before_it_fits(
    fits: Callable[[Configuration], bool], expected: list[tuple[bool, int, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = []

    def those_that_fit(pairs: Iterable[Pair]) -> set[Pair]:
        compiled.extend(pairs := list(pairs))
        return {(problem, candidate) for problem, candidate in pairs if fits(candidate)}

    monkeypatch.setattr(tune, "fitting", those_that_fit)
    problem = Problem("gru", "tf32", 90, 128, None)
    found = first_fitting([(problem, candidate) for candidate in preferred(problem)])
    assert [(c.resident, c.lanes, c.warps, c.stages) for _, c in compiled] == expected
    assert found == {(problem, candidate) for _, candidate in compiled if fits(candidate)}


@pytest.mark.parametrize(
    "spilling", [False, True, None], ids=["demanding form spills", "another one does", "none does"]
)
def test_a_candidate_that_spills_in_any_form_does_not_fit(
    spilling: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def compiled(jobs: list[Job], all_forms: bool) -> dict[Job, list[Figures]]:
        asked.append((len(jobs), all_forms))
        spills = 8 if all_forms is spilling else 0
        return {job: [Figures("step_forward", *job.layer, 16, "", 64, spills, 1, 6, [])] for job in jobs}

    monkeypatch.setattr(tune, "compile_all", compiled)
    pair = (Problem("gru", "tf32", 80, 128, None), Configuration(False, 16, 32, 32, 4, 2))
    assert fitting([pair]) == ({pair} if spilling is None else set())
    assert asked == [(8, False), (0 if spilling is False else 1, True)]


def test_compiling_nothing_returns_at_once() -> None:
    assert compile_all([]) == {}


@pytest.mark.slow
def test_compilation_figures_decide_what_fits() -> None:
    problem = Problem("gru", "tf32", 80, 128, None)
    resident, step = Configuration(True, 8, 128, 128, 8, 1), Configuration(False, 16, 32, 32, 4, 2)
    assert fitting([(problem, resident), (problem, step)]) == {(problem, step)}
    larger = problem._replace(architecture=90)
    assert fitting([(larger, resident)]) == {(larger, resident)}
