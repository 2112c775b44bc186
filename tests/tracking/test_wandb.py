import csv
import logging
import math
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import wandb
import yaml
from wandb_files import config_of, history, only, records
from wandb_server import WandbServer, sync

from recurrl.tracking.wandb import make
from recurrl.tracking.wandb_mode import choose_mode, has_login

# Like a Hydra sweep: several jobs in sequence in one process. The second one fails.
TWO_JOBS = """
import logging, math, os, sys
from pathlib import Path
from recurrl.config import WandbConfig
from recurrl.tracking import make_trackers

logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
nothing = {"group": None, "job_type": None, "tags": [], "artifacts": False, "id": None}
options = WandbConfig(name="wandb", project="memory", mode="auto", **nothing)
for job in (0, 1):
    run_dir = Path(sys.argv[1]) / "12-00-00" / str(job)
    run_dir.mkdir(parents=True)
    trackers = make_trackers(options, run_dir, {"seed": job, "cell": {"name": "gru", "size": None}, "sizes": [64, 32]})
    print("id", trackers.trackers[1].id)
    trackers.log(1024, {"train/return_mean": math.nan, "loss/critic": 0.5 + job})
    trackers.log(2048, {"train/return_mean": 10.0 + job, "loss/critic": 0.25})
    trackers.close(exit_code=job)
import wandb
wandb.termlog("a remark of wandb")
wandb.termerror("an error of wandb")
print("WANDB_MODE", os.environ.get("WANDB_MODE"), wandb.setup().settings.mode)
"""


def clean_environment(home):
    """This process's environment without wandb's logins and settings."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "NETRC"))}
    return {**environment, "HOME": str(home), "PYTHONPATH": str(Path(__file__).parents[2])}


class Sweep:
    """Runs the two jobs beside a server that only detects connections."""

    def __init__(self, directory):
        self.directory = directory
        home = directory / "home"
        home.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as server:
            url = f"http://127.0.0.1:{server.getsockname()[1]}"
            terminal, child_terminal = os.openpty()
            self.done = subprocess.run(
                [sys.executable, "-c", TWO_JOBS, str(directory)],
                env={**clean_environment(home), "WANDB_BASE_URL": url, "HTTPS_PROXY": url},
                cwd=home,
                stdin=child_terminal,
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            )
            os.close(terminal)
            os.close(child_terminal)
            self.was_contacted = self._has_caller(server)

    @staticmethod
    def _has_caller(server):
        server.setblocking(False)
        try:
            server.accept()
        except BlockingIOError:
            return False
        return True

    def run_dir(self, job):
        return self.directory / "12-00-00" / str(job)

    def records(self, job):
        return records(self.run_dir(job))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    return Sweep(tmp_path_factory.mktemp("sweep"))


def test_each_job_in_a_process_is_a_separate_run(sweep):
    runs = [only(sweep.records(job), "run") for job in (0, 1)]
    ids = [run.run_id for job in runs for run in job]
    assert len(ids) == len(set(ids)) == 2
    assert [line.split()[1] for line in sweep.done.stdout.splitlines() if line.startswith("id ")] == ids
    assert [run.project for job in runs for run in job] == ["memory", "memory"]
    assert [run.display_name for job in runs for run in job] == ["12-00-00/0", "12-00-00/1"]


def test_the_whole_configuration_is_in_the_run(sweep):
    for job in (0, 1):
        [run] = only(sweep.records(job), "run")
        config = config_of(run)
        config.pop("_wandb", None)
        assert config == {"seed": job, "cell": {"name": "gru", "size": None}, "sizes": [64, 32]}


@pytest.mark.parametrize("job", [0, 1])
def test_metrics_are_logged_with_their_frames(sweep, job):
    first, second = history(sweep.records(job))
    assert math.isnan(first.pop("train/return_mean"))
    assert {name: first[name] for name in ("frames", "loss/critic")} == {"frames": 1024, "loss/critic": 0.5 + job}
    expected = {"frames": 2048, "train/return_mean": 10.0 + job, "loss/critic": 0.25}
    assert {name: second[name] for name in expected} == expected


def test_all_metrics_are_drawn_over_frames(sweep):
    metrics = only(sweep.records(0), "metric")
    assert "frames" in [metric.name for metric in metrics]
    assert [metric.step_metric for metric in metrics if metric.glob_name == "*"] == ["frames"]


def test_a_run_is_finished_with_the_exit_code_it_was_closed_with(sweep):
    for job in (0, 1):
        [ended] = only(sweep.records(job), "exit")
        assert ended.exit_code == job


def test_offline_neither_the_network_nor_a_prompt_is_used(sweep):
    assert not sweep.was_contacted
    assert "API key" not in sweep.done.stdout + sweep.done.stderr


def test_one_line_says_what_auto_chose_why_and_how_to_upload(sweep):
    said = [line for line in sweep.done.stdout.splitlines() if line.startswith("wandb run")]
    assert len(said) == 2
    for job, line in enumerate(said):
        assert "is offline (no login was found" in line
        [path] = sweep.run_dir(job).glob("wandb/offline-run-*/*.wandb")
        assert line.endswith(f"wandb sync {path.parents[1]}")


def test_wandb_prints_only_errors(sweep):
    [line] = sweep.done.stderr.splitlines()
    assert "an error of wandb" in line


def test_the_mode_of_the_process_is_as_it_was_after_the_runs(sweep):
    assert sweep.done.stdout.splitlines()[-1] == "WANDB_MODE None online"


def settings(**values):
    return wandb.Settings(**values)


def netrc_with(home, host, name=".netrc"):
    path = home / name
    entry = "default" if host == "default" else f"machine {host}"
    path.write_text(f"{entry}\n  login user\n  password {'0' * 40}\n")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("asked", ["online", "offline"])
def test_an_explicit_mode_overrides_the_environment(machine, monkeypatch, asked):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert choose_mode(asked, settings(mode="disabled")).name == asked


@pytest.mark.parametrize("asked", ["auto", None])
@pytest.mark.parametrize("mode", ["offline", "disabled", "online"])
def test_auto_respects_the_mode_in_the_environment(machine, monkeypatch, asked, mode):
    if mode != "online":
        netrc_with(machine, "api.wandb.ai")
    monkeypatch.setenv("WANDB_MODE", mode)
    assert choose_mode(asked, settings()) == (mode, f"WANDB_MODE={mode}")


def test_auto_respects_wandb_offline(machine):
    netrc_with(machine, "api.wandb.ai")
    assert choose_mode("auto", settings(mode="offline")).name == "offline"


def test_auto_is_online_with_a_login_and_offline_without(machine):
    assert choose_mode("auto", settings()).name == "offline"
    netrc_with(machine, "api.wandb.ai")
    assert choose_mode("auto", settings()).name == "online"


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"])
def test_a_login_is_found_in_the_environment(machine, monkeypatch, name):
    assert not has_login(settings())
    monkeypatch.setenv(name, "0" * 40)
    assert has_login(settings())


def test_a_login_is_found_in_the_settings_of_wandb(machine):
    assert has_login(settings(api_key="0" * 40))


@pytest.mark.parametrize("name", [".netrc", "_netrc"])
def test_a_login_is_found_in_the_home_directory(machine, name):
    netrc_with(machine, "api.wandb.ai", name)
    assert has_login(settings())


def test_a_login_is_found_in_the_file_that_netrc_names_and_then_nowhere_else(machine, monkeypatch):
    monkeypatch.setenv("NETRC", str(netrc_with(machine, "api.wandb.ai", "elsewhere")))
    assert has_login(settings())
    netrc_with(machine, "api.wandb.ai")
    netrc_with(machine, "example.org", "elsewhere")
    assert not has_login(settings())


def test_a_login_to_another_server_does_not_count(machine):
    netrc_with(machine, "api.wandb.ai")
    assert not has_login(settings(base_url="http://wandb.example.org:8080"))
    netrc_with(machine, "wandb.example.org:8080")
    assert has_login(settings(base_url="http://wandb.example.org:8080"))


def test_a_login_for_the_servers_present_name_is_found(machine):
    host = settings().base_url.removeprefix("https://")
    netrc_with(machine, host)
    assert has_login(settings())


@pytest.mark.parametrize("host", ["api.wandb.ai", "default", "example.org"])
def test_our_search_of_netrc_finds_what_wandb_itself_would_use(machine, host):
    own = pytest.importorskip("wandb.sdk.lib.wbauth", reason="wandb keeps its own search elsewhere in other versions")
    netrc_with(machine, host)
    assert has_login(settings()) is bool(own.read_netrc_auth(host=settings().base_url)) is (host != "example.org")


def test_an_unreadable_netrc_is_reported_and_counts_as_no_login(machine, caplog):
    (machine / ".netrc").write_text("machine\n")
    with caplog.at_level(logging.WARNING):
        assert not has_login(settings())
    assert str(machine / ".netrc") in caplog.text


def test_online_without_a_login_is_refused_with_what_to_do(machine, logger_options, tmp_path):
    with pytest.raises(ValueError, match=r"logger\.mode=offline") as caught:
        make(logger_options("wandb", mode="online", project="memory"), tmp_path, {})
    assert "wandb login" in str(caught.value)
    assert wandb.setup().settings.mode == "online"


@pytest.mark.parametrize(("mode", "required"), [("online", True), ("offline", False)])
def test_online_stays_online_because_wandb_may_not_offer_another_mode_at_its_prompt(
    machine, logger_options, tmp_path, monkeypatch, mode, required
):
    asked = []

    def init(**options):
        asked.append((options["mode"], options["force"]))
        raise wandb.Error("no run")

    monkeypatch.setattr(wandb, "init", init)
    with pytest.raises(ValueError, match="no run"):
        make(logger_options("wandb", mode=mode), tmp_path, {})
    assert asked == [(mode, required)]


def test_wandb_disabled_on_the_machine_runs_without_a_file(machine, logger_options, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    tracker = make(logger_options("wandb", mode="auto", project="memory"), run_dir, {"seed": 0})
    tracker.log(8, {"loss/critic": 1.0})
    tracker.close()
    assert list(run_dir.rglob("*.wandb")) == []


def test_wandb_reads_every_metric_of_every_row_back_and_two_jobs_are_two_runs_of_a_group(
    machine, recurrl_train, tiny, tmp_path
):
    ours = ["-m", *tiny, "logger=wandb", "logger.mode=offline", "cell=gru,lstm", "hydra.sweep.dir=sweep"]
    outcome = recurrl_train(*ours, cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    server = WandbServer()
    ids = []
    for job in ("0", "1"):
        run_dir = tmp_path / "sweep" / job
        sync(run_dir, server)
        [run] = only(records(run_dir), "run")
        assert run.run_group == f"{tmp_path.name}/sweep"
        ids.append(run.run_id)
        with (run_dir / "metrics.csv").open(encoding="utf-8", newline="") as file:
            rows = [{name: float(cell) for name, cell in row.items() if cell} for row in csv.DictReader(file)]
        read = [
            {name: float(value) for name, value in row.items() if not name.startswith("_")}
            for row in server.history[run.run_id]
        ]
        # As text, which has all digits of a number, and in which NaN equals itself.
        assert [repr(sorted(row.items())) for row in read] == [repr(sorted(row.items())) for row in rows]
        assert {"loss/critic", "train/return_mean", "eval/return_mean", "time/frames_per_s"} <= rows[-1].keys()
    server.stop()
    assert set(ids) == set(server.history)
    assert len(server.history) == 2


def test_a_sweep_by_the_command_line_is_one_finished_offline_run_a_job(console, tiny, tmp_path):
    ours = ["-m", *tiny, "logger=wandb", "logger.mode=offline", "cell=gru,lstm", "hydra.sweep.dir=sweep"]
    outcome = console("recurrl-train", *ours, cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    for job, cell in enumerate(("gru", "lstm")):
        found = records(tmp_path / "sweep" / str(job))
        [run] = only(found, "run")
        assert (run.run_group, run.job_type) == (f"{tmp_path.name}/sweep", "train")
        assert list(run.tags) == ["cartpole_no_velocity", cell, "ppo"]
        settings = config_of(run)
        settings.pop("_wandb", None)
        assert settings == yaml.safe_load((tmp_path / "sweep" / str(job) / "config.yaml").read_text())
        assert settings["cell"]["name"] == cell
        assert settings["total_frames"] == 64
        assert [step["frames"] for step in history(found)] == [32, 64]
        assert "loss/critic" in history(found)[0]
        assert "eval/return_mean" in history(found)[-1]
        assert [exit_.exit_code for exit_ in only(found, "exit")] == [0]
