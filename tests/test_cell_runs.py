"""Every cell of the package in a run: checked against its rollout, and resumed bit for bit."""

import pytest
from run_files import whole_and_resumed

from recurrl.recurrent.cells import cell_names


@pytest.mark.parametrize("cell", cell_names())
def test_a_run_of_every_cell_passes_its_check_and_resumes_bit_for_bit(train, tiny, tmp_path, cell):
    task = (f"cell={cell}", "cell.num_layers=2", "checkpoint.every_frames=32")
    outcomes = whole_and_resumed(train, tmp_path, 32, *tiny, *task)
    assert all("consistency check" in outcome.out for outcome in outcomes)
