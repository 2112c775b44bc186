"""Fixtures for tests of the triton kernels, and of the compiled loop."""

import pytest
import torch
from triton_layers import small_tiles

from recurrl.recurrent.backends.native import library
from recurrl.recurrent.backends.triton import tiles


@pytest.fixture
def poisoned_memory():
    """New memory holds NaN, so that elements no thread writes are detected."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(before)


@pytest.fixture(params=tiles.CELLS)
def cell(request):
    """Each cell with fused kernels in turn, where a test does not choose cells itself."""
    return request.param


@pytest.fixture
def one_launch_a_step(monkeypatch):
    """Use one launch per step for more than 16 features."""
    monkeypatch.setattr(tiles, "configuration", small_tiles)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of kernels, in a cache that does not exist yet."""
    monkeypatch.setenv("RECURRL_CACHE_DIR", str(tmp_path / "cache"))
    library.kernel.cache_clear()
    yield tmp_path / "cache" / "native"
    library.kernel.cache_clear()
