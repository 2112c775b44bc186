"""A loss that is compiled: it equals one that is not, and the time to compile is reported apart."""

from functools import partial

import pytest
import torch
from collected import fresh_policy, rollouts
from run_files import summary

from recurrl.build import make_algorithm
from recurrl.runtime.report import Report

SIZES = ("frames_per_batch=256", "total_frames=512", "env.max_episode_steps=64", "minibatch_slices=32")
GRPO = ("algorithm=grpo", "algorithm.group_size=2", *SIZES)
CONTINUOUS = ("env.id=Pendulum-v1", "env.mask=[2]")


def check_equal(compose, overrides):
    """The losses, the diagnostics and the gradient of a minibatch, of the same policy."""
    plain, compiled = (compose("device=cpu", "backend=scan", *overrides, f"compile={c}") for c in ("false", "true"))
    policy = fresh_policy(plain)
    algorithm = make_algorithm(plain, policy)
    algorithm.update(*rollouts(plain, policy), progress=0.0)
    minibatch = next(algorithm.buffer.minibatches(algorithm.rows))
    algorithm.states.set_initial_states(minibatch)

    expected, expected_gradients = outputs_and_gradients(algorithm, minibatch)
    assert algorithm.compile_time_s is None
    coefficients = dict(algorithm.named_buffers())
    algorithm = make_algorithm(compiled, policy)
    for name, buffer in algorithm.named_buffers():
        buffer.copy_(coefficients[name])
    losses, gradients = outputs_and_gradients(algorithm, minibatch)
    assert losses == pytest.approx(expected, rel=1e-4, abs=1e-6)
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-4, atol=1e-6)
    seconds = algorithm.compile_time_s
    assert seconds > 0
    outputs_and_gradients(algorithm, minibatch)
    assert algorithm.compile_time_s == seconds


def outputs_and_gradients(algorithm, minibatch):
    losses, _ = algorithm.backward(minibatch)
    gradients = {name: p.grad.clone() for name, p in algorithm.policy.named_parameters() if p.grad is not None}
    return {name: float(value.detach()) for name, value in {**losses.terms, **losses.metrics}.items()}, gradients


@pytest.mark.parametrize("overrides", [(), ("cell=lstm", *GRPO)], ids=["ppo", "grpo"])
def test_the_compiler_takes_the_loss_whole_and_its_gradient_is_the_same(compose, tiny, overrides, monkeypatch):
    # All but the generation of machine code, which takes half a minute.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    check_equal(compose, (*tiny, *overrides))


CELLS = ("lstm", "mingru", "indrnn", "none")
COMPILED = [(), *((f"cell={cell}",) for cell in CELLS), CONTINUOUS, ("state=burn_in",), GRPO]


@pytest.mark.slow
@pytest.mark.parametrize("overrides", COMPILED, ids=lambda overrides: " ".join(overrides) or "default")
def test_compiled_to_machine_code_its_gradient_is_the_same(compose, tiny, overrides):
    check_equal(compose, (*tiny, *overrides))


@pytest.mark.slow
def test_a_run_reports_the_seconds_of_compiling_apart_from_those_of_learning(recurrl_train, tiny, tmp_path):
    for job in range(2):
        recurrl_train(*tiny, "compile=true", f"seed={job}", f"hydra.run.dir={job}", cwd=tmp_path)
        result = summary(tmp_path / str(job))
        assert result["status"] == "completed"
        assert result["compile_time_s"] > 10 * result["learn_time_s"]


def test_the_seconds_of_compiling_are_subtracted_from_learning_once():
    report = Report(started=0.0)
    for compile_time_s in (None, 30.0, 30.0):
        with report.timing("collect"), report.timing("learn"):
            pass
        report._seconds["learn"] += 30.0
        report.add_iteration(32, compile_time_s)
    assert report.compile_time_s == 30.0
    assert report.learn_time_s == pytest.approx(60.0, abs=1.0)
