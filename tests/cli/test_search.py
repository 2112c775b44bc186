"""``recurrl-train -m hparams_search=...``: searches with Optuna."""

from __future__ import annotations

import re
import shlex
import signal
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from run_files import metrics, settings, summary, without_times

optuna = pytest.importorskip("optuna")

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution  # noqa: E402
from optuna.trial import TrialState  # noqa: E402

from recurrl.cli.search import Pruning, _space  # noqa: E402

LR = "lr=tag(log,interval(1e-4,1e-2))"


@pytest.fixture
def search(train, tiny):
    """Runs a search in the folder ``sweep``."""
    return lambda *overrides: train("-m", "hydra/sweeper=optuna", *tiny, LR, "hydra.sweep.dir=sweep", *overrides)


def study_in(folder: Path) -> optuna.Study:
    return optuna.load_study(study_name="recurrl", storage=f"sqlite:///{folder}/study.db")


def test_a_search_runs_its_trials_and_says_how_to_repeat_the_best(search, train, tmp_path):
    outcome = search("hydra.sweeper.n_trials=2", "seed=3")
    assert outcome.code == 0, outcome.err
    trials = study_in(tmp_path / "sweep").trials
    runs = [tmp_path / "sweep" / str(number) for number in range(2)]
    assert [trial.value for trial in trials] == [summary(run)["eval_return_mean"] for run in runs]
    assert [trial.user_attrs["seconds"] for trial in trials] == [summary(run)["wall_time_s"] for run in runs]
    assert [settings(run)["lr"] for run in runs] == [float(f"{trial.params['lr']:.4g}") for trial in trials]
    assert len({trial.params["lr"] for trial in trials}) == 2
    assert "2 of 2 jobs completed" in outcome.err
    again = shlex.split(re.search(r"The best one again: recurrl-train (.*)", outcome.out)[1])
    assert train(*again, "hydra.run.dir=again").code == 0
    best = runs[max(range(2), key=lambda number: trials[number].value)]
    assert without_times(metrics(tmp_path / "again")) == without_times(metrics(best))


def test_a_search_in_the_same_folder_continues_to_its_number_of_trials(search, tmp_path, signalled):
    signalled(signal.SIGINT)
    outcome = search("hydra.sweeper.n_trials=1")
    assert outcome.code == 130
    assert [trial.state for trial in study_in(tmp_path / "sweep").trials] == [TrialState.RUNNING]
    outcome = search("hydra.sweeper.n_trials=2")
    assert outcome.code == 0, outcome.err
    interrupted, again, other = study_in(tmp_path / "sweep").trials
    assert (interrupted.state, again.state, other.state) == (TrialState.FAIL, *[TrialState.COMPLETE] * 2)
    assert again.params == interrupted.params != other.params
    assert search("hydra.sweeper.n_trials=2").code == 0
    assert len(study_in(tmp_path / "sweep").trials) == 3
    assert search("hydra.sweeper.n_trials=3", "seed=1").error.startswith(f"{tmp_path / 'sweep'} holds a search with")


def test_a_failed_trial_fails_alone(search, tmp_path):
    # Only the first value divides the four slices of a batch and its rows.
    outcome = search("minibatch_slices=4,3", "hydra.sweeper.n_trials=3")
    trials = study_in(tmp_path / "sweep").trials
    failed = [trial.number for trial in trials if trial.params["minibatch_slices"] == "3"]
    assert 0 < len(failed) < 3, "another seed is needed"
    assert outcome.code == 1
    assert [trial.number for trial in trials if trial.state == TrialState.FAIL] == failed
    assert outcome.error == f"{len(failed)} of 3 trials failed: {failed}."
    assert "The best of 3 trials:" in outcome.out


def test_no_trial_begins_that_would_end_after_the_time_is_up(search, tmp_path):
    assert search("hydra.sweeper.n_trials=null", "hydra.sweeper.seconds=0.5").code == 0
    assert len(study_in(tmp_path / "sweep").trials) == 1


@pytest.mark.slow
def test_trials_run_in_parallel_with_joblib(search, tmp_path):
    outcome = search("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.sweeper.n_trials=3")
    assert outcome.code == 0, outcome.err
    assert [trial.state for trial in study_in(tmp_path / "sweep").trials] == [TrialState.COMPLETE] * 3


def add_five_trials(folder: Path, others: float) -> None:
    """Adds trials that had this return all the time."""
    study = study_in(folder)
    for _ in range(5):
        trial = study.ask({"lr": FloatDistribution(1e-4, 1e-2, log=True)})
        for step in range(1, 21):
            trial.report(others, step)
        trial.set_user_attr("status", "completed")
        trial.set_user_attr("seconds", 1.0)
        study.tell(trial, others)


def test_a_trial_below_the_others_is_stopped(search, tmp_path):
    assert search("total_frames=128", "hydra.sweeper.n_trials=0").code == 0
    add_five_trials(tmp_path / "sweep", others=1e6)
    outcome = search("total_frames=128", "hydra.sweeper.n_trials=6")
    assert outcome.code == 0, outcome.err
    assert study_in(tmp_path / "sweep").trials[5].state == TrialState.PRUNED
    assert summary(tmp_path / "sweep" / "5")["status"] == "stopped"


@pytest.mark.parametrize("pruner", ["median", "halving"])
def test_a_trial_reports_twenty_times_and_is_stopped_if_it_is_worse(search, tmp_path, pruner):
    assert search("hydra.sweeper.n_trials=0").code == 0
    folder = tmp_path / "sweep"
    add_five_trials(folder, others=10.0)
    sweeper = OmegaConf.create({"pruner": pruner, "trial": 5})
    study_in(folder).ask()
    pruning = Pruning(sweeper, folder, total_frames=1000)
    asked = [
        pruning.on_iteration({"frames": frames, "train/return_mean": 11.0}, None) for frames in range(10, 1001, 10)
    ]
    assert not any(asked)
    assert list(study_in(folder).trials[5].intermediate_values) == list(range(1, 21))
    study_in(folder).ask()
    pruning = Pruning(OmegaConf.create({"pruner": pruner, "trial": 6}), folder, total_frames=1000)
    assert not pruning.on_iteration({"frames": 500, "train/return_mean": float("nan")}, None)
    assert any(
        pruning.on_iteration({"frames": frames, "train/return_mean": 9.0}, None) for frames in range(10, 1001, 10)
    )


def test_hydras_syntax_of_sweeps_describes_the_space():
    fixed, space = _space(
        [
            "lr=interval(1,2)",
            "cell=gru",
            LR,
            "epochs=range(1,5)",
            "slice_len=8,16",
            "algorithm.gamma=interval(0.9,1.0)",
            "seed=1",
        ]
    )
    assert fixed == ["cell=gru", "seed=1"]
    assert space == {
        "lr": FloatDistribution(1e-4, 1e-2, log=True),
        "epochs": IntDistribution(1, 4),
        "slice_len": CategoricalDistribution(["8", "16"]),
        "algorithm.gamma": FloatDistribution(0.9, 1.0),
    }


@pytest.mark.parametrize("preset", ["ppo", "network"])
def test_every_preset_composes_and_searches_keys_that_exist(train, preset):
    outcome = train("--cfg", "hydra", f"hparams_search={preset}")
    assert outcome.code == 0, outcome.err
    sweeper = OmegaConf.create(outcome.out).hydra.sweeper
    fixed, space = _space([f"{key}={value}" for key, value in sweeper.params.items()])
    assert fixed == []
    choices = {
        key: distribution.choices[-1] if isinstance(distribution, CategoricalDistribution) else distribution.high
        for key, distribution in space.items()
    }
    assert train("--cfg", "job", *(f"{key}={value}" for key, value in choices.items())).code == 0


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        ((), "hydra/sweeper=optuna has nothing to search. Give hparams_search=ppo"),
        (("lr=1e-3,1e-4", "hydra.sweeper.pruner=best"), "hydra.sweeper.pruner=best does not exist. Choose median"),
        (
            ("lr=1e-3,1e-4", "hydra.sweeper.n_trials=null"),
            "hydra.sweeper.n_trials=null has no end. Give hydra.sweeper.s",
        ),
    ],
)
def test_a_search_that_cannot_be_is_refused(train, tmp_path, overrides, error):
    outcome = train("-m", "hydra/sweeper=optuna", "hydra.sweep.dir=sweep", *overrides)
    assert outcome.error.startswith(error)
    assert not (tmp_path / "sweep" / "study.db").exists()


def test_a_search_space_without_a_sweep_is_refused(refused):
    assert (
        refused("hparams_search=ppo") == "hparams_search= searches over many runs. Add -m before it, or leave it out."
    )
