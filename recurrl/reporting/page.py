"""The page of a report: HTML without any request to another file or host."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template

from plotly.io import to_html  # type: ignore[import-untyped]
from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

from recurrl.errors import require
from recurrl.reporting.figures import learning_curves, memory_bars
from recurrl.reporting.results import OUTCOME, OVER_SEEDS, Result, grouped, left_out
from recurrl.runtime.atomic import atomic_write
from recurrl.runtime.run_directory import VIDEOS

_DRAWN = {"include_plotlyjs": False, "full_html": False, "config": {"displayModeBar": False, "responsive": True}}
_MAX_VIDEO_BYTES = 20 << 20
_VIDEOS = {
    ".mp4": '<video controls loop muted src="data:video/mp4;base64,{}"></video>',
    ".gif": '<img src="data:image/gif;base64,{}" alt="">',
}
_PAGE = Template(Path(__file__).with_suffix(".html").read_text("utf-8"))


def write_report(runs: Sequence[Result], paths: Sequence[Path], output: Path | None = None) -> Path:
    """Writes the report, and returns its path.

    Args:
        runs: at least one, with their whole configurations.
        paths: the directories that hold the runs.
        output: the file, or a folder for its ``report.html``; None for the first of ``paths``.

    Raises:
        ConfigError: a run's metrics are malformed, or the file's name does not end in ``.html``.
        OSError: the file cannot be written.
    """
    title = paths[0].resolve().name if len(paths) == 1 else f"{len(runs)} runs"
    place = output or paths[0]
    target = place / "report.html" if place.is_dir() else place
    require(target.suffix == ".html", f"--output must be a folder or end in .html (got {output}).")
    with atomic_write(target) as file:
        file.write(_page(runs, f"recurrl: {title}"))
    return target


def _page(runs: Sequence[Result], title: str) -> str:
    groups = grouped(runs)
    settings = {run.directory: group.name for group in groups for run in group.runs}
    rows = [(run.name, settings[run.directory], run.seed, *run.cells()) for run in runs]
    figures = {
        "Evaluation return: most probable actions": learning_curves(groups, "eval/return_mean"),
        "Return of training: sampled actions, last 100 episodes": learning_curves(groups, "train/return_mean"),
        "Effect of memory: most probable actions": memory_bars(groups),
    }
    drawn = {name: to_html(figure, **_DRAWN) for name, figure in figures.items() if figure is not None}
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(_about(runs))}</p>',
        *_warnings(runs, settings),
        *(f"<h2>{escape(name)}</h2>{html}" for name, html in drawn.items()),
        "<h2>Groups</h2>",
        _table(("settings", *OVER_SEEDS), [(group.name, *group.cells()) for group in groups]),
        f'<p class="soft">{escape("; ".join(left_out(groups)))}</p>',
        "<h2>Runs</h2>",
        _table(("run", "settings", "seed", *OUTCOME), rows),
        *_videos(runs),
    ]
    return _PAGE.substitute(title=escape(title), script=get_plotlyjs(), body="".join(parts))


def _about(runs: Sequence[Result]) -> str:
    """How many runs were completed, and the main settings that all runs have in common."""
    keys = ("env.id", "cell", "algorithm", "backend", "total_frames")
    common = {key: values.pop() for key in keys if len(values := {run.settings.get(key, "") for run in runs}) == 1}
    completed = f"{sum(run.has_ended_well for run in runs)} of {len(runs)} runs completed"
    return ", ".join([completed, *(f"{key}={value}" for key, value in common.items() if value)])


def _warnings(runs: Sequence[Result], settings: Mapping[Path, str]) -> Iterator[str]:
    warnings = [(run, "bad", f"{run.status}: {run.error}") for run in runs if run.error]
    warnings += [(run, "warn", text) for run in runs for text in (run.summary.get("warnings") or {}).values()]
    if warnings:
        lines = (
            f'<li class="{kind}">{escape(run.name)} ({escape(settings[run.directory])}): {escape(text)}</li>'
            for run, kind, text in warnings
        )
        yield f"<h2>Warnings</h2><ul>{''.join(lines)}</ul>"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _videos(runs: Sequence[Result]) -> Iterator[str]:
    """The first of each run's videos, inside the page; of one that is too large, where it is."""
    for run in runs:
        paths = sorted((run.directory / VIDEOS).glob("*"))
        video = next((path for path in paths if path.suffix in _VIDEOS and path.is_file()), None)
        if video is not None:
            size = video.stat().st_size
            shown = f'<p class="soft">{escape(str(video))} has {size >> 20} MiB, too much for this page.</p>'
            if size <= _MAX_VIDEO_BYTES:
                shown = _VIDEOS[video.suffix].format(base64.b64encode(video.read_bytes()).decode())
            yield f"<h2>Video: {escape(run.name)}</h2>{shown}"
