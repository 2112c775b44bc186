"""Custom cells on the command line: all of ``examples/extending``."""

from pathlib import Path

import my_package.elman_cell
import pytest
import yaml
from run_files import summary
from slow_cases import slow_but

from recurrl.config import CellConfig
from recurrl.recurrent import Cell
from recurrl.recurrent.cells import make_cell

CONFIGS = Path(__file__).parents[2] / "examples" / "extending" / "configs"
CELLS = sorted(path.stem for path in (CONFIGS / "cell").glob("*.yaml"))
OWN = f"--config-dir={CONFIGS}"


# The others by `pytest -m slow`; each has its parity tests.
@pytest.mark.parametrize("cell", slow_but(("elman",), CELLS))
def test_a_custom_cell_is_one_module_and_one_yaml(cell, train, evaluate, tiny, tmp_path):
    deep = ("cell.num_layers=2", "algorithm.critic=recurrent", "state=burn_in")
    train(OWN, *tiny, f"cell={cell}", *deep, "hydra.run.dir=run").succeeded()
    result = summary(tmp_path / "run")
    assert result["cell"] == yaml.safe_load((CONFIGS / "cell" / f"{cell}.yaml").read_text(encoding="utf-8"))["name"]
    assert result["backend"] == ("native" if cell == "diagonal" else "scan")  # which is linear in its state
    assert result["eval_return_mean_zeroed_state"] is not None
    evaluate("run", "--memory", "--trust-packages").succeeded()


def not_a_cell(options: CellConfig):
    return options.name


class NoStep(Cell):
    def __init__(self, options: CellConfig):
        self.hidden_size = options.hidden_size


class Forgotten(CellConfig):
    leak: float = 0.5


def of_no_dataclass(options: Forgotten): ...


def of_another_size(options: CellConfig):
    return make_cell("gru", options.hidden_size + 1)


OTHER_THINGS = [
    (not_a_cell, "must make a recurrl.recurrent.Cell with hidden_size=8 (got a str with None)"),
    (NoStep, "cell.name=my_package.elman_cell:wrong must define parameter_shapes, state_shapes, step (got none). Add"),
    (of_no_dataclass, "its options Forgotten must be a dataclass. Put @dataclass above it."),
    (of_another_size, "must make a recurrl.recurrent.Cell with hidden_size=8 (got a GRU with 9). Set self.h"),
]


@pytest.mark.parametrize(("factory", "message"), OTHER_THINGS)
def test_a_factory_that_makes_another_thing_is_rejected(factory, message, rejected, monkeypatch):
    monkeypatch.setattr(my_package.elman_cell, "wrong", factory, raising=False)
    assert message in rejected("cell.name=my_package.elman_cell:wrong", "cell.hidden_size=8")
