"""What ``backend=auto`` chooses, remembers and says."""

from __future__ import annotations

import json
import logging
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

from recurrl.recurrent import GRUModule, RecurrentModule, auto, set_recurrent_mode


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_compiler: None) -> Path:
    """The file of measurements, on a machine without a C compiler."""
    auto._say.cache_clear()
    monkeypatch.setenv("RECURRL_CACHE_DIR", str(tmp_path / "made"))
    return tmp_path / "made" / "backends.json"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Each measurement's candidates; pad comes out twice as fast."""
    asked: list[list[str]] = []

    def measure(runs: dict[str, object], _: object) -> dict[str, float]:
        asked.append(list(runs))
        return {name: 0.5 if name == "pad" else 1.0 for name in runs}

    monkeypatch.setattr(auto, "_measure", measure)
    return asked


def run(module: RecurrentModule, rows: int = 4, steps: int = 8) -> str | None:
    data = TensorDict({"x": torch.randn(rows, steps, 3), "is_init": torch.zeros(rows, steps, 1, dtype=torch.bool)})
    data.batch_size = [rows, steps]
    with set_recurrent_mode(True):
        module(data)
    return module.backend_in_use


def make(**options: object) -> GRUModule:
    return GRUModule(3, 5, in_key="x", out_key="y", **options)


def test_the_fastest_is_chosen_and_kept_for_the_next_process(cache: Path, measured: list[list[str]]) -> None:
    assert run(make()) == "pad"
    assert run(make()) == "pad"
    assert measured == [["scan", "pad"]]
    (times,) = json.loads(cache.read_text(encoding="utf-8")).values()
    assert times == {"scan": 1.0, "pad": 0.5}


def test_another_shape_is_measured_separately(cache: Path, measured: list[list[str]]) -> None:
    module = make()
    run(module)
    run(module)
    assert len(measured) == 1
    run(module, steps=32)
    assert len(measured) == 2


def test_a_narrow_lead_does_not_change_the_choice(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "_measure", lambda *_: {"scan": 1.0, "pad": 0.95})
    assert run(make()) == "scan"


def test_it_says_what_it_chose_and_why(
    cache: Path, measured: list[list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        run(make())
    missing, message = caplog.messages
    assert missing == (
        "backend auto does without native, which is faster: backend=native needs a C compiler, and there is no "
        "no-such-compiler in PATH. Install one (on Debian and Ubuntu: apt install gcc libc6-dev), or choose "
        "backend=scan."
    )
    assert message.startswith("backend auto is pad for 4 rows of 8 steps, 1.0 segments a row, 3 features, 5 hidden: ")
    assert "scan 1000.00 ms, pad 500.00 ms a layer" in message
    assert str(cache) in message


def resumed(*, from_machine: str | None = None) -> tuple[GRUModule, auto.Choices]:
    """A module that chose before, and one that has its choices."""
    first, second = make(), make()
    run(first)
    state = auto.Choices([first.chooser], torch.device("cpu")).state_dict()
    if from_machine is not None:
        state = {"modules": [{key: (name, from_machine) for key, (name, _) in state["modules"][0].items()}]}
    choices = auto.Choices([second.chooser], torch.device("cpu"))
    choices.load_state_dict(state)
    return second, choices


def test_choices_are_kept_without_measuring_and_handed_on(
    cache: Path, measured: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, choices = resumed()
    before = choices.state_dict()
    cache.unlink()
    monkeypatch.setattr(auto, "_measure", lambda *_: {"scan": 0.1, "pad": 1.0})
    assert run(module) == "pad"
    assert choices.state_dict() == before
    assert run(module, steps=32) == "scan"
    assert len(choices.state_dict()["modules"][0]) == 2


def test_choices_made_on_another_machine_are_kept_and_said(
    cache: Path, measured: list[list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        resumed()
        assert "another machine" not in caplog.text
        module, _ = resumed(from_machine="torch 1, toaster")
        assert caplog.text.count("What backend auto chose on another machine (torch 1, toaster) is kept") == 1
    assert run(module) == "pad"


def test_other_threads_are_another_machine_and_the_choice_is_kept(cache: Path, measured: list[list[str]]) -> None:
    module, _ = resumed()
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert run(module) == "pad"
    finally:
        torch.set_num_threads(threads)
    assert len(measured) == 1


def test_a_copy_of_a_module_chooses_as_the_module_does(cache: Path, measured: list[list[str]]) -> None:
    module = make()
    copied = deepcopy(module)
    run(copied)
    run(module)
    assert len(measured) == 1
    assert module.chooser.choices == copied.chooser.choices != {}


def test_only_what_can_do_the_asked_is_a_candidate(cache: Path, measured: list[list[str]]) -> None:
    assert run(RecurrentModule("gru", 3, 5, in_key="x", out_key="y", recurrent_recompute="full")) == "scan"
    assert run(RecurrentModule("mingru", 3, 5, in_key="x", out_key="y")) == "scan"
    assert measured == []


def test_a_measurement_takes_no_random_numbers_and_leaves_no_gradient(cache: Path) -> None:
    module = make()
    data = TensorDict({"x": torch.randn(4, 8, 3), "is_init": torch.zeros(4, 8, 1, dtype=torch.bool)}, [4, 8])
    before = torch.get_rng_state()
    with set_recurrent_mode(True):
        module(data)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in module.parameters())
    assert set(*[json.loads(cache.read_text(encoding="utf-8")).popitem()[1]]) == {"scan", "pad"}


def test_a_file_that_holds_something_else_is_named(cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"backends\.json holds no measurements of backends .* Delete it"):
        run(make())


def test_a_folder_that_cannot_be_made_stops_nothing(
    cache: Path, measured: list[list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    cache.parent.write_text("a file in the folder's place", encoding="utf-8")
    with caplog.at_level(logging.INFO):
        assert run(make()) == "pad"
    assert "measures again in the next process" in caplog.text


def test_inside_vmap_the_reference_runs(cache: Path) -> None:
    module = make()
    x, is_init = torch.randn(2, 4, 8, 3), torch.rand(4, 8, 1) < 0.3

    def outputs(x: torch.Tensor) -> torch.Tensor:
        with set_recurrent_mode(True):
            return module(TensorDict({"x": x, "is_init": is_init}, [4, 8]))["y"]

    torch.testing.assert_close(torch.vmap(outputs)(x), torch.stack([outputs(one) for one in x]))
    module.recurrent_backend = "scan"
    with pytest.raises(ValueError, match=r"backend=scan is not possible inside torch\.vmap"):
        torch.vmap(outputs)(x)


def test_short_runs_are_measured_more_often_than_long_ones(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def times_run(seconds: float) -> int:
        now, runs = [0.0], []

        def run() -> None:
            runs.append(None)
            now[0] += seconds

        monkeypatch.setattr(auto.time, "perf_counter", lambda: now[0])
        assert auto._measure({"scan": run}, torch.device("cpu")) == {"scan": pytest.approx(seconds)}
        return len(runs)

    assert (times_run(1.0), times_run(0.001)) == (6, 26)
