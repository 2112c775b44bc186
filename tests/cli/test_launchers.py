"""Sweeps whose jobs run in other processes: joblib, submitit, and presets of them."""

import json
import os

import pytest
import yaml
from hydra.errors import MissingConfigException
from run_files import summary

from recurrl.cli.messages import message
from recurrl.cli.sweep import jobs_at_once

pytest.importorskip("joblib")
pytest.importorskip("submitit")

LAUNCHERS = ["joblib", "submitit_local"]


@pytest.fixture(autouse=True)
def _no_interpreter(monkeypatch):
    # With it the job with backend=triton would not fail.
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_one_failed_job_fails_alone_and_is_named_at_the_end(train, tiny, tmp_path, launcher):
    outcome = train("-m", *tiny, f"hydra/launcher={launcher}", "backend=triton,scan", "hydra.sweep.dir=sweep").failed()
    assert [summary(tmp_path / "sweep" / job)["status"] for job in ("0", "1")] == ["failed", "completed"]
    assert "1 of 2 jobs completed" in outcome.err
    assert "failed: 0: backend=triton: ConfigError: backend=triton needs a CUDA device" in outcome.err
    assert outcome.error.startswith("backend=triton needs a CUDA device")
    jobs = json.loads((tmp_path / "sweep" / "sweep.json").read_text(encoding="utf-8"))["jobs"]
    assert [(job["settings"]["backend"], job["status"]) for job in jobs] == [
        ("triton", "failed"),
        ("scan", "completed"),
    ]
    assert outcome.out.splitlines()[-2].split()[:2] == ["1", "scan"]


@pytest.mark.parametrize(("threads", "jobs"), [(1, 6), (2, 3), (4, 1), (64, 1), (None, 1)])
def test_there_are_no_more_jobs_than_cores_for_their_threads(monkeypatch, threads, jobs):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    assert jobs_at_once(threads) == jobs


@pytest.mark.parametrize(("explicit", "jobs"), [((), 3), (("hydra.launcher.n_jobs=2",), 2)])
def test_joblib_runs_that_number_of_jobs_or_an_explicit_one(train, monkeypatch, explicit, jobs):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    # A single job, which is rejected at once.
    outcome = train("-m", "hydra/launcher=joblib", "num_threads=2", "lr=abc", "hydra.sweep.dir=sweep", *explicit)
    assert f"n_jobs={jobs}," in outcome.out


def test_the_preset_for_slurm_composes(train):
    found = yaml.safe_load(train("--cfg", "hydra", "hydra/launcher=slurm", "hydra.launcher.partition=gpu").out)
    launcher = found["hydra"]["launcher"]
    assert launcher["_target_"].endswith("SlurmLauncher")
    assert (launcher["timeout_min"], launcher["partition"]) == (240, "gpu")


@pytest.mark.parametrize("launcher", ["joblib", "submitit_slurm"])
def test_a_launcher_that_is_not_installed_is_named_with_its_extra(launcher):
    error = MissingConfigException("", missing_cfg_file=f"hydra/launcher/{launcher}", options=["basic"])
    extra = launcher.partition("_")[0]
    assert message(error).endswith(f"pip install 'recurrl[{extra}]'")
