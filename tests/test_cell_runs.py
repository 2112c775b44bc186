"""Every cell of the package in a run: checked against its rollout, and resumed bit for bit."""

import pytest
from run_files import of_training

from recurrl.recurrent.cells import cell_names


@pytest.mark.parametrize("cell", cell_names())
def test_a_run_of_every_cell_passes_its_check_and_resumes_bit_for_bit(recurrl_train, tiny, tmp_path, cell):
    task = (f"cell={cell}", "cell.num_layers=2", "schedule_frames=64")
    for arguments in (
        (*tiny, *task, "hydra.run.dir=whole"),
        (*tiny, *task, "hydra.run.dir=parts", "total_frames=32"),
        ("resume=parts", "total_frames=64"),
    ):
        assert "consistency check" in recurrl_train(*arguments, cwd=tmp_path).succeeded().out
    assert of_training(tmp_path / "parts") == of_training(tmp_path / "whole")
    assert len(of_training(tmp_path / "whole")) == 2
