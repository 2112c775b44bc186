"""Launchers of sweeps whose jobs run in other processes: how many at once, and presets."""

import pytest
import yaml
from hydra.errors import MissingConfigException
from rejections import error_of

from recurrl.runs.overrides import hydra_errors_as_config_errors

pytest.importorskip("joblib")
pytest.importorskip("submitit")


EXPLICIT = ("num_threads=2", "hydra.launcher.n_jobs=2")
JOBS = [(("num_threads=1",), 6), (("num_threads=4",), 1), (("num_threads=64",), 1), (("num_threads=null",), 1)]


@pytest.mark.parametrize(("options", "jobs"), [*JOBS, (EXPLICIT, 2)])
def test_joblib_runs_no_more_jobs_than_cores_for_their_threads_or_an_explicit_number(train, monkeypatch, options, jobs):
    monkeypatch.setattr("joblib.cpu_count", lambda: 6)
    # A single job, which is rejected at once.
    outcome = train("-m", "hydra/launcher=joblib", "lr=abc", "hydra.sweep.dir=sweep", *options)
    assert f"n_jobs={jobs}," in outcome.out


def test_the_preset_for_slurm_composes(train):
    composed = yaml.safe_load(train("--cfg", "hydra", "hydra/launcher=slurm", "hydra.launcher.partition=gpu").out)
    launcher = composed["hydra"]["launcher"]
    assert launcher["_target_"].endswith("SlurmLauncher")
    assert (launcher["timeout_min"], launcher["partition"]) == (240, "gpu")


@hydra_errors_as_config_errors()
def raised(error):
    raise error


@pytest.mark.parametrize("launcher", ["joblib", "submitit_slurm"])
def test_a_launcher_that_is_not_installed_is_named_with_its_extra(launcher):
    error = MissingConfigException("", missing_cfg_file=f"hydra/launcher/{launcher}", options=["basic"])
    assert error_of(raised, error).endswith(f"pip install 'recurrl[{launcher.partition('_')[0]}]'")
