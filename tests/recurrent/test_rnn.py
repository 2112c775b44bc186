"""GRU, LSTM and their cells in Python match torch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recurrl.recurrent import GRU, LSTM, GRUCell, LSTMCell

PAIRS = {"gru": (GRU, nn.GRU), "lstm": (LSTM, nn.LSTM)}
CELL_PAIRS = {"gru": (GRUCell, nn.GRUCell), "lstm": (LSTMCell, nn.LSTMCell)}


def both(name: str, *sizes: int, **options: Any) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    ours, theirs = (
        made(*sizes, batch_first=options.pop("batch_first", True), **options).double() for made in PAIRS[name]
    )
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def states(name: str, count: int, rows: int, *sizes: int) -> Any:
    made = tuple(torch.randn(count, rows, size, dtype=torch.float64) for size in sizes)
    return made[0] if name == "gru" else made


def flat(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else [tensor for part in result for tensor in flat(part)]


def assert_same(found: Any, expected: Any) -> None:
    for one, other in zip(flat(found), flat(expected), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("use_scan", [False, True], ids=["loop", "scan"])
@pytest.mark.parametrize("given", [True, False], ids=["states given", "states zero"])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bias": False}, {"bidirectional": True}], ids=str)
@pytest.mark.parametrize("name", PAIRS)
def test_whole_rows_equal_torch(name: str, options: dict[str, Any], given: bool, use_scan: bool) -> None:
    ours, theirs = both(name, 3, 5, **options)
    ours.use_scan = use_scan
    x = torch.randn(4, 6, 3, dtype=torch.float64)
    count = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    hx = states(name, count, 4, 5, 5) if given else None
    assert_same(ours(x, hx), theirs(x, hx))


def test_time_may_come_first() -> None:
    ours, theirs = GRU(3, 5, batch_first=False).double(), nn.GRU(3, 5).double()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(6, 4, 3, dtype=torch.float64)
    assert_same(ours(x), theirs(x))


def test_a_projection_equals_torch() -> None:
    ours, theirs = both("lstm", 3, 5, proj_size=2)
    x, hx = torch.randn(4, 6, 3, dtype=torch.float64), states("lstm", 1, 4, 2, 5)
    assert_same(ours(x, hx), theirs(x, hx))


@pytest.mark.parametrize("name", PAIRS)
def test_a_masked_row_keeps_the_state_of_its_last_unmasked_step(name: str) -> None:
    ours, theirs = both(name, 3, 5, num_layers=2)
    x = torch.randn(3, 6, 3, dtype=torch.float64)
    lengths = [6, 2, 4]
    mask = torch.arange(6) < torch.tensor(lengths)[:, None]
    output, last = ours(x, None, mask)
    for row, length in enumerate(lengths):
        expected, expected_last = theirs(x[row : row + 1, :length])
        assert_same(output[row, :length], expected[0])
        assert not output[row, length:].any()
        assert_same([state[:, row] for state in flat(last)], [state[:, 0] for state in flat(expected_last)])


def test_a_bidirectional_module_refuses_a_mask() -> None:
    with pytest.raises(ValueError, match="takes no mask when it is bidirectional"):
        GRU(3, 5, bidirectional=True)(torch.randn(2, 4, 3), None, torch.ones(2, 4, dtype=torch.bool))


@pytest.mark.parametrize("name", PAIRS)
def test_input_needs_a_batch_dimension(name: str) -> None:
    with pytest.raises(ValueError, match="Expected input to be 3D, got 2D"):
        PAIRS[name][0](3, 5)(torch.randn(4, 3))


@pytest.mark.parametrize("name", PAIRS)
def test_vmap_supports_the_modules(name: str) -> None:
    module = PAIRS[name][0](3, 5).double()
    x = torch.randn(2, 4, 6, 3, dtype=torch.float64)
    assert_same(flat(torch.vmap(module)(x))[0], torch.stack([flat(module(one))[0] for one in x]))


@pytest.mark.parametrize("batched", [True, False], ids=["batched", "single"])
@pytest.mark.parametrize("given", [True, False], ids=["states given", "states zero"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("name", CELL_PAIRS)
def test_a_cell_equals_torch(name: str, bias: bool, given: bool, batched: bool) -> None:
    torch.manual_seed(0)
    ours, theirs = (made(3, 5, bias=bias).double() for made in CELL_PAIRS[name])
    theirs.load_state_dict(ours.state_dict())
    shape = (4,) if batched else ()
    x = torch.randn(*shape, 3, dtype=torch.float64)
    h, c = torch.randn(2, *shape, 5, dtype=torch.float64)
    hx = None if not given else h if name == "gru" else (h, c)
    assert_same(ours(x, hx), theirs(x, hx))


@pytest.mark.parametrize("name", CELL_PAIRS)
def test_a_cell_refuses_other_dimensions(name: str) -> None:
    cell = CELL_PAIRS[name][0](3, 5)
    with pytest.raises(ValueError, match="Expected input to be 1D or 2D, got 3D"):
        cell(torch.randn(2, 4, 3))
    h = torch.randn(2, 4, 5)
    with pytest.raises(ValueError, match=r"Expected hx\[0\] to be 1D or 2D, got 3D"):
        cell(torch.randn(4, 3), h if name == "gru" else (h, h))


@pytest.mark.parametrize("name", CELL_PAIRS)
def test_vmap_supports_the_cells(name: str) -> None:
    cell = CELL_PAIRS[name][0](3, 5).double()
    x = torch.randn(2, 4, 3, dtype=torch.float64)
    assert_same(flat(torch.vmap(cell)(x))[0], torch.stack([flat(cell(one))[0] for one in x]))
