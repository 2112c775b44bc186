"""What wandb records of runs, and the mode that it gets."""

import math
import os
import socket
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import wandb
from rejections import error_of
from run_files import metrics, settings
from wandb_files import config_of, history, only, records
from wandb_server import synced

from recurrl.tracking.wandb import choose_mode, make

# Like a Hydra sweep: several jobs in sequence in one process. The second one fails.
TWO_JOBS = """
import logging, math, os, sys
from pathlib import Path
from recurrl.config import WandbConfig
from recurrl.tracking import make_trackers

logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
options = WandbConfig(name="wandb", project="memory", mode="auto", group=None, tags=[], id=None)
for job in (0, 1):
    run_dir = Path(sys.argv[1]) / "12-00-00" / str(job)
    run_dir.mkdir(parents=True)
    trackers = make_trackers(options, run_dir, {"seed": job, "cell": {"name": "gru", "size": None}, "sizes": [64, 32]})
    wandb_run = trackers["wandb"]
    print("id", wandb_run.id)
    wandb_run.log(1024, {"train/return_mean": math.nan, "loss/critic": 0.5 + job})
    wandb_run.log(2048, {"train/return_mean": 10.0 + job, "loss/critic": 0.25})
    wandb_run.close(exit_code=job)
import wandb
wandb.termerror("an error of wandb")
print("WANDB_MODE", os.environ.get("WANDB_MODE"), wandb.setup().settings.mode)
"""


class Sweep:
    """Runs the two jobs beside a server that only detects connections."""

    def __init__(self, directory):
        self.directory = directory
        home = directory / "home"
        home.mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "NETRC"))}
        with socket.create_server(("127.0.0.1", 0)) as server:
            url = f"http://127.0.0.1:{server.getsockname()[1]}"
            terminal, child_terminal = os.openpty()
            env = {**kept, "HOME": str(home), "WANDB_BASE_URL": url, "HTTPS_PROXY": url}
            env["PYTHONPATH"] = str(Path(__file__).parents[2])
            options = {"stdin": child_terminal, "capture_output": True, "text": True, "timeout": 60, "check": True}
            command = [sys.executable, "-c", TWO_JOBS, str(directory)]
            self.done = subprocess.run(command, env=env, cwd=home, **options)
            os.close(terminal)
            os.close(child_terminal)
            server.setblocking(False)
            try:
                self.was_contacted = bool(server.accept())
            except BlockingIOError:
                self.was_contacted = False
        self.records = [records(directory / "12-00-00" / job) for job in ("0", "1")]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    return Sweep(tmp_path_factory.mktemp("sweep"))


def test_each_job_in_a_process_is_a_separate_run(sweep):
    runs = [run for each in sweep.records for run in only(each, "run")]
    ids = [line.split()[1] for line in sweep.done.stdout.splitlines() if line.startswith("id ")]
    assert [run.run_id for run in runs] == ids
    assert len(set(ids)) == 2
    assert [(run.project, run.display_name) for run in runs] == [("memory", "12-00-00/0"), ("memory", "12-00-00/1")]
    assert [ended.exit_code for each in sweep.records for ended in only(each, "exit")] == [0, 1]
    axes = [metric.step_metric for each in sweep.records for metric in only(each, "metric") if metric.glob_name == "*"]
    assert axes == ["frames", "frames"]
    assert math.isnan(history(sweep.records[0])[0]["train/return_mean"])


def test_offline_there_is_no_network_and_no_prompt_and_it_says_how_to_upload(sweep):
    assert not sweep.was_contacted
    [line] = sweep.done.stderr.splitlines()
    assert "an error of wandb" in line
    described = [line for line in sweep.done.stdout.splitlines() if line.startswith("wandb run")]
    assert len(described) == 2
    for job, line in enumerate(described):
        assert "is offline (no login was found" in line
        assert line.endswith(f"wandb sync {sweep.directory / '12-00-00' / str(job) / 'wandb'}")
    assert sweep.done.stdout.splitlines()[-1] == "WANDB_MODE None online"


def test_an_explicit_mode_overrides_the_environment_which_auto_respects(machine, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    for mode, in_the_environment in product(["online", "offline", "disabled"], repeat=2):
        monkeypatch.setenv("WANDB_MODE", in_the_environment)
        assert choose_mode(mode) == (mode, f"logger.mode={mode}")
        assert choose_mode("auto")[0] == in_the_environment


def test_auto_respects_wandb_offline(machine, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    subprocess.run([sys.executable, "-m", "wandb", "offline"], cwd=machine, check=True, capture_output=True)
    assert choose_mode("auto")[0] == "offline"


@pytest.mark.parametrize("login", ["none", "key", "netrc"])
def test_auto_is_online_with_a_login_and_offline_without(server, machine, monkeypatch, login):
    if login != "key":
        monkeypatch.delenv("WANDB_API_KEY")
    if login == "netrc":
        host = server.url.removeprefix("http://")
        (machine / ".netrc").write_text(f"machine {host}\n  login user\n  password {'0' * 40}\n")
        (machine / ".netrc").chmod(0o600)
    mode, reason = choose_mode("auto")
    assert mode == ("offline" if login == "none" else "online"), reason


@pytest.mark.parametrize(("mode", "required"), [("online", True), ("offline", False)])
def test_online_stays_online_because_wandb_may_not_offer_another_mode(
    machine, logger_options, tmp_path, monkeypatch, mode, required
):
    def init(**options):
        assert (options["mode"], options["force"]) == (mode, required)
        raise wandb.Error("no run")

    monkeypatch.setattr(wandb, "init", init)
    assert "no run" in error_of(make, logger_options("wandb", mode=mode), tmp_path, {}, kind=ValueError)


def test_online_without_a_login_is_an_error_that_says_what_to_do(machine, logger_options, tmp_path):
    with pytest.raises(ValueError, match=r"wandb login.*logger\.mode=offline"):
        make(logger_options("wandb", mode="online"), tmp_path, {})
    assert wandb.setup().settings.mode == "online"


def test_wandb_disabled_on_the_machine_runs_without_a_file(machine, logger_options, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    tracker = make(logger_options("wandb"), tmp_path, {"seed": 0})
    tracker.log(8, {"loss/critic": 1.0})
    tracker.close()
    assert list(tmp_path.rglob("*.wandb")) == []


def test_a_run_gets_the_name_in_the_environment(machine, logger_options, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_NAME", "mine")
    tracker = make(logger_options("wandb", mode="offline"), tmp_path, {})
    tracker.log(8, {"loss/critic": 1.0})
    tracker.close()
    wandb.teardown()  # waits until everything is written
    [run] = only(records(tmp_path), "run")
    assert run.display_name == "mine"


def test_a_sweep_is_a_group_of_finished_runs_with_every_setting_and_every_metric(machine, train, tiny, tmp_path):
    ours = ["-m", *tiny, "logger=wandb", "logger.mode=offline", "cell=gru,lstm", "hydra.sweep.dir=sweep"]
    train(*ours).succeeded()
    for job, cell in enumerate(("gru", "lstm")):
        run_dir = tmp_path / "sweep" / str(job)
        recorded = records(run_dir)
        [run] = only(recorded, "run")
        assert (run.run_group, list(run.tags)) == (f"{tmp_path.name}/sweep", ["cartpole_no_velocity", cell, "ppo"])
        assert {key: value for key, value in config_of(run).items() if key != "_wandb"} == settings(run_dir)
        assert [ended.exit_code for ended in only(recorded, "exit")] == [0]
        rows = [{name: float(cell) for name, cell in row.items() if cell} for row in metrics(run_dir)]
        [history_of] = synced(run_dir).history.values()
        uploaded = [{name: float(row[name]) for name in row if not name.startswith("_")} for row in history_of]
        # As text, which has all digits of a number, and in which NaN equals itself.
        assert [repr(sorted(row.items())) for row in uploaded] == [repr(sorted(row.items())) for row in rows]
        assert {"loss/critic", "train/return_mean", "eval/return_mean", "time/frames_per_s"} <= rows[-1].keys()
