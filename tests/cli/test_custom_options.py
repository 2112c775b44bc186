"""Options of custom parts: by a name and by a yaml, changed on the command line, on resume, and wrong ones."""

import pytest
from run_files import settings

PARTS = """
from dataclasses import dataclass

from recurrl.algorithms.ppo import PPO
from recurrl.config import CellConfig, PPOConfig
from recurrl.config.options import WEIGHT, option
from recurrl.recurrent.cells import make_cell

@dataclass
class CoupledConfig(CellConfig):
    forget_bias: float = option("bias of the forget gate", WEIGHT, default=1.0)
    peephole: bool = option("let the gates see the state", default=False)

def Coupled(options: CoupledConfig):
    return make_cell("lstm", options.hidden_size)

@dataclass
class WeightedConfig(PPOConfig):
    temperature: float = option("of the advantages", WEIGHT, default=1.0)

class Weighted(PPO):
    options: WeightedConfig

    def __init__(self, options: WeightedConfig, policy, config):
        super().__init__(options, policy, config)
"""
CELL, ALGORITHM = "cell=coupled:Coupled", "algorithm=coupled:Weighted"


@pytest.fixture
def coupled(tmp_path):
    """A module with a custom cell and a custom algorithm in the current folder."""
    (tmp_path / "coupled.py").write_text(PARTS, encoding="utf-8")


@pytest.fixture
def coupled_run(train, tiny, coupled, tmp_path):
    """A finished run of both, and the overrides that chose them."""
    train(*tiny, CELL, ALGORITHM, "cell.peephole=true", "hydra.run.dir=run").succeeded()
    return tmp_path / "run"


# On resume


@pytest.mark.parametrize("override", ["cell.forget_bias=3.0", "algorithm.temperature=0.5"])
def test_an_option_of_a_custom_part_is_changed_on_resume(train, coupled_run, override):
    train(f"resume={coupled_run}", override, "total_frames=96").succeeded()
    key, _, value = override.partition("=")
    group, _, name = key.partition(".")
    assert settings(coupled_run)[group][name] == float(value)


@pytest.mark.parametrize(
    ("override", "error"),
    [
        ("cell.forget_bia=3", "Unknown configuration key 'cell.forget_bia'. Did you mean cell.forget_bias?"),
        ("cell.forget_bias=often", "cell.forget_bias must be a number from 0 to 1_000_000 (got often)."),
        ("algorithm.temperature=-1", "algorithm.temperature must be"),
        ("cell.state_size=3", "cell.state_size is an option of cell=lru or s5, but this run has another cell."),
    ],
)
def test_a_wrong_option_of_a_custom_part_is_rejected_on_resume_without_blaming_the_file(
    train, coupled_run, override, error
):
    assert train(f"resume={coupled_run}", override, "total_frames=96").error.startswith(error)


@pytest.mark.parametrize("name", ["lstm", "lru"])
def test_a_name_whose_options_the_run_does_not_have_is_answered_with_the_choice(train, coupled_run, name):
    assert train(f"resume={coupled_run}", f"cell.name={name}").error == (
        f"cell.name must be a choice with the options of this run (got {name}, and they are of coupled:Coupled). "
        f"Choose cell={name}, which takes its defaults."
    )


# Wrong ones


@pytest.mark.parametrize(
    ("override", "error"),
    [
        (
            "cell.zzz=3",
            "Unknown configuration key 'cell.zzz'. cell has: hidden_size, num_layers, forget_bias, peephole.",
        ),
        ("cell.peephole=2", "cell.peephole must be true or false (got 2)."),
        ("cell.peephole=maybe", "cell.peephole must be true or false (got maybe)."),
        ("cell.forget_bias=null", "cell.forget_bias must be a number from 0 to 1_000_000 (got null)."),
    ],
)
def test_a_wrong_option_of_a_custom_cell_is_rejected(rejected, coupled, tmp_path, override, error):
    (tmp_path / "__pycache__").mkdir()
    assert rejected(CELL, override) == error
