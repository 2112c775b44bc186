"""``recurrl-train resume=...``: going on with a run, and the runs that cannot be gone on with."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml
from run_files import column, contents, ended, metrics, settings, summary, without_times
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def test_a_resumed_run_says_which_settings_are_not_those_of_the_run_before(train, finished_run):
    changes = ("total_frames=96", "lr=3e-3", "checkpoint={keep_last: 1}", "hydra.run.dir=run")
    outcome = train(f"resume={finished_run}", *changes)
    assert "resuming with total_frames=96, which was 64" in outcome.out
    assert "resuming with checkpoint.keep_last=1, which was 3" in outcome.out
    assert "lr=" not in outcome.out
    assert "checkpoint.every_frames" not in outcome.out  # beside the key that was changed


def test_an_environment_that_is_made_otherwise_begins_new_episodes_and_says_so(train, finished_run, tmp_path):
    ours = ("total_frames=96", "env.max_episode_steps=2", "hydra.run.dir=run")
    outcome = train(f"resume={finished_run}", *ours).succeeded()
    assert "Unfinished episodes are restarted: env.max_episode_steps is 2 and was None." in outcome.out, outcome.out
    before, after = (float(row["train/episodes"]) for row in metrics(tmp_path / "run")[-2:])
    assert after - before == 16  # of 32 frames


@pytest.mark.parametrize("count", [2, 8])
def test_a_run_is_resumed_with_another_number_of_environments(train, finished_run, tmp_path, count):
    replays = ("buffer.replay_ratio=2", "buffer.min_replay_ratio=2")
    train(f"resume={finished_run}", "total_frames=128", *replays, "hydra.run.dir=first").succeeded()
    outcome = train("resume=first", "total_frames=192", f"env.num_envs={count}", "hydra.run.dir=run").succeeded()
    assert f"Unfinished episodes are restarted: env.num_envs is {count} and was 4." in outcome.out
    assert column(tmp_path / "run", "optim/replay_ratio")[-1] == 2.0
    assert column(tmp_path / "run", "frames")[-1] == 192


def test_the_best_evaluation_is_that_of_all_parts_of_a_run(train, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("recurrl.evaluation.evaluate", lambda *_: [5.0])
    assert train(*tiny, "hydra.run.dir=run").code == 0
    monkeypatch.setattr("recurrl.evaluation.evaluate", lambda *_: [2.0])
    assert train("resume=run", "total_frames=96", "hydra.run.dir=run").code == 0
    result = summary(tmp_path / "run")
    assert (result["eval_return_mean"], result["best_eval_return_mean"]) == (2.0, 5.0)


def test_a_checkpoint_alone_is_enough_to_resume_and_to_evaluate(train, evaluate, finished_run, tmp_path):
    shutil.copytree(finished_run / "checkpoints" / "frames_000000000032", tmp_path / "models" / "mine")
    (tmp_path / "config.yaml").write_text("lr: 1\n")  # of the user's project
    train("resume=models/mine", "hydra.run.dir=run").succeeded()
    run = tmp_path / "run"
    assert without_times(metrics(run)) == without_times(metrics(finished_run))[1:]
    assert settings(run) == settings(finished_run)
    assert evaluate(tmp_path / "models" / "mine").code == 0


def test_a_run_that_is_extended_stays_at_the_learning_rate_it_had_come_to(train, finished_run, tmp_path):
    # From 3e-3 to a tenth of it over 64 frames, at the beginning of each iteration.
    last = 3e-3 * (1 - 0.9 / 2)
    assert column(finished_run, "optim/lr") == pytest.approx([3e-3, last])
    outcome = train(f"resume={finished_run}", "total_frames=128", "hydra.run.dir=run")
    assert column(tmp_path / "run", "optim/lr") == pytest.approx([3e-3, last, last, last])
    assert "The schedules end at 64 frames, as before. schedule_frames=128 stretches them over the whole" in outcome.out
    # And again, from there.
    assert train("resume=run", "total_frames=160").code == 0
    assert column(tmp_path / "run", "optim/lr") == pytest.approx([3e-3, *[last] * 4])
    assert settings(tmp_path / "run")["schedule_frames"] == 64


@pytest.mark.parametrize("schedule", ["128", "null"])
def test_an_extended_run_follows_an_explicit_schedule(train, finished_run, tmp_path, schedule):
    train(f"resume={finished_run}", "total_frames=96", "hydra.run.dir=run").succeeded()
    out = train("resume=run", "total_frames=128", f"schedule_frames={schedule}").succeeded().out
    assert "The schedules end at 128 frames.\n" in out
    assert column(tmp_path / "run", "optim/lr")[3] == pytest.approx(3e-3 * (1 - 0.9 * 96 / 128))


def test_a_resumed_run_that_fails_before_an_iteration_ends_says_so_and_where_it_is(train, run, monkeypatch):
    before, same = summary(run), ("frames", "checkpoint", "eval_return_mean", "best_eval_return_mean")
    monkeypatch.setattr("recurrl.trainer.Trainer.agree_on_end", lambda _: summary(run))
    # The earlier summary would be taken for that of a run that is killed now.
    assert f"No such file or directory: {run}/summary.json" in train("resume=run", "total_frames=96").failed().error
    assert ended(run, *same) == ("failed", *(before[key] for key in same))


# Where


LAST, FIRST = "checkpoints/frames_000000000064", "checkpoints/frames_000000000032"
PLACES = {
    "its directory": ("", "run"),
    "its directory, explicit": ("", "run", "hydra.run.dir=run"),
    "a link": ("", "link"),
    "a variable": ("", "${oc.env:RUN}"),
    "itself": ("run", "."),
    "a checkpoint, from its folder": (f"run/{LAST}/..", Path(LAST).name),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_run_is_resumed_in_its_own_directory(recurrl_train, finished_run, tmp_path, monkeypatch, place, run):
    (tmp_path / "link").symlink_to("run")
    monkeypatch.setenv("RUN", "run")
    within, resume, *explicit = PLACES[place]
    recurrl_train(f"resume={resume}", "total_frames=96", *explicit, cwd=tmp_path / within).succeeded()
    assert settings(run) == settings(finished_run) | {"total_frames": 96, "schedule_frames": 64}
    assert yaml.safe_load((run / ".hydra" / "config.yaml").read_text(encoding="utf-8")) == settings(run)
    assert ended(run, "frames", "checkpoint", "cell") == ("completed", 96, "checkpoints/frames_000000000096", "lstm")
    assert [row["frames"] for row in metrics(run)] == ["32", "64", "96"]
    assert without_times(metrics(run))[:2] == without_times(metrics(finished_run))
    assert not list(tmp_path.rglob("outputs"))


def test_a_run_continued_from_an_older_checkpoint_has_one_history(train, run):
    outcome = train(f"resume=run/{FIRST}", "lr=1e-3", "total_frames=96", "checkpoint.every_frames=null").succeeded()
    assert [row["frames"] for row in metrics(run)] == ["32", "64", "96"]
    assert column(run, "optim/lr")[1] == pytest.approx(1e-3 * (1 - 0.9 / 2))
    assert sorted(path.name[-2:] for path in (run / "checkpoints").iterdir()) == ["32", "96"]
    [later] = (run / "replaced").rglob("frames_*")
    assert "The run continues at 32 frames: later rows of metrics.csv are replaced" in outcome.out
    assert f"the later checkpoints are now in {later.parent}." in outcome.out
    assert train(f"resume={later}", "total_frames=96", "hydra.run.dir=other").code == 0  # nothing is lost


def test_a_copy_of_a_run_has_its_whole_history_from_the_start(train, finished_run, tmp_path, monkeypatch):
    before = contents(finished_run)
    first = f"resume={finished_run / FIRST}"
    monkeypatch.setattr("recurrl.trainer.Trainer.agree_on_end", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    assert train(first, "hydra.run.dir=run", "logger=tensorboard").code == 130
    monkeypatch.undo()
    run = tmp_path / "run"
    assert [row["frames"] for row in metrics(run)] == ["32"]
    events = EventAccumulator(str(run / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("optim/lr")] == [32]
    assert train("resume=run").code == 0
    assert without_times(metrics(run)) == without_times(metrics(finished_run))
    assert contents(finished_run) == before


def test_the_jobs_of_a_sweep_are_copies_and_seeds_of_one_group_only_with_equal_settings(train, run, tmp_path):
    train(f"resume=run/{FIRST}", "lr=1e-3", "total_frames=64", "hydra.run.dir=other").succeeded()
    table = train("-m", f"resume={run},other/{FIRST}", "total_frames=96", "hydra.sweep.dir=sweep").succeeded().out
    for job in "01":
        assert [row["frames"] for row in metrics(tmp_path / "sweep" / job)] == ["32", "64", "96"]
    assert len(metrics(run)) == 2
    assert (" lr " in table, " seeds " in table) == (True, False)


SUBDIR = "hydra.sweep.subdir=${now:%H-%M}"
WITHOUT_A_DIRECTORY = [
    (("resume=auto",), "hydra.run.dir=outputs/mine."),
    (("resume=auto", "hydra.run.dir=mine/${now:%H-%M}"), "hydra.run.dir=outputs/mine."),
    (("--config-dir", "mine", "experiment=resumed"), "hydra.run.dir=outputs/mine."),
    (("-m", "resume=auto", "seed=1,2"), "hydra.sweep.dir=outputs/sweeps/mine."),
    (("-m", "resume=auto", "hydra.sweep.dir=s", SUBDIR), "hydra.sweep.subdir='${hydra.job.num}'."),
]


@pytest.mark.parametrize(("command", "hint"), WITHOUT_A_DIRECTORY)
def test_resume_auto_without_a_directory_to_look_into_is_an_error(train, yamls, tmp_path, command, hint):
    yamls("experiment", "resumed", resume="auto")
    outcome = train(*command).failed()
    assert outcome.error.endswith(f"Add {hint}"), outcome.err
    written = {path.name for path in tmp_path.rglob("*") if path.is_file()} - {"resumed.yaml"}
    assert written == ({"multirun.yaml"} if "-m" in command else set())  # Hydra's


# What is rejected


@pytest.mark.parametrize("where", ["", "hydra.run.dir=copy"])
def test_resuming_with_another_network_is_rejected_and_changes_nothing(train, finished_run, tmp_path, where):
    before = contents(finished_run)
    outcome = train(f"resume={finished_run}", "total_frames=128", "cell.hidden_size=16", *where.split()).failed()
    assert outcome.error.startswith(f"The checkpoint {finished_run / LAST} does not fit")
    assert ": cell.hidden_size is 16 and was 8. Use" in outcome.error
    assert f"a new run can start from the weights that fit, with init_from={finished_run}/checkpoints/" in outcome.error
    assert "Traceback" not in outcome.err
    assert contents(finished_run) == before
    assert not list(tmp_path.iterdir())


def test_a_rejected_command_only_adds_a_lock_to_a_folder_of_files(train, finished_run, tmp_path):
    (tmp_path / "other" / "notes").mkdir(parents=True)
    for rejected in ("init_from=nowhere", f"resume={finished_run} cell.hidden_size=16"):
        train("device=cpu", *rejected.split(), "hydra.run.dir=other").failed()
        assert {path.name for path in (tmp_path / "other").iterdir()} == {"notes", "run.lock"}


GRPO = ("algorithm=grpo", "algorithm.group_size=2", "env.max_episode_steps=8")
PENDULUM = ("env=pendulum_no_velocity",)
WITHOUT_EFFECT = {
    "seed=7": "its random number generators are restored",
    "lr=1e-05": "lr_schedule=adaptive resumes from the last",
    "init_from=run": ", where it was null: its weights are restored. ",
    "optimizer=adamw": ", where it was adam: its optimizer is restored. ",
    "policy.initial_std=0.1": ", where it was 0.6: its weights are restored. ",
}


def test_a_change_that_would_change_nothing_is_rejected(train, tiny):
    train(*tiny, *PENDULUM, "hydra.run.dir=run").succeeded()
    advice = f"Leave it out, or start a new run with these weights: init_from=run/{LAST} instead of resume."
    for change, reason in WITHOUT_EFFECT.items():
        error = train("resume=run", "total_frames=96", "lr_schedule=adaptive", change).failed().error
        assert error.startswith(f"{change} has no effect in a resumed run")
        assert reason in error
        assert error.endswith(advice)


MISFITS = [
    (PENDULUM, "policy.noise_correlation=0.5", "policy.noise_correlation must stay 0 in a"),
    ((*PENDULUM, "policy.noise_correlation=0.5"), "policy.noise_correlation=0", "must stay above 0 in a"),
    (GRPO, "algorithm.kl_to_ref_coeff=0.1", "not fit this configuration: algorithm.kl_to_ref_coeff is 0.1 and was"),
    ((*GRPO, "algorithm.kl_to_ref_coeff=0.1"), "algorithm.kl_to_ref_coeff=0", "not fit this configuration: algorithm."),
    (("buffer=on_policy",), "buffer=replay", "buffer.name is replay and was "),
]


@pytest.mark.parametrize(("before", "change", "reason"), MISFITS)
def test_a_change_that_the_checkpoint_does_not_allow_is_rejected(train, tiny, tmp_path, before, change, reason):
    # Also: a run may be called like a checkpoint.
    assert train(*tiny, *before, "hydra.run.dir=frames_1").code == 0
    unchanged = contents(tmp_path / "frames_1")
    assert reason in train("resume=frames_1", "total_frames=96", change).failed().error
    assert contents(tmp_path / "frames_1") == unchanged


def test_a_command_with_an_experiment_can_be_repeated_by_a_scheduler(train, tiny, yamls):
    yamls("experiment", "long", schedule_sqrt_after=100)
    again = ("--config-dir", "mine", "experiment=long", *tiny, "resume=auto", "hydra.run.dir=run")
    assert [train(*again, f"total_frames={frames}").code for frames in (64, 64, 96)] == [0, 0, 0]
    yamls("experiment", "long", schedule_sqrt_after=50)
    assert train(*again, "total_frames=128").error.startswith("experiment= cannot be combined with resume=, which")


def test_resuming_with_an_experiment_is_rejected(train, finished_run, yamls):
    yamls("experiment", "long", epochs=9)
    outcome = train("--config-dir", "mine", f"resume={finished_run}", "experiment=long", "total_frames=128")
    error = "experiment= cannot be combined with resume=, which keeps its run's settings. Leave it out, or start a new "
    assert outcome.error == f"{error}run with its weights: init_from={finished_run}/{LAST} instead of resume."


def test_going_on_with_nothing_left_to_do_is_rejected(rejected, finished_run):
    error = f"total_frames must be at least 96 (got 64), because resume={finished_run} is already at 64 frames. "
    assert rejected(f"resume={finished_run}") == f"{error}Set a larger total_frames."


@pytest.mark.parametrize("key", ["resume", "init_from"])
def test_a_checkpoint_that_does_not_exist_is_rejected(train, finished_run, tmp_path, key):
    gone = finished_run / "checkpoints" / "frames_000000000048"
    outcome = train(f"{key}={gone}", "total_frames=2048", "hydra.run.dir=run").failed()
    assert outcome.error.startswith(f"{key}={gone}: {gone} does not exist. Its folder has frames_000000000032, frames_")
    assert not list(tmp_path.iterdir())


def test_later_checkpoints_are_put_aside_from_another_disk(train, run, tmp_path):
    with TemporaryDirectory(dir="/dev/shm") as disk:
        shutil.move(run / "checkpoints", disk)
        (run / "checkpoints").symlink_to(Path(disk) / "checkpoints")
        train(f"resume=run/{FIRST}", "total_frames=96").succeeded()
        assert [path.name for path in (run / "replaced").rglob("frames_*")] == [Path(LAST).name]
