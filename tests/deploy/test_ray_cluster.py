"""The file for a Ray cluster: Ray takes it, and what it says to run is a run."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

FILE = Path(__file__).parents[2] / "deploy" / "ray" / "cluster.yaml"
TEXT = FILE.read_text(encoding="utf-8")
CLUSTER = yaml.safe_load(TEXT)


def test_the_command_that_it_names_configures_a_run(recurrl_train, tmp_path):
    comments = re.sub(r"\\\n#\s*", "", TEXT)
    (command,) = re.findall(r"# +ray exec --tmux \S+ '(.*)'", comments)
    program, *words = shlex.split(command)
    assert program == "recurrl-train"
    recurrl_train(*words, "--cfg", "job", cwd=tmp_path).succeeded()


@pytest.mark.slow
def test_ray_takes_the_file():
    util = pytest.importorskip("ray.autoscaler._private.util", reason="needs pip install 'recurrl[ray]'")
    util.validate_config(util.prepare_config(CLUSTER))
