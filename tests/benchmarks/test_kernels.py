"""Ahead-of-time compilation of the triton kernels, without a GPU."""

import json
from itertools import product

import pytest

from benchmarks.kernels import LINEAR, SHARED_MEMORY, Figures, Layer, compile_elsewhere, table
from benchmarks.main import main
from recurrl.recurrent.backends.triton import tiles


def assert_good(figures):
    if figures.hidden_size <= 128:
        assert figures.spills == 0, figures
    # Linear cells' keep states in registers.
    assert figures.has_barrier or figures.cell in LINEAR, figures
    assert figures.shared_memory <= SHARED_MEMORY[figures.architecture], figures
    assert (figures.tensor_core_instructions > 0) is (figures.precision != "ieee"), figures


@pytest.mark.parametrize(("cells", "architecture"), [("gru", 80), (",".join(LINEAR), 90), ("gru", 100)])
def test_kernels_compile_for_a_gpu_that_is_not_here(cells, architecture, capsys):
    precision = "bf16" if cells == "gru" else "ieee"
    layer = ["--cells", cells, "--hidden", "32", "--precisions", precision, "--architectures", str(architecture)]
    main(["kernels", *layer, "--json"])
    of_kernels = [Figures(**figures) for figures in json.loads(capsys.readouterr().out)]
    assert {figures.kernel for figures in of_kernels} == {"forward", "backward"}
    for figures in of_kernels:
        assert_good(figures)


def test_a_table_has_a_line_for_each_layer_with_the_worst_of_its_kernels():
    of_kernels = [
        Figures(kernel, "gru", 64, "bf16", architecture, registers - architecture, spills, 3 * 1024, 6, True)
        for architecture in (80, 90)
        for kernel, registers, spills in (("forward", 150, 0), ("backward", 200, 4))
    ]
    assert table(of_kernels).splitlines()[2:] == ["| gru | 64 | bf16 | 120, 110 | 4, 4 | 3, 3 | 6, 6 |"]


def test_an_unknown_architecture_is_an_error():
    with pytest.raises(SystemExit, match=r"--architectures must be among 80, 86, 90, 100 \(got 70\)"):
        main(["kernels", "--architectures", "70,80"])


@pytest.mark.slow
@pytest.mark.parametrize(("cell", "precision"), [*product(tiles.CELLS, tiles.PRECISIONS), *product(LINEAR, ["ieee"])])
def test_every_choice_of_the_rule_is_good(cell, precision):
    layers = [Layer(cell, size, precision, each) for size in (25, 32, 64, 128, 256) for each in SHARED_MEMORY]
    layers += [Layer(cell, size, precision, 90) for size in (17, 50, 96, 100, 200, 512, 1024)]
    for figures in compile_elsewhere(layers):
        assert_good(figures)
