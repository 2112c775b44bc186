"""The backend of ``examples/extending``: trained, resumed and evaluated by the commands, and passed to a module."""

import pytest
import torch
from my_package.loop_backend import Loop, LoopConfig
from run_files import metrics, summary
from tensordict import TensorDict

from recurrl.recurrent import GRUModule, set_recurrent_mode

NAME = "my_package.loop_backend:Loop"


def losses(run):
    return [float(row[key]) for row in metrics(run) for key in row if key.startswith("loss/")]


def test_it_trains_as_the_reference_does_and_is_resumed_and_evaluated(train, evaluated, tiny):
    own, reference = (train(f"backend={backend}", *tiny, run=backend) for backend in (NAME, "reference"))
    assert len(losses(own)) > 2
    assert losses(own) == pytest.approx(losses(reference), rel=1e-3, abs=1e-6)
    assert summary(own)["backend"] == NAME
    train(f"backend={NAME}", "backend.project_first=false", *tiny, "total_frames=96", f"resume={own}", run="more")
    evaluated(own).succeeded()


class Unhashable(Loop):
    """As a dataclass that is not frozen."""

    __hash__ = None


def test_a_module_takes_it():
    torch.manual_seed(0)
    backend = Unhashable(LoopConfig(name=NAME, project_first=False))
    layer = GRUModule(3, 5, in_key="x", out_key="y", recurrent_backend=backend)
    data = TensorDict({"x": torch.randn(4, 8, 3), "is_init": torch.rand(4, 8, 1) < 0.3}, [4, 8])
    with set_recurrent_mode(True):
        output = layer(data.clone())["y"]
        assert layer.backend_in_use == f"{__name__}:Unhashable"
        layer.recurrent_backend = "reference"
        torch.testing.assert_close(output, layer(data.clone())["y"])
