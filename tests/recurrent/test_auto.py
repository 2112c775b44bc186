"""What ``backend=auto`` chooses, remembers and says."""

from __future__ import annotations

import logging
from copy import deepcopy

import pytest
import torch
from tensordict import TensorDict

from recurrl.recurrent import GRUModule, RecurrentModule, auto, set_recurrent_mode
from recurrl.recurrent.backends import Options, candidates, refusal
from recurrl.recurrent.cells import make_cell


@pytest.fixture(autouse=True)
def _nothing_said() -> None:
    auto._say.cache_clear()


def run(module: RecurrentModule) -> str | None:
    dtype = next(module.parameters()).dtype
    data = TensorDict({"x": torch.randn(4, 8, 3, dtype=dtype), "is_init": torch.rand(4, 8, 1) < 0.3}, [4, 8])
    with set_recurrent_mode(True):
        module(data)
    return module.backend_in_use


def make(**options: object) -> GRUModule:
    return GRUModule(3, 5, in_key="x", out_key="y", **options)


def recomputing(recompute: str, **options: object) -> RecurrentModule:
    return RecurrentModule("gru", 3, 5, in_key="x", out_key="y", recurrent_recompute=recompute, **options)


def resumed(first: RecurrentModule, second: RecurrentModule) -> None:
    """The second has what the first chose."""
    auto.Choices([second.chooser]).load_state_dict(auto.Choices([first.chooser]).state_dict())


@pytest.mark.native
def test_the_first_that_can_do_what_is_asked_is_chosen() -> None:
    assert run(make()) == "native"
    assert run(recomputing("full")) == "native"
    assert run(recomputing("chunk", recurrent_chunk_len=3)) == "scan"
    assert run(RecurrentModule("lstm", 3, 5, proj_size=2, in_key="x", out_key="y")) == "scan"
    assert run(RecurrentModule("mingru", 3, 5, in_key="x", out_key="y")) == "scan"


def test_on_a_gpu_it_is_the_first_that_can() -> None:
    device = torch.device("cuda")
    assert candidates(device) == ("pad", "scan")
    for cell, options, reason in (("gru", Options("full"), "Choose backend=scan"), ("mingru", Options(), "no fused")):
        assert reason in str(refusal("pad", make_cell(cell, 5), options, device))
        assert refusal("auto", make_cell(cell, 5), options, device) is None


def test_it_says_what_it_chose_and_what_is_missing(no_compiler: None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert run(make()) == "scan"
        run(make())
    assert caplog.messages == [
        "backend auto is scan, without native, which is faster: backend=native needs a C compiler, and there is no "
        "no-such-compiler in PATH. Install one (on Debian and Ubuntu: apt install gcc libc6-dev), or choose "
        "backend=scan."
    ]


def test_what_a_run_chose_is_kept_on_another_machine(caplog: pytest.LogCaptureFixture) -> None:
    first, second = make(), make()
    first.chooser.chosen = "scan"
    resumed(first, second)
    assert run(second) == "scan"
    assert caplog.messages == []


def test_a_choice_that_is_not_possible_here_is_replaced_with_a_warning(
    no_compiler: None, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = make(), make()
    first.chooser.chosen = "native"
    resumed(first, second)
    assert run(second) == "scan"
    assert caplog.messages[0].startswith("backend auto was native, which is not possible now: backend=native needs a C")


def test_a_copy_of_a_module_chooses_as_the_module_does() -> None:
    module = make()
    copied = deepcopy(module)
    module.chooser.chosen = "scan"
    assert run(copied) == "scan"


def test_inside_vmap_the_reference_runs() -> None:
    module = make()
    x, is_init = torch.randn(2, 4, 8, 3), torch.rand(4, 8, 1) < 0.3

    def outputs(x: torch.Tensor) -> torch.Tensor:
        with set_recurrent_mode(True):
            return module(TensorDict({"x": x, "is_init": is_init}, [4, 8]))["y"]

    torch.testing.assert_close(torch.vmap(outputs)(x), torch.stack([outputs(one) for one in x]))
    module.recurrent_backend = "scan"
    with pytest.raises(ValueError, match=r"backend=scan is not possible inside torch\.vmap"):
        torch.vmap(outputs)(x)
