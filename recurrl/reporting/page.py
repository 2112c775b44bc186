"""The page of a report: HTML without any request to another file or host."""

import base64
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from html import escape
from pathlib import Path
from statistics import fmean

from plotly.graph_objects import Figure  # type: ignore[import-untyped]
from plotly.io import to_html  # type: ignore[import-untyped]
from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

from recurrl.reporting.figures import learning_curves, memory_bars, time_bars
from recurrl.reporting.runs import OVER_SEEDS, Group, Result, grouped
from recurrl.returns import return_format
from recurrl.runtime.atomic import atomic_write
from recurrl.runtime.run_directory import VIDEOS

_CONFIG = {"displayModeBar": False, "responsive": True}
_LARGEST_VIDEO = 20 << 20
_VIDEOS = {".mp4": "video", ".gif": "image"}
_STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --soft: #59636e; --line: #d1d9e0; --back: #fff;
  --bad: #b42318; --warn: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --soft: #9198a1; --line: #3d444d; --back: #0d1117;
  --bad: #ff7b72; --warn: #e3b341; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1000px; padding: 16px; font: 15px/1.5 system-ui, sans-serif; color: var(--text);
  background: var(--back); }
h1 { font-size: 22px; margin: 8px 0; } h2 { font-size: 17px; margin: 28px 0 8px; }
.soft { color: var(--soft); } .bad { color: var(--bad); } .warn { color: var(--warn); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: right; padding: 5px 10px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th { color: var(--soft); font-weight: 500; }
video, img { max-width: 100%; border-radius: 8px; }
.plotly-graph-div { width: 100%; }
.legendtext, .xtick text, .ytick text, .gtitle, .xtitle, .ytitle { fill: var(--text) !important; }
"""


def write_report(runs: Sequence[Result], paths: Sequence[Path], output: Path | None = None) -> Path:
    """Writes the report, and returns its path.

    Args:
        runs: at least one, with their whole configurations.
        paths: in which they were found; a run in the only one is named by its place there.
        output: the file; None for ``report.html`` in the first of ``paths``.

    Raises:
        ConfigError: a run's metrics are malformed.
        OSError: the file cannot be written.
    """
    is_only = len(paths) == 1
    title = paths[0].resolve().name if is_only else f"{len(runs)} runs"
    target = output or paths[0] / "report.html"
    named = [replace(run, name=_name(run.directory, paths[0] if is_only else run.directory)) for run in runs]
    with atomic_write(target) as file:
        file.write(_page(named, f"recurrl: {title}"))
    return target


def _name(run_dir: Path, path: Path) -> str:
    within = run_dir.relative_to(path).as_posix()
    return str(run_dir) if within == "." else within


def _page(runs: Sequence[Result], title: str) -> str:
    groups = grouped(runs)
    settings = {run.directory: group.name for group in groups for run in group.runs}
    figures = {
        "Evaluation return: most probable actions": _if_several_points(learning_curves(groups, "eval/return_mean")),
        "Return of training: sampled actions, last 100 episodes": learning_curves(groups, "train/return_mean"),
        "What the memory is worth: most probable actions": memory_bars(groups),
        "Where the time went": time_bars(groups),
    }
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(_about(runs))}</p>',
        *_warnings(runs),
        *(f"<h2>{escape(name)}</h2>{_drawn(figure)}" for name, figure in figures.items() if figure is not None),
        "<h2>Groups</h2>",
        _table(("settings", *_GROUP_COLUMNS), [_of_group(group) for group in groups]),
        _left_out(groups),
        "<h2>Runs</h2>",
        _table(("run", "settings", *_RUN_COLUMNS), [_of_run(run, settings[run.directory]) for run in runs]),
        *_videos(runs),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style><script>{get_plotlyjs()}</script></head>\n"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _drawn(figure: Figure) -> str:
    return str(to_html(figure, include_plotlyjs=False, full_html=False, config=_CONFIG))


def _if_several_points(curves: Figure | None) -> Figure | None:
    """A run that was evaluated only at its end has no curve; its return is in the tables."""
    return curves if curves is not None and any(len(set(trace.x)) > 1 for trace in curves.data) else None


def _about(runs: Sequence[Result]) -> str:
    """How many runs were completed, and the main settings that all have in common."""
    keys = ("env.id", "cell", "algorithm", "backend", "total_frames")
    common = {key: values.pop() for key in keys if len(values := {run.settings.get(key, "") for run in runs}) == 1}
    completed = f"{sum(run.has_ended_well for run in runs)} of {len(runs)} runs completed"
    return ", ".join([completed, *(f"{key}={value}" for key, value in common.items() if value)])


def _warnings(runs: Sequence[Result]) -> Iterator[str]:
    found = [(run.name, "bad", f"{run.status}: {run.error}") for run in runs if run.error]
    for run in runs:
        texts = run.summary.get("warnings") or {}
        found += [(run.name, "warn", f"{name}: {text}") for name, text in texts.items()]
    if found:
        lines = (f'<li class="{kind}">{escape(name)}: {escape(text)}</li>' for name, kind, text in found)
        yield f"<h2>Warnings</h2><ul>{''.join(lines)}</ul>"


_GROUP_COLUMNS = (*OVER_SEEDS, "frames", "frames/s", "time a run")
_RUN_COLUMNS = ("seed", "return", "± std over episodes", "memory zeroed", "frames", "time", "status")


def _of_group(group: Group) -> tuple[str, ...]:
    means = {key: fmean(found) for key in ("frames", "frames_per_s", "wall_time_s") if (found := group.numbers(key))}
    numbers = (_number(means.get(key), ",.0f") for key in ("frames", "frames_per_s"))
    return (group.name, *group.cells(), *numbers, _duration(means.get("wall_time_s")))


def _left_out(groups: Sequence[Group]) -> str:
    found = [f"{name}: {why}" for group in groups for name, why in group.left_out.items()]
    return f'<p class="soft">Left out: {escape("; ".join(found))}</p>' if found else ""


def _of_run(run: Result, settings: str) -> tuple[str, ...]:
    keys = ("eval_return_mean", "eval_return_std", "eval_return_mean_zeroed_state")
    found = [run.summary.get(key) for key in keys]
    form = return_format(found[0] or 0.0, found[1] or 0.0)
    frames, time = _number(run.summary.get("frames"), ",.0f"), _duration(run.summary.get("wall_time_s"))
    return (run.name, settings, run.seed, *(_number(value, form) for value in found), frames, time, run.status)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _videos(runs: Sequence[Result]) -> Iterator[str]:
    """The first of each run's videos, inside the page."""
    for run in runs:
        found = sorted(path for path in (run.directory / VIDEOS).glob("*") if path.suffix in _VIDEOS and path.is_file())
        if found and found[0].stat().st_size <= _LARGEST_VIDEO:
            yield f"<h2>Video: {escape(run.name)}</h2>{_embedded(found[0])}"


def _embedded(path: Path) -> str:
    kind = _VIDEOS[path.suffix]
    source = f"data:{kind}/{path.suffix[1:]};base64,{base64.b64encode(path.read_bytes()).decode()}"
    return f'<video controls loop muted src="{source}"></video>' if kind == "video" else f'<img src="{source}" alt="">'
