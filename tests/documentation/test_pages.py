"""The pages of the site: they build without a warning, their links lead somewhere, their glossary is complete."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from documented import PAGES, ROOT

GLOSSARY = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
OWN_LOSS = "loss/..."
RUNS = {
    "ppo": ["algorithm.clip_value=0.2", "collector.on_fault=restart"],
    "lstm": ["env=pendulum_no_velocity", "cell=lstm", "lr_schedule=adaptive", "state=refresh"],
    "grpo": [
        "env=pendulum_no_velocity",
        "algorithm=grpo",
        "algorithm.group_size=2",
        "algorithm.kl_to_ref_coeff=0.1",
        "env.max_episode_steps=8",
    ],
    "async": ["collector=multi_async", "collector.num_workers=2"],
}


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    first = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "robot without velocity" in first
    assert not re.search(r'(?:src|href)="https?://(?!squidfunk)', first), "a page asks another host"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", text):
        if target.startswith("http"):
            continue
        found = (page.parent / target).resolve() if target else page
        assert found.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)", found.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.fixture(scope="module")
def logged(recurrl_train: Callable[..., Any], tiny: list[str], tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Every metric that some run logs."""
    found: set[str] = set()
    for name, overrides in RUNS.items():
        folder = tmp_path_factory.mktemp(name)
        done = recurrl_train(*tiny, *overrides, "hydra.run.dir=run", cwd=folder)
        assert done.code == 0, done.err
        with (folder / "run/metrics.csv").open(newline="", encoding="utf-8") as rows:
            found |= set(next(csv.reader(rows)))
    return found - {"frames"}


def test_every_metric_is_in_the_glossary_and_every_one_there_exists(logged: set[str]) -> None:
    rows = [line.split(" | ")[0] for line in GLOSSARY.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`([^`]+)`", row)} - {OWN_LOSS} == logged
