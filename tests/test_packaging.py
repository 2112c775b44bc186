"""What an installation holds: the packages that setuptools finds, and a wheel that needs no checkout."""

import os
import shutil
import sys
import tarfile
from pathlib import Path

import pytest
from commands import output_of

ROOT = Path(__file__).parent.parent
BUILD = "import sys; from setuptools.build_meta import build_sdist; print(build_sdist(sys.argv[1]))"


def test_every_folder_of_modules_is_a_package_that_is_found():
    folders = {module.parent for module in (ROOT / "recurrl").rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_the_configurations_are_found_within_the_package():
    # A link, so that the configurations lie at the top, where a reader looks for them.
    assert (ROOT / "recurrl" / "configs").resolve() == ROOT / "configs"


@pytest.mark.slow
def test_a_wheel_works_outside_the_checkout(tiny, tmp_path):
    tree, site = tmp_path / "tree", tmp_path / "site"
    left_out = shutil.ignore_patterns(".*", "build", "*.egg-info", "outputs", "__pycache__")
    shutil.copytree(ROOT, tree, symlinks=True, ignore=left_out)

    def run(*command, folder=tmp_path):
        environment = {**os.environ, "PYTHONPATH": str(site)}  # before an editable installation of this checkout
        return output_of(command, cwd=folder, env=environment, timeout=300)

    def command(name, *arguments):
        return run(str(site / "bin" / name), *arguments)

    source = tmp_path / run(sys.executable, "-c", BUILD, str(tmp_path), folder=tree).splitlines()[-1]
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CHANGELOG.md", "README.md", "recurrl/configs/train.yaml"} <= names
    assert not [name for name in names if name.startswith("tests")]
    # pip builds a wheel of the source distribution and installs that.
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation")
    run(*pip, "--target", str(site), str(source))
    shutil.rmtree(tree)

    package = run(sys.executable, "-P", "-c", "import recurrl.cli.train; print(recurrl.__file__)")
    assert Path(package.strip()) == site / "recurrl" / "__init__.py"
    assert "hparams_search" in command("recurrl-train", "--help")
    assert "evaluation return" in command("recurrl-train", *tiny, "hydra.run.dir=outputs/mine")
    assert "mean" in command("recurrl-evaluate", "outputs/mine", "--episodes", "2")
    command("recurrl-train", "-m", *tiny, "cell=gru,lstm", "hydra.sweep.dir=outputs/sweep")
    command("recurrl-report", "outputs", "--output", "report.html")
    written = {"outputs/mine/summary.json", "outputs/sweep/sweep.json", "report.html"}
    assert [name for name in written if not (tmp_path / name).is_file()] == []
