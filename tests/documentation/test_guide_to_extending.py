"""The code of the pages on extending and cells, copied into an empty folder, works as they say."""

import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest
from documented import ROOT, snippets

import recurrl

PAGE, OF_CELLS = "docs/extending.md", "docs/writing-a-cell.md"


def of_pages(language):
    return [code for page, code in snippets(language) if page in (PAGE, OF_CELLS)]


NAMED = [code for code in of_pages("python") if re.match(r"# \w+\.py\n", code)]
FILES = {code.splitlines()[0].removeprefix("# "): code for code in NAMED}
COMMANDS = [shlex.split(line) for code in of_pages("bash") for line in code.replace("\\\n", "").splitlines()]


@pytest.fixture
def folder(tmp_path, in_tmp_path, monkeypatch):
    """An empty folder with the page's files, and the current one."""
    for name, code in FILES.items():
        (tmp_path / name).write_text(code, encoding="utf-8")
        monkeypatch.delitem(sys.modules, Path(name).stem, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[1])
def test_a_command_trains_with_the_file_above_it_resumes_and_can_be_evaluated(words, folder, tiny, train, evaluate):
    run = [*words[1:], *tiny]
    train(*run, "hydra.run.dir=run").succeeded()
    train(*run, "resume=run", "total_frames=96", "hydra.run.dir=longer").succeeded()
    evaluate("longer").succeeded()


def test_the_callbacks_stop_a_run_and_log_a_metric(folder, tiny):
    stop, size = (importlib.import_module(name) for name in ("stop", "state_size"))
    callbacks = [stop.StopAtReturn(-1.0, patience=1), size.StateSize()]
    run = recurrl.train([*tiny, "env.max_episode_steps=4", "evaluation.every_frames=32"], folder / "run", callbacks)
    assert run.summary["status"] == "stopped"
    assert run.summary["frames"] == 32
    assert "state/largest" in (run.directory / "metrics.csv").read_text(encoding="utf-8")


def test_a_callback_changes_an_option_during_the_run(folder, tiny):
    class Coefficients(recurrl.Callback):
        def __init__(self):
            self.seen = []

        def on_iteration(self, trainer, metrics):
            self.seen.append(float(trainer.algorithm.entropy_coeff / trainer.algorithm.advantage_scale.value))
            assert len(trainer.collector.env.raw.envs) == trainer.config.env.num_envs

    watched, annealing = Coefficients(), importlib.import_module("anneal").AnnealEntropy()
    recurrl.train([*tiny, "total_frames=128", "algorithm.entropy_final_fraction=1"], callbacks=[annealing, watched])
    assert watched.seen == pytest.approx([0.04, 0.02, 0.0, 0.0])


def test_every_file_of_the_examples_is_linked():
    text = (ROOT / PAGE).read_text(encoding="utf-8") + (ROOT / OF_CELLS).read_text(encoding="utf-8")
    files = (ROOT / "examples/extending/my_package").glob("*.py")
    assert [path.name for path in files if path.stem.removesuffix("_cell").split("_")[0] not in text] == []
