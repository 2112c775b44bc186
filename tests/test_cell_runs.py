"""Every cell of the package in a run: checked against its rollout, and resumed bit for bit."""

import pytest
from run_files import metrics, without_times

from recurrl.recurrent.cells import cell_names


@pytest.mark.parametrize("cell", cell_names())
def test_a_run_of_every_cell_passes_its_check_and_resumes_bit_for_bit(train, tiny, tmp_path, cell):
    task = (f"cell={cell}", "cell.num_layers=2", "checkpoint.every_frames=32")
    whole = train(*tiny, *task, "hydra.run.dir=whole").succeeded()
    parts = train("resume=whole/checkpoints/frames_000000000032", "hydra.run.dir=parts").succeeded()
    assert all("consistency check" in outcome.out for outcome in (whole, parts))
    assert without_times(metrics(tmp_path / "parts")) == without_times(metrics(tmp_path / "whole"))
