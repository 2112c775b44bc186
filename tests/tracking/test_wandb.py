"""What wandb records of runs, and the mode that it gets."""

import json
import math
import os
import re
import select
import socket
import subprocess
import sys
from itertools import product
from unittest.mock import Mock

import pytest
import wandb
from rejections import error_of
from run_files import metrics, settings
from wandb_server import synced, without_a_login

from recurrl.config.keys import flat
from recurrl.tracking.wandb import choose_mode, make


def test_each_job_of_a_sweep_is_a_run_of_one_group_with_every_setting_and_every_metric(machine, train, tiny, tmp_path):
    ours = ["-m", *tiny, "logger=wandb", "logger.mode=offline", "cell=gru,lstm", "hydra.sweep.dir=sweep"]
    train(*ours).succeeded()
    ids = set()
    for job, cell in enumerate(("gru", "lstm")):
        run_dir = tmp_path / "sweep" / str(job)
        server = synced(run_dir)
        [(run_id, run)] = server.runs.items()
        ids.add(run_id)
        named = (run["project"], run["groupName"], run["displayName"])
        assert named == ("recurrl", f"{tmp_path.name}/sweep", f"sweep/{job}")
        assert run["tags"] == ["cartpole_no_velocity", cell, "ppo"]
        config = {key: of["value"] for key, of in json.loads(run["config"]).items()}
        axis, others = config.pop("_wandb")["m"]
        assert (axis["1"], others["2"], others["5"]) == ("frames", "*", 1)  # all others are over the first
        assert flat(config) == flat(settings(run_dir))  # the server gets no empty mappings
        assert server.completed[run_id] == [0]
        rows = [{name: float(cell) for name, cell in row.items() if cell} for row in metrics(run_dir)]
        history = [{name: float(row[name]) for name in row if name[0] != "_"} for row in server.history[run_id]]
        # As text, which has all digits of a number, and in which NaN equals itself.
        assert [repr(sorted(row.items())) for row in history] == [repr(sorted(row.items())) for row in rows]
        assert {"loss/critic", "train/return_mean", "eval/return_mean", "time/frames_per_s"} <= rows[-1].keys()
        assert any(math.isnan(value) for row in rows for value in row.values())
    assert len(ids) == 2


def test_jobs_that_continue_a_run_are_of_the_sweeps_group(trained, train, tmp_path):
    trained("logger.mode=disabled").succeeded()
    train("-m", "resume=run", "total_frames=96", "hydra.sweep.dir=sweep").succeeded()
    assert settings(tmp_path / "sweep/0")["logger"]["group"] == f"{tmp_path.name}/sweep"


RUN = """
import logging, os, sys
from pathlib import Path
from recurrl.config import WandbConfig
from recurrl.tracking import make_trackers

logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
options = WandbConfig(name="wandb", project="memory", mode="auto", group=None, tags=[], id=None)
make_trackers(options, Path.cwd(), {"seed": 0})["wandb"].close()
import wandb
wandb.termerror("an error of wandb")
print("WANDB_MODE", os.environ.get("WANDB_MODE"), wandb.setup().settings.mode)
"""


def test_without_a_login_there_is_no_network_and_no_prompt_and_it_says_how_to_upload(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        env = without_a_login(tmp_path, WANDB_BASE_URL=url, HTTPS_PROXY=url)
        terminal, child_terminal = os.openpty()
        options = {"stdin": child_terminal, "capture_output": True, "text": True, "timeout": 60, "check": True}
        done = subprocess.run([sys.executable, "-c", RUN], env=env, cwd=tmp_path, **options)
        os.close(terminal)
        os.close(child_terminal)
        assert select.select([server], [], [], 0)[0] == []  # nobody has connected
    assert done.stderr.splitlines() == ["wandb: ERROR an error of wandb"]
    described, settings_after = done.stdout.splitlines()
    assert re.match(r"wandb run \w+ is offline \(no login was found", described)
    assert described.endswith(f"wandb sync {tmp_path / 'wandb'}")
    assert settings_after == "WANDB_MODE None online"


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


def test_online_stays_online_because_wandb_may_not_offer_another_mode(machine, logger_options, tmp_path, monkeypatch):
    init = Mock(side_effect=wandb.Error("no run"))
    monkeypatch.setattr(wandb, "init", init)
    for mode in ("online", "offline"):
        assert "no run" in error_of(make, logger_options("wandb", mode=mode), tmp_path, {})
        assert (init.call_args.kwargs["mode"], init.call_args.kwargs["force"]) == (mode, mode == "online")


def test_online_without_a_login_is_an_error_that_says_what_to_do(machine, logger_options, tmp_path):
    error = error_of(make, logger_options("wandb", mode="online"), tmp_path, {})
    assert re.search(r"wandb login.*logger\.mode=offline", error)
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
    [run] = synced(tmp_path).runs.values()
    assert run["displayName"] == "mine"
