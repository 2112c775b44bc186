"""``examples/extending``: a buffer, a collector, an encoder and a logger with options, through the command line."""

import json

import pytest
from run_files import metrics, without_times

BUFFER = "buffer=my_package.prioritized_buffer:PrioritizedBuffer"
COLLECTOR = "collector=my_package.resetting_collector:make"
FOURIER = ("--config-dir", "configs", "encoder=fourier")
FOURIER_BY_NAME = ("encoder=my_package.fourier_encoder:make",)
LINES = "logger=my_package.json_lines:JsonLines"


def test_a_buffer_trains_and_resumes_and_its_option_counts(train, tiny):
    choices = [[*tiny, BUFFER, f"buffer.exponent={exponent}", "backend=scan"] for exponent in (0, 1)]
    runs = [train(*overrides, run=str(number)) for number, overrides in enumerate(choices)]
    assert len({metrics(run)[0]["loss/objective"] for run in runs}) == 2
    train(BUFFER, f"resume={runs[1]}", "total_frames=96", run="again")


@pytest.mark.parametrize("on_env_error", ["raise", "restart"])
def test_a_run_with_a_collector_resumes_as_if_it_had_not_stopped(train, tiny, on_env_error):
    overrides = [*tiny, COLLECTOR, "collector.reset_every=3", f"collector.on_env_error={on_env_error}", "backend=scan"]
    whole = train(*overrides, "total_frames=160", "checkpoint.every_frames=64", run="whole")
    half = whole / "checkpoints" / "frames_000000000064"
    # Only its name: collector=... would also take the defaults of its options.
    named = COLLECTOR.replace("collector", "collector.name", 1)
    again = train(named, f"resume={half}", run="again")
    assert without_times(metrics(again)) == without_times(metrics(whole))
    assert [row["collect/reset"] for row in metrics(whole)] == ["1.0", "0.0", "0.0", "1.0", "0.0"]


ENCODERS = [(FOURIER, ()), (FOURIER_BY_NAME, ("policy.previous_action=true", "env.previous_reward=true"))]


@pytest.mark.parametrize(("chosen", "previous"), ENCODERS, ids=["by yaml, a tensor", "by name, a mapping"])
def test_a_run_with_an_encoder_resumes_as_if_it_had_not_stopped(chosen, previous, train, evaluated, tiny):
    sizes = [override for override in tiny if not override.startswith("encoder.")]
    options = (*chosen, *sizes, *previous, "encoder.frequencies=5", "checkpoint.every_frames=32", "backend=reference")
    whole = train(*options, run="whole")
    resumed = train(*options, f"resume={whole / 'checkpoints' / 'frames_000000000032'}", run="resumed")
    assert without_times(metrics(resumed)) == without_times(metrics(whole))
    evaluated(resumed).succeeded()


def test_an_encoder_of_numbers_rejects_other_observations(recurrl_train, extending, tmp_path):
    overrides = (*FOURIER, "env=gym", "env.id=FrozenLake-v1", "device=cpu", f"hydra.run.dir={tmp_path / 'rejected'}")
    message = "encoder=my_package.fourier_encoder:make takes continuous observations, not torch.int64."
    assert recurrl_train(*overrides, cwd=extending).failed().error.startswith(message)
    assert not (tmp_path / "rejected").exists()


def test_options_are_explained(recurrl_train, extending):
    explained = recurrl_train(*FOURIER, LINES, "--cfg", "job", cwd=extending).out
    assert "  frequencies: 32                   # random frequencies, each of which gives a" in explained
    assert "  only: []                          # beginnings of the metrics to log" in explained


LOGGERS = [
    (("--config-dir", "configs", "logger=json_lines"), {"frames", "train", "eval"}),
    ((LINES, "logger.only=[optim/]"), {"frames", "optim"}),
]


@pytest.mark.parametrize(("chosen", "logged"), LOGGERS)
def test_a_logger_logs_what_its_option_says(chosen, logged, train, tiny):
    run = train(*chosen, *tiny)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["frames"] for line in lines] == [32, 64]
    assert {name.partition("/")[0] for line in lines for name in line} == logged
    assert len(metrics(run)) == 2
