"""Folders for model hubs: written whole or not at all, loaded as runs are, without running anything of them."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from checkpoint_files import Code, resealed
from rejections import error_of

import recurrl
from recurrl.checkpoint import find
from recurrl.checkpoint.files import complete, manifest
from recurrl.cli.hub_run import model_card, write_hub_folder
from recurrl.errors import ConfigError
from recurrl.returns import summarized
from recurrl.runs.open_run import open_run


@pytest.fixture(scope="session")
def written(recurrl_export, finished_run, tmp_path_factory):
    """The folder of a run, by the command; read-only."""
    place = tmp_path_factory.mktemp("hub")
    recurrl_export(finished_run, "--hub-folder", "made", cwd=place).succeeded()
    return place / "made"


@pytest.fixture
def folder(written, tmp_path):
    """A copy to be damaged."""
    return shutil.copytree(written, tmp_path / "folder")


def header_of(folder):
    """The metadata and the text of a model card."""
    empty, header, body = (folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    assert empty == ""
    return yaml.safe_load(header), body


def mean_in(header, env, cell):
    """The mean return in a header, which has the entries of
    https://github.com/huggingface/hub-docs/blob/main/modelcard.md and no others.
    """
    kind, value = "reinforcement-learning", header["model-index"][0]["results"][0]["metrics"][0]["value"]
    metric = {"type": "mean_reward", "name": "mean_reward", "value": value, "verified": False}
    result = {"task": dict.fromkeys(("type", "name"), kind), "dataset": dict.fromkeys(("type", "name"), env)}
    tags = [env, kind, "deep-reinforcement-learning", "recurrent", cell, "ppo"]
    index = [{"name": f"ppo-{cell}", "results": [{**result, "metrics": [metric]}]}]
    assert header == {"library_name": "recurrl", "pipeline_tag": kind, "tags": tags, "model-index": index}
    mean, spread = map(float, value.split(" +/- "))
    assert -math.inf < mean < math.inf > spread >= 0
    return mean


def test_the_card_says_what_an_evaluation_of_the_folder_finds(written, finished_run):
    header, body = header_of(written)
    seed = int(body.partition("--seed ")[2].split()[0])
    returns = open_run(written, device="cpu").evaluate(seed=seed)["kept"]
    assert mean_in(header, "CartPole-v1", "lstm") == pytest.approx(sum(returns) / len(returns), rel=1e-3)
    for text in ("CartPole-v1", "without entries 1, 3", "95% interval", "64 frames", "seed 0"):
        assert text in body
    assert json.loads((written / "policy.json").read_text())["run"]["directory"] == "run"  # no path of this machine


def test_the_folder_holds_everything_and_acts_as_the_run_does(written, finished_run):
    names = {path.name for path in written.iterdir()}
    of_policy, of_video = {"policy.onnx", "policy.pt2", "policy.json"}, {"replay.mp4", "replay.gif"}
    assert names == {"README.md", "config.yaml", "checkpoints"} | of_policy | of_video
    run, weights = recurrl.load(finished_run), recurrl.load(written).policy.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in run.policy.state_dict().items())
    assert open_run(written).evaluate(2, 7) == open_run(finished_run).evaluate(2, 7)
    # Neither the optimizer nor unfinished episodes.
    assert [path.name for path in written.rglob("state*.pt")] == ["state-policy.pt"]


def test_a_folder_starts_a_new_run_and_is_not_resumed(folder, train):
    rejected = train(f"resume={folder}", "total_frames=96").failed()
    assert "holds a policy alone" in rejected.error
    assert f"init_from={folder}" in rejected.error


def replace_state(folder, marker):
    """Puts a pickle with code in place of the policy, with checksums that fit."""
    (path,) = folder.rglob("state-policy.pt")
    torch.save({"code": Code(marker)}, path)
    resealed(path.parent)


def change_config(folder, marker):
    """Names a package in the folder that makes the marker when it is imported."""
    (folder / "hostile.py").write_text(f"import os\nos.mkdir({str(marker)!r})\n")
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    settings["env"]["packages"] = ["hostile"]
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))


def files_with_code(folder, marker):
    """Everything that is not read to act is left alone."""
    code = f"import os\nos.mkdir({str(marker)!r})\n"
    for name in ("__init__.py", "setup.py", "conftest.py", "torch.py", "env.py", "policy.pt2", "policy.onnx"):
        (folder / name).write_text(code)


ATTACKS = [
    (replace_state, "does not fit this configuration"),
    (change_config, "names code that would be imported and executed: hostile."),
    (files_with_code, None),
]


@pytest.mark.parametrize(("attack", "message"), ATTACKS)
def test_nothing_of_a_strangers_folder_runs(folder, tmp_path, monkeypatch, recurrl_evaluate, attack, message):
    marker = tmp_path / "code has run"
    attack(folder, marker)
    monkeypatch.syspath_prepend(folder)
    outcome = recurrl_evaluate(folder, "--episodes", 1, cwd=folder)
    if message is None:
        recurrl.load(folder)
        outcome.succeeded()
    else:
        assert message in outcome.error
        with pytest.raises(ConfigError, match=message):
            recurrl.load(folder)
    assert not marker.exists()


def test_a_folder_is_written_whole_or_not_at_all(finished_run, tmp_path, not_installed):
    (tmp_path / "full" / "inner").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    for existing in (tmp_path / "full", tmp_path / "file", Path()):
        error = f"--hub-folder must be a new or an empty folder (got {existing}). Name another."
        assert error_of(write_hub_folder, finished_run, existing) == error
    not_installed("onnx")
    assert "Exporting to onnx needs onnx" in error_of(write_hub_folder, finished_run, tmp_path / "made")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "full"]


def test_without_the_package_there_is_no_video_and_the_reason(finished_run, tmp_path, not_installed):
    not_installed("imageio_ffmpeg")
    (tmp_path / "made").mkdir()  # an empty folder is as good as none
    files, without_video = write_hub_folder(finished_run, tmp_path / "made", formats=["pt2"])
    assert "imageio-ffmpeg" in str(without_video)
    assert files == ["README.md", "config.yaml", "policy.json", "policy.pt2"]
    _, body = header_of(tmp_path / "made")
    assert "replay" not in body
    assert "onnx" not in body


def test_a_checkpoint_without_a_return_gets_the_one_found_for_it(finished_run, tmp_path, monkeypatch):
    for slow in ("export", "files_of"):  # exports and a video
        monkeypatch.setattr(f"recurrl.cli.hub_run.{slow}", lambda *_, **__: ())
    path = find(shutil.copytree(finished_run, tmp_path / "run"))
    complete(path, {"collect/restarts": 1.0})
    write_hub_folder(path, tmp_path / "made")
    assert math.isfinite(manifest(find(tmp_path / "made", "best"))["metrics"]["eval/return_mean"])
    recurrl.load(tmp_path / "made")


def test_a_card_of_any_environment_keeps_its_header(finished_run):
    env = 'mine:A "quoted": name'
    opened = open_run(finished_run)
    opened.config.env.id = opened.settings.env.id = env
    card = model_card(opened, summarized([0.5, 1.0, 1.5]), 1, ["policy.onnx"])
    assert mean_in(yaml.safe_load(card.split("---\n")[1]), env, opened.config.cell.name) == 1.0
    assert "trust_packages=True" in card
    assert "over 1 episode;" in model_card(opened, summarized([0.5]), 1, ["policy.onnx"])


def test_options_that_do_not_go_together_are_rejected(recurrl_export, finished_run, tmp_path):
    error = recurrl_export(finished_run, "--hub-folder", "made", "--sampled", cwd=tmp_path).error
    assert error.startswith("--sampled has no effect with --hub-folder.")
