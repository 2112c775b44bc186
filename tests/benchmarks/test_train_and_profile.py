"""``benchmark.py train`` and ``profile``: comparisons, and parts that add up."""

import torch

from benchmarks.profile import profile, table
from benchmarks.train import Figures
from benchmarks.train import table as train_table

SMALL = ("env.num_envs=2", "frames_per_batch=32", "slice_len=8", "minibatch_slices=4", "epochs=1", "cell.hidden_size=8")


def test_ratios_compare_the_same_cell_at_the_same_number_of_environments():
    figures = [
        Figures("recurrl", "lstm", 8, 1024, 0.05, 0.15, 400.0),
        Figures("recurrl", "gru", 8, 1024, 9.0, 9.0, 400.0),
        Figures("sb3_contrib", "lstm", 8, 1024, 0.2, 0.6, None),
    ]
    rows = train_table(figures).splitlines()
    assert rows[-1] == "| 8 | sb3_contrib | lstm | 1,280 | 5,120 | 600 |  | 4.0 | 4.0 |"
    assert rows[-3] == "| 8 | recurrl | lstm | 5,120 | 20,480 | 150 | 400 |  |  |"


def test_parts_of_an_iteration_fit_into_the_whole_and_nothing_stays_patched(compose):
    threads, backward = torch.get_num_threads(), torch.Tensor.backward
    config = compose(*SMALL)
    times = profile(config, 5)
    torch.set_num_threads(threads)
    for whole in ("collect", "learn"):
        parts = [seconds for name, seconds in times.items() if name.startswith(f"{whole}/")]
        assert len(parts) >= 3
        assert 0.3 * times[whole][1] < sum(parts)[1]  # processor time: the clock includes other processes
        assert all(sum(parts) <= times[whole])
    assert torch.Tensor.backward is backward
    assert "| collect |" in table(times, config)
    assert torch.nn.utils.clip_grad_norm_.__name__ != "run"
