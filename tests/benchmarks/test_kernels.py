"""Ahead-of-time compilation of the triton kernels, without a GPU."""

from __future__ import annotations

import json
from itertools import product

import pytest

from benchmarks.compiled import SHARED_MEMORY, Figures, Job, Layer, compile_all
from benchmarks.main import main
from recurrl.recurrent.backends.triton import table

LAYERS = list(product(table.CELLS, table.PRECISIONS))


def assert_good(figures: Figures) -> None:
    if figures.hidden_size <= 128:
        assert figures.spills == 0, figures
    assert figures.shared_memory <= SHARED_MEMORY[figures.architecture], figures
    # The last step's gradients involve no matmul with later ones.
    asked = figures.precision != "ieee" and "no after" not in figures.form
    assert (figures.tensor_core_instructions > 0) is asked, figures
    assert figures.faults == [], figures


def compiled(sizes: list[int], architectures: list[int], cell: str, precision: str, all_forms: bool) -> list[Figures]:
    jobs = [Job(Layer(cell, size, precision, architecture)) for size in sizes for architecture in architectures]
    return [figures for of_job in compile_all(jobs, all_forms).values() for figures in of_job]


def test_kernels_compile_for_a_gpu_that_is_not_here(capsys: pytest.CaptureFixture[str]) -> None:
    layer = ["--cells", "gru", "--hidden", "32", "--precisions", "bf16", "--architectures", "90"]
    main(["kernels", *layer, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert {figures["kernel"] for figures in found} == {"resident_forward", "resident_backward", "step_forward"}
    for figures in found:
        assert figures.pop("fits")
        assert_good(Figures(**figures))


def test_a_table_has_a_line_for_each_kernel_and_a_summary_one_for_each_layer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fake(jobs: list[Job], all_forms: bool) -> dict[Job, list[Figures]]:
        return {
            job: [
                Figures("resident_forward", *job.layer, 8, "", 90, 0, 3 * 1024, 6, []),
                Figures(
                    "resident_backward",
                    *job.layer,
                    8,
                    "",
                    200 - job.layer.architecture,
                    4,
                    1,
                    6,
                    ["a store and a load"],
                ),
            ]
            for job in jobs
        }

    monkeypatch.setattr("benchmarks.kernels.compile_all", fake)
    layer = ["kernels", "--cells", "gru", "--hidden", "32,64", "--precisions", "bf16", "--architectures", "80,90"]
    main(layer)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 2 * 2 * 2
    assert lines[2] == "| resident_forward |  | gru | 32 | bf16 | 80 | 8 | 90 | 0 | 3072 | 6 | yes | ok |"
    assert lines[3] == "| resident_backward |  | gru | 32 | bf16 | 80 | 8 | 120 | 4 | 1 | 6 | no | a store and a load |"
    main([*layer, "--summary"])
    lines = capsys.readouterr().out.splitlines()
    fault = "; ".join(2 * ["a store and a load"])
    assert lines[2:] == [
        f"| gru | {size} | bf16 | resident | 120, 110 | 4, 4 | 3, 3 | 6, 6 | {fault} |" for size in (32, 64)
    ]


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"Unknown --architectures=70. Choose from 80, 86, 90, 100"):
        main(["kernels", "--architectures", "70,80"])


@pytest.mark.slow
@pytest.mark.parametrize(("cell", "precision"), LAYERS)
def test_every_configuration_of_the_table_is_good(cell: str, precision: str) -> None:
    for figures in compiled([32, 64, 128, 256], list(table.ARCHITECTURES), cell, precision, all_forms=False):
        assert_good(figures)


@pytest.mark.slow
@pytest.mark.parametrize(("cell", "precision"), LAYERS)
def test_odd_and_large_sizes_are_good(cell: str, precision: str) -> None:
    for figures in compiled([17, 50, 96, 100, 200, 512, 1024], [90], cell, precision, all_forms=False):
        assert_good(figures)


@pytest.mark.slow
@pytest.mark.parametrize(("cell", "precision"), LAYERS)
def test_all_forms_of_the_kernels_are_good(cell: str, precision: str) -> None:
    for figures in compiled([100, 200], [90], cell, precision, all_forms=True):
        assert_good(figures)
