"""The commands and snippets of README.md and docs/ work as they stand there."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from documented import ROOT, Command, commands, snippets

from benchmarks.main import parser
from recurrl.validation import check_config

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
COMMANDS = {str(command): command for command in commands()}
OTHERS = {"pytest", "mypy", "ruff", "lint-imports", "pre-commit", "mkdir", "mkdocs", "bash"}
SCRIPTS = {path.name for path in (ROOT / "scripts").iterdir()}
SIZES = (r"env\.num_envs", "experiment", "total_frames", "frames_per_batch", "slice_len", "minibatch_slices")
HELP = (ROOT / "recurrl/cli/help.py").read_text(encoding="utf-8")
RUN = re.compile(r"outputs/<date>/<time>|outputs/mine\b|\bRUN\b")


def program(command):
    """The installed command, or the script, and its arguments."""
    first, *rest = command.words
    if first == "python" and rest[0] == "-m":
        return "recurrl-train", rest[2:]
    if first == "python":
        assert Path(rest[0]).name in SCRIPTS
        name = Path(rest[0]).stem
        return f"recurrl-{name}" if f"recurrl-{name}" in PROJECT["scripts"] else name, rest[1:]
    if first in ("sbatch", "torchrun"):
        starts = next(index for index, word in enumerate(rest) if word.endswith((".sbatch", "recurrl", "train.py")))
        return "recurrl-train", rest[starts + 1 :]
    if first == "docker" and "run" in rest:  # of the image, or of a service of docker compose
        starts = next(index for index, word in enumerate(rest) if word in ("recurrl", "cpu", "gpu"))
        inside = rest[rest.index("--entrypoint") + 1] if "--entrypoint" in rest else "recurrl-train"
        return program(Command("", (inside, *rest[starts + 1 :]), ROOT))
    return first, rest


def of(*names):
    """The commands of these programs, as parameters of a test."""
    return [pytest.param(command, id=str(command)) for command in COMMANDS.values() if program(command)[0] in names]


SIZED = {
    **{str(command): program(command)[1] for command in COMMANDS.values() if program(command)[0] == "recurrl-train"},
    **{line: shlex.split(line)[1:] for line in re.findall(r"^  (recurrl-train .*?)(?:   .*)?$", HELP, re.MULTILINE)},
}


def test_every_command_is_of_a_kind_that_is_tested():
    assert len(COMMANDS) > 50
    ours = {*PROJECT["scripts"], "benchmark", "dashboard", "reference", "scaling"}
    known = {program(command)[0] for command in COMMANDS.values()} - OTHERS - ours
    assert known <= {"pip", "docker", "kubectl", "cd"}


def test_the_files_that_commands_deploy_exist():
    words = {word for command in COMMANDS.values() for word in command.words if word.startswith("deploy/")}
    assert len(words) >= 5
    assert [word for word in words if not (ROOT / word).is_file()] == []


@pytest.mark.parametrize("command", of("recurrl-train", "recurrl-check"))
def test_a_run_can_be_configured_so(command, recurrl_train, finished_run, tmp_path):
    _, arguments = program(command)
    arguments = [_single(RUN.sub(str(finished_run), word)) for word in arguments if word != "-m"]
    arguments = [word.replace("seed=S", "seed=1") for word in arguments]
    if not {"--help", "--cfg"} & set(arguments):
        arguments += ["--cfg", "job"]
    shown = recurrl_train(*arguments, cwd=command.folder).succeeded()
    assert "seed:" in shown.out or "seed=" in shown.out


@pytest.mark.parametrize("arguments", SIZED.values(), ids=SIZED)
def test_the_sizes_of_a_run_fit_together(arguments, compose):
    sizes = [_single(word) for word in arguments if re.match(rf"({'|'.join(SIZES)})=", word)]
    check_config(compose(*sizes))


@pytest.mark.parametrize("command", of("recurrl-evaluate"))
def test_a_run_can_be_evaluated_so(command, recurrl_evaluate, finished_run):
    _, arguments = program(command)
    recurrl_evaluate(*(RUN.sub(str(finished_run), word) for word in arguments), cwd=finished_run).succeeded()


@pytest.mark.slow
@pytest.mark.parametrize("command", of("recurrl-export"))
def test_a_run_can_be_exported_so(command, console, finished_run, tmp_path):
    run = shutil.copytree(finished_run, tmp_path / "run")
    name, arguments = program(command)
    console(name, *(RUN.sub(str(run), word) for word in arguments), cwd=tmp_path).succeeded()


@pytest.mark.parametrize("command", of("benchmark"))
def test_a_benchmark_takes_such_arguments(command):
    parser().parse_args(program(command)[1])


@pytest.mark.parametrize("command", of("dashboard"))
def test_a_dashboard_can_be_made_so(command, tmp_path):
    script = [sys.executable, str(ROOT / "scripts/dashboard.py"), *program(command)[1]]
    subprocess.run(script, cwd=tmp_path, env={**os.environ, "WANDB_MODE": "offline"}, check=True, timeout=60)
    assert (tmp_path / "wandb_workspace.json").exists()


@pytest.mark.parametrize("command", of("pip"))
def test_the_extras_exist(command):
    for extras in re.findall(r"\[([\w,]+)\]", shlex.join(command.words)):
        assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize(("page", "code"), list(snippets("python")), ids=lambda value: value if len(value) < 40 else "")
def test_a_snippet_runs(page, code, tiny, finished_run, in_tmp_path, monkeypatch):
    if "recurrl.train(" not in code:
        shutil.copytree(finished_run, "outputs/mine")
    long = r'\["cell=lstm", "seed=1"\]|"cell=lstm seed=1"|"total_frames=20_000"|"algorithm.entropy_final_fraction=1"'
    long += r'|\["evaluation.every_frames=5000", \*sys.argv\[1:\]\]'
    short = re.sub(long, repr([*tiny, "cell=lstm", "seed=1"]), code).replace("total_frames=40_000", "total_frames=96")
    assert ("recurrl.train(" in code) == (short != code)
    module = ModuleType("snippet")
    monkeypatch.setitem(sys.modules, "snippet", module)
    exec(compile(short, page, "exec"), vars(module))


def _single(word):
    """The first of several values of a sweep."""
    key, separator, values = word.partition("=")
    return word if "[" in values else f"{key}{separator}{values.partition(',')[0]}"
