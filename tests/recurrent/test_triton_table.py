"""The table of configurations: what is chosen, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import compiled
from recurrl.recurrent.backends.triton import table
from recurrl.recurrent.backends.triton.table import Configuration, Row, Table

STEP = Configuration(False, 16, 32, 32, 4, 2)
RESIDENT = Configuration(True, 8, 128, 128, 8, 1)


def whole(*first: Row) -> list[Row]:
    """The given rows, followed by one for each cell, precision and architecture."""
    rest = [
        Row(cell, precision, architecture, 1024, None, STEP)
        for cell in table.CELLS
        for precision in table.PRECISIONS
        for architecture in table.ARCHITECTURES
    ]
    return [*first, *rest]


NO_SOURCES = json.dumps({"sources": [], "columns": [*Row._fields[:-1], *Configuration._fields], "rows": []})
SOURCES = dict.fromkeys(table.ARCHITECTURES, "a test")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Table:
    """Installs a table with resident GRU weights in tf32 on architecture 90, up to 128 features and 512 lanes."""
    made = Table(SOURCES, whole(Row("gru", "tf32", 90, 128, 512, RESIDENT)))
    path = tmp_path / "table.json"
    path.write_text(made.to_json(), encoding="utf-8")
    monkeypatch.setenv(table.VARIABLE, str(path))
    return made


@pytest.mark.parametrize(
    ("layer", "chosen"),
    [
        (("gru", 128, "tf32", 90, 512), RESIDENT),
        (("gru", 129, "tf32", 90, 512), STEP),
        (("gru", 128, "tf32", 90, 513), STEP),
        (("gru", 128, "tf32", 80, 512), STEP),
        (("gru", 128, "bf16", 90, 512), STEP),
        (("lstm", 128, "tf32", 90, 512), STEP),
    ],
)
def test_the_first_row_that_covers_the_layer_applies(small: Table, layer: tuple, chosen: Configuration) -> None:
    assert table.configuration(*layer) == chosen
    assert table.step_configuration(*layer) == STEP


def test_the_kernels_of_every_configuration_are_listed(small: Table) -> None:
    for hidden, kinds in ((100, ["resident", "step"]), (1024, ["step"])):
        found = compiled.all_launches(compiled.Layer("gru", hidden, "tf32", 90))
        names = sorted(launch.kernel.__name__ for launch in found if not launch.constants.get("RECOMPUTE"))
        assert names == [f"{kind}_{direction}" for kind in kinds for direction in ("backward", "forward")]


def test_a_table_that_is_written_is_read_back(small: Table, tmp_path: Path) -> None:
    assert table.read(tmp_path / "table.json") == small
    assert table.current() == small


def test_the_packaged_table_covers_every_layer() -> None:
    assert table.current().sources.keys() == set(table.ARCHITECTURES)


def test_a_configuration_can_be_forced() -> None:
    before = table.configuration("gru", 100, "tf32", 90, 1)
    other = STEP._replace(lanes=128)
    with table.forced(other):
        assert (
            table.configuration("gru", 100, "tf32", 90, 1) == table.step_configuration("gru", 1, "tf32", 90, 1) == other
        )
    with table.forced(RESIDENT):
        assert table.configuration("lstm", 100, "ieee", 80, 1) == RESIDENT
        assert not table.step_configuration("lstm", 100, "ieee", 80, 1).resident
    assert table.configuration("gru", 100, "tf32", 90, 1) == before


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        (Row("mingru", "tf32", 90, 128, None, STEP), "choose from"),
        (Row("gru", "fp8", 90, 128, None, STEP), "choose from"),
        (Row("gru", "tf32", 70, 128, None, STEP), "choose from"),
        (Row("gru", "tf32", 90, 128, 0, STEP), "integers"),
        (Row("gru", "tf32", 90, 128, None, STEP._replace(stages=0)), "integers"),
        (Row("gru", "tf32", 90, 128, None, STEP._replace(warps="4")), "integers"),  # type: ignore[arg-type]
        (Row("gru", "tf32", 90, 128, None, STEP._replace(resident=1)), "true or false"),  # type: ignore[arg-type]
        (Row("gru", "tf32", 90, 128, None, STEP._replace(lanes=24)), "powers of two"),
        (Row("gru", "tf32", 90, 128, None, STEP._replace(depth=8)), "at least 16"),
        (Row("gru", "tf32", 90, 129, None, RESIDENT), "cover all features"),
        (Row("gru", "tf32", 90, 64, None, RESIDENT._replace(depth=64)), "cover all features"),
        (Row("gru", "tf32", 90, 2048, None, STEP), "at most 1024"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_invalid_row_is_refused(row: Row, fault: str) -> None:
    with pytest.raises(ValueError, match=rf"Row 1 of the triton kernel table, .*: .*{fault}"):
        Table(SOURCES, whole(row))


def test_a_row_that_is_never_chosen_is_refused() -> None:
    wide = Row("gru", "tf32", 90, 256, None, STEP)
    with pytest.raises(ValueError, match=r"Row 2 .* never chosen"):
        Table(SOURCES, whole(wide, wide._replace(most_hidden=128, most_lanes=512)))
    Table(SOURCES, whole(wide, wide._replace(most_hidden=512, most_lanes=512)))
    Table(SOURCES, whole(wide._replace(most_hidden=128, configuration=RESIDENT), wide))


def test_a_table_that_lacks_a_layer_is_refused() -> None:
    with pytest.raises(ValueError, match="for cell=lstm, precision=bf16 a row with one launch per step"):
        Table(SOURCES, whole()[:-1])
    with pytest.raises(ValueError, match="a source for architecture=100"):
        Table(dict.fromkeys((80, 86, 90), "a test"), whole())


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "a row", None, '{"sources": {}, "columns": ["cell"], "rows": []}', NO_SOURCES],
    ids=["empty", "no keys", "a list", "no json", "no file", "other columns", "no sources"],
)
def test_an_invalid_table_file_is_refused(text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "broken.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    monkeypatch.setenv(table.VARIABLE, str(path))
    with pytest.raises(
        ValueError, match=r"broken.json is not a valid triton kernel table: .* unset RECURRL_TRITON_TABLE"
    ):
        table.current()


def test_a_row_of_the_wrong_length_is_refused(small: Table, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    for change in (list.pop, lambda row: row.append(1)):
        held = json.loads(small.to_json())
        change(held["rows"][3])
        path.write_text(json.dumps(held), encoding="utf-8")
        with pytest.raises(ValueError, match="is not a valid triton kernel table"):
            table.read(path)
