"""The pages of the site: they build without a warning, their links lead somewhere, their glossary is complete."""

import json
import re
import shutil
import subprocess
import sys

import pytest
from commands import output_of
from documented import PAGES, ROOT
from run_files import metrics

GLOSSARY = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
ENV = "gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv"
RUNS = {
    "ppo": "algorithm.clip_value=0.2 cell=lstm lr_schedule=adaptive collector=multi_async collector.num_workers=1 "
    f"collector.on_env_error=restart env=vec_env env.id={ENV} env.resets=next_step",
    "grpo": "env=pendulum_no_velocity algorithm=grpo algorithm.group_size=2 algorithm.kl_to_ref_coeff=0.1 "
    "env.max_episode_steps=8",
    "distill": "env=t_maze algorithm=distill algorithm.teacher=tasks:still",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built without a warning."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    output_of(command, cwd=ROOT, timeout=300)
    return folder


def test_the_site_begins_with_the_readme_and_shows_guides_before_decisions(site):
    first = (site / "index.html").read_text(encoding="utf-8")
    assert "robot without velocity" in first
    assert not re.search(r'(?:src|href)="https?://(?!squidfunk)', first), "a page asks another host"
    links = re.findall(r'md-nav__link[^>]*>\s*<span class="md-ellipsis">\s*([^<]*?)\s*<', first)
    assert "recurrl" not in links  # above them stands the site's name
    assert links.index("Overview") < links.index("Environments") < links.index("Decisions")


MEASURE = """<script>
const texts = (of, wrong) => [...document.querySelectorAll(of)].filter(wrong).map(each => each.textContent);
document.title = JSON.stringify([
  texts("td:first-child code", each => each.getClientRects().length > 1),
  texts("pre code", each => each.scrollWidth > each.clientWidth + 1), document.querySelectorAll("code").length]);
</script></body>"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium, which is not installed")
@pytest.mark.parametrize("width", [390, 820, 1400])
@pytest.mark.parametrize("page", [".", "configuration", "get-started"])
def test_no_name_of_a_key_is_broken_and_no_line_of_a_console_cut_off(site, page, width):
    measured = site / page / "measured.html"
    text = (site / page / "index.html").read_text(encoding="utf-8")
    measured.write_text(text.replace("</body>", MEASURE), encoding="utf-8")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={site / 'profile'}"]
    command += [f"--window-size={width},2000", "--virtual-time-budget=3000", "--dump-dom", measured.as_uri()]
    drawn = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    broken, cut_off, count = json.loads(re.findall("<title>(.*?)</title>", drawn)[0])
    assert (broken, cut_off) == ([], [])
    assert count > 10


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_links_of_a_page_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", text):
        if target.startswith("http"):
            continue
        linked = (page.parent / target).resolve() if target else page
        assert linked.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)", linked.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.fixture(scope="module")
def logged(recurrl_train, tiny, tmp_path_factory):
    """Every metric that some run logs."""
    names = set()
    for name, overrides in RUNS.items():
        folder = tmp_path_factory.mktemp(name)
        recurrl_train(*tiny, *overrides.split(), "total_frames=32", "hydra.run.dir=run", cwd=folder).succeeded()
        names |= metrics(folder / "run")[0].keys()
    return names - {"frames"}


def test_every_metric_is_in_the_glossary_and_every_one_there_exists(logged):
    rows = [line.split(" | ")[0] for line in GLOSSARY.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`([^`]+)`", row)} - {"loss/..."} == logged
