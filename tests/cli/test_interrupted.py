"""Runs that a signal ends, and runs that resume."""

import signal

import pytest
from run_files import ended, metrics, state_in, without_times
from slow_cases import slow_but


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1], ids=lambda number: number.name)
def test_a_signal_ends_the_run_after_the_iteration_with_a_checkpoint(train, tiny, tmp_path, signalled, number, capfd):
    signalled(number)
    outcome = train(*tiny, "total_frames=160", "hydra.run.dir=run")
    assert outcome.code == 128 + number
    printed = capfd.readouterr().err
    assert f"{number.name}: finishing and saving the current iteration; " in printed
    assert f"To resume: recurrl-train resume={tmp_path / 'run'}\n" in printed
    assert "Traceback" not in outcome.err
    run, checkpoint = tmp_path / "run", "checkpoints/frames_000000000032"
    assert ended(run, "frames", "error", "checkpoint") == ("interrupted", 32, None, checkpoint)
    assert (run / "learning_curve.png").exists()
    where = f"last checkpoint: {run / checkpoint}; to resume: recurrl-train resume={run}"
    assert outcome.out.splitlines()[-1].endswith(f"interrupted by {number.name} at 32 frames; {where}")


def test_a_second_signal_ends_the_run_at_once_which_resume_auto_starts_from_scratch(train, tiny, tmp_path, signalled):
    arguments = (*tiny, "resume=auto", "hydra.run.dir=run")
    signalled(signal.SIGTERM, signal.SIGTERM)
    outcome = train(*arguments)
    assert outcome.code == 143
    assert ended(tmp_path / "run", "frames", "checkpoint") == ("interrupted", 0, None)
    last = f"interrupted by SIGTERM at 0 frames; this run has written no checkpoint to {tmp_path / 'run'}"
    assert outcome.out.splitlines()[-1].endswith(last)
    train(*arguments).succeeded()
    train(*tiny, "hydra.run.dir=other").succeeded()
    interrupted, whole = (without_times(metrics(tmp_path / name)) for name in ("run", "other"))
    assert interrupted == whole
    signalled(signal.SIGTERM, signal.SIGTERM)
    assert "interrupted by SIGTERM at 64 frames; last checkpoint: " in train(*arguments, "total_frames=96").out
    assert "total_frames must be at least 96 (got 32)" in train(*arguments, "total_frames=32").error


def test_the_printed_command_resumes_where_a_teacher_is_found(train, tiny, tmp_path, signalled):
    train(*tiny, "env.mask=[]", "hydra.run.dir=expert").succeeded()
    signalled(signal.SIGTERM)
    out = train(*tiny, "algorithm=distill", "algorithm.teacher=expert").out
    assert f"to resume: cd {tmp_path} && recurrl-train resume=" in out


REFERENCE = ("algorithm.kl_to_ref_coeff=0.1", "algorithm.ref_refresh_iterations=2")
EXACTLY = {
    "gru": (),
    "lstm": ("cell=lstm", "env=pendulum_no_velocity"),
    "discrete observations": ("env=repeat_first",),
    "states refreshed": ("state=refresh",),
    "learning rate adapted": ("lr_schedule=adaptive",),
    "separate critic": ("algorithm.critic=recurrent",),
    "a critic that sees more": ("algorithm.critic=recurrent", "algorithm.critic_observation=[privileged]"),
    "on-policy": ("algorithm.critic=feedforward", "buffer=on_policy", "optimizer=adamw"),
    "workers": ("collector=multi_sync",),
    "groups": ("algorithm=grpo", "algorithm.group_size=2", "env.max_episode_steps=8", *REFERENCE),
}


# The others by `pytest -m slow`: each of them is three runs.
@pytest.mark.parametrize("kind", slow_but(("gru", "groups"), EXACTLY))
def test_a_run_that_was_interrupted_ends_as_one_that_was_not(train, tiny, tmp_path, signalled, kind):
    arguments = (*EXACTLY[kind], *tiny, "total_frames=128", "evaluation.every_frames=64", "resume=auto")
    train(*arguments, "hydra.run.dir=whole").succeeded()
    signalled(signal.SIGTERM)
    assert train(*arguments, "hydra.run.dir=parts").code == 143
    train(*arguments, "hydra.run.dir=parts").succeeded()
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert without_times(metrics(parts)) == without_times(metrics(whole))
    last = "checkpoints/frames_000000000128/state-policy.pt"
    assert state_in(parts / last) == state_in(whole / last)
