"""Launchers of sweeps whose jobs run in other processes: how many at once, and presets."""

import os

import pytest
import yaml
from hydra.errors import MissingConfigException

from recurrl.cli.sweep import jobs_at_once
from recurrl.runs.hydra_errors import message

pytest.importorskip("joblib")
pytest.importorskip("submitit")


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
    composed = yaml.safe_load(train("--cfg", "hydra", "hydra/launcher=slurm", "hydra.launcher.partition=gpu").out)
    launcher = composed["hydra"]["launcher"]
    assert launcher["_target_"].endswith("SlurmLauncher")
    assert (launcher["timeout_min"], launcher["partition"]) == (240, "gpu")


@pytest.mark.parametrize("launcher", ["joblib", "submitit_slurm"])
def test_a_launcher_that_is_not_installed_is_named_with_its_extra(launcher):
    error = MissingConfigException("", missing_cfg_file=f"hydra/launcher/{launcher}", options=["basic"])
    assert message(error).endswith(f"pip install 'recurrl[{launcher.partition('_')[0]}]'")
