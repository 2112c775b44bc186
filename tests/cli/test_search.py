"""``recurrl-train -m hparams_search=...``: searches with Optuna."""

import re
import shlex
import signal

import pytest
from omegaconf import OmegaConf
from run_files import metrics, settings, summary, without_times

optuna = pytest.importorskip("optuna")

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution  # noqa: E402
from optuna.trial import TrialState  # noqa: E402

from recurrl.cli.search import _space  # noqa: E402

LR = "lr=tag(log,interval(1e-4,1e-2))"


@pytest.fixture
def search(train, tiny):
    """Runs a search in the folder ``sweep``."""
    return lambda *overrides: train("-m", "hydra/sweeper=optuna", *tiny, LR, "hydra.sweep.dir=sweep", *overrides)


def study_in(folder):
    return optuna.load_study(study_name="recurrl", storage=f"sqlite:///{folder}/study.db")


def test_a_search_runs_its_trials_and_says_how_to_repeat_the_best(search, train, tmp_path):
    gamma = "algorithm.gamma=interval(0.99999,0.9999999)"
    options = ("hydra.sweeper.n_trials=2", "experiment=rare_rewards", "seed=3", gamma)
    outcome = search(*options, "hydra.sweep.dir='what? #1%20'").succeeded()
    sweep = (tmp_path / "what? #1%20").rename(tmp_path / "sweep")
    trials, runs = study_in(sweep).trials, [sweep / str(number) for number in range(2)]
    assert [trial.value for trial in trials] == [summary(run)["eval_return_mean"] for run in runs]
    ran = [{"lr": settings(run)["lr"], "algorithm.gamma": settings(run)["algorithm"]["gamma"]} for run in runs]
    assert ran == [trial.params for trial in trials]
    assert max(values["algorithm.gamma"] for values in ran) < 1
    assert len({trial.params["lr"] for trial in trials}) == 2
    assert "2 of 2 jobs completed" in outcome.err
    again = shlex.split(re.search(r"To repeat it: recurrl-train (.*)", outcome.out)[1])
    assert train(*again, "hydra.run.dir=again").code == 0
    best = runs[max(range(2), key=lambda number: trials[number].value)]
    assert without_times(metrics(tmp_path / "again")) == without_times(metrics(best))


def test_a_search_space_of_the_users_may_hold_a_custom_choice(train, tiny, yamls):
    sweeper = {"n_trials": 1, "params": {"collector": "choice(recurrl.collector.single:make)"}}
    yamls("experiment", "mine", defaults=[{"override /hydra/sweeper": "optuna"}], hydra={"sweeper": sweeper})
    several = ("cell=glob(gr*)", "algorithm.target_kl=null,0.1")
    outcome = train("-m", "--config-dir", "mine", "experiment=mine", *tiny, *several).succeeded()
    again = shlex.split(re.search(r"To repeat it: recurrl-train (.*)", outcome.out)[1])
    train(*again, "hydra.run.dir=again").succeeded()


def test_a_search_in_the_same_folder_continues_to_its_number_of_trials(search, tmp_path, signalled):
    signalled(signal.SIGINT)
    outcome = search("hydra.sweeper.n_trials=1")
    assert outcome.code == 130
    assert [trial.state for trial in study_in(tmp_path / "sweep").trials] == [TrialState.RUNNING]
    outcome = search("hydra.sweeper.n_trials=2").succeeded()
    interrupted, again, other = study_in(tmp_path / "sweep").trials
    assert (interrupted.state, again.state, other.state) == (TrialState.FAIL, *[TrialState.COMPLETE] * 2)
    assert again.params == interrupted.params != other.params
    assert search("hydra.sweeper.n_trials=2").code == 0
    assert len(study_in(tmp_path / "sweep").trials) == 3
    for changed in ("seed=1", "lr=1e-3,1e-4"):
        error = search("hydra.sweeper.n_trials=3", changed).error
        assert error.startswith(f"{tmp_path / 'sweep'} holds a search with other values: ")


def test_a_failed_trial_fails_alone(search, tmp_path):
    # Only the first value divides the four slices of a batch and its rows.
    outcome = search("minibatch_slices=4,3", "hydra.sweeper.n_trials=3")
    trials = study_in(tmp_path / "sweep").trials
    failed = [trial.number for trial in trials if trial.params["minibatch_slices"] == "3"]
    assert 0 < len(failed) < 3, "another seed is needed"
    assert outcome.code == 1
    assert [trial.number for trial in trials if trial.state == TrialState.FAIL] == failed
    assert outcome.error == f"{len(failed)} of 3 trials failed or have no return: {failed}. See their logs."
    assert "The best of 3 trials is " in outcome.out


@pytest.mark.slow
def test_trials_run_in_parallel_with_joblib(search, tmp_path):
    search("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.sweeper.n_trials=3").succeeded()
    assert [trial.state for trial in study_in(tmp_path / "sweep").trials] == [TrialState.COMPLETE] * 3


def test_hydras_syntax_of_sweeps_describes_the_space():
    gamma, falling = "algorithm.gamma=interval(0.9,1.0)", "minibatch_slices=range(3,1,-1)"
    overrides = ["lr=interval(1,2)", "cell=gru", LR, "epochs=range(1,5)", "slice_len=8,16", falling, gamma, "seed=1"]
    fixed, space = _space(overrides, None)
    assert fixed == ["cell=gru", "seed=1"]
    assert space == {
        "lr": FloatDistribution(1e-4, 1e-2, log=True),
        "epochs": IntDistribution(1, 4),
        "minibatch_slices": CategoricalDistribution(["3", "2"]),
        "slice_len": CategoricalDistribution(["8", "16"]),
        "algorithm.gamma": FloatDistribution(0.9, 1.0),
    }


@pytest.mark.parametrize("preset", ["ppo", "network"])
def test_every_preset_composes_and_searches_keys_that_exist(train, preset):
    outcome = train("--cfg", "hydra", f"hparams_search={preset}").succeeded()
    sweeper = OmegaConf.create(outcome.out).hydra.sweeper
    fixed, space = _space([f"{key}={value}" for key, value in sweeper.params.items()], None)
    assert fixed == []
    choices = {key: of.choices[-1] if isinstance(of, CategoricalDistribution) else of.high for key, of in space.items()}
    assert train("--cfg", "job", *(f"{key}={value}" for key, value in choices.items())).code == 0


IMPOSSIBLE = [
    ((), "hydra/sweeper=optuna has nothing to search. Use hparams_search=ppo"),
    (("lr=1e-3,1e-4", "hydra.sweeper.n_trials=null"), "hydra.sweeper.n_trials must be a positive integer (got None)."),
    (("lr=1e-3,1e-4", "hydra.sweeper.n_jobs=-1"), "hydra.sweeper.n_jobs or hydra.launcher.n_jobs must be a positive"),
    (("lr=interval(1e-2,1e-4)",), "The search space is invalid: `low <= high` must hold"),
]


@pytest.mark.parametrize(("overrides", "error"), IMPOSSIBLE)
def test_a_search_that_cannot_be_is_rejected(train, tmp_path, overrides, error):
    assert train("-m", "hydra/sweeper=optuna", "hydra.sweep.dir=sweep", *overrides).error.startswith(error)
    assert not (tmp_path / "sweep" / "study.db").exists()


def test_a_file_that_is_not_a_study_is_an_error(train, tmp_path):
    study = tmp_path / "sweep/study.db"
    study.parent.mkdir()
    study.write_text("not a database")
    outcome = train("-m", "hydra/sweeper=optuna", "hydra.sweep.dir=sweep", "lr=1e-3,1e-4")
    assert outcome.error == (
        f"{study} cannot be used: (sqlite3.DatabaseError) file is not a database. Move it away, or use another folder "
        "with hydra.sweep.dir=..."
    )
    assert study.read_text() == "not a database"


@pytest.mark.parametrize("overrides", [("hparams_search=ppo",), ("-m", "hparams_search=ppo,network")])
def test_what_is_not_one_search_in_a_sweep_is_rejected(train, overrides):
    error = f"{overrides[-1]} must be one search over many runs. Add -m to recurrl-train, or leave it out."
    assert train(*overrides).error == error
