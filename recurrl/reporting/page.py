"""The page of a report: HTML without any request to another file or host."""

import base64
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from html import escape
from pathlib import Path
from statistics import fmean, stdev

from plotly.graph_objects import Figure  # type: ignore[import-untyped]
from plotly.io import to_html  # type: ignore[import-untyped]
from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

from recurrl.reporting.figures import learning_curves, memory_bars, time_bars
from recurrl.reporting.runs import Group, Result, grouped, interval_95, settings_line
from recurrl.returns import interquartile_mean
from recurrl.runtime.atomic import atomic_write
from recurrl.runtime.run_directory import VIDEOS

_CONFIG = {"displayModeBar": False, "responsive": True}
_LARGEST_VIDEO = 20 << 20
_RETURN = "eval_return_mean"
_VIDEOS = {".mp4": "video", ".gif": "image"}
_STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --soft: #59636e; --line: #d1d9e0; --back: #fff; --box: #f6f8fa;
  --bad: #b42318; --warn: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --soft: #9198a1; --line: #3d444d; --back: #0d1117;
  --box: #151b23; --bad: #ff7b72; --warn: #e3b341; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1000px; padding: 16px; font: 15px/1.5 system-ui, sans-serif; color: var(--text);
  background: var(--back); }
h1 { font-size: 22px; margin: 8px 0; } h2 { font-size: 17px; margin: 28px 0 8px; }
.soft { color: var(--soft); } .bad { color: var(--bad); } .warn { color: var(--warn); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 10px; margin: 14px 0; }
.tile { background: var(--box); border: 1px solid var(--line); border-radius: 8px; padding: 10px 12px; }
.tile b { display: block; font-size: 21px; } .tile span { color: var(--soft); font-size: 13px; }
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
    settings = {run.directory: settings_line(group.settings) for group in groups for run in group.runs}
    figures = {
        "Evaluation return": _if_several_points(learning_curves(groups, "eval/return_mean")),
        "Return of training, last 100 episodes": learning_curves(groups, "train/return_mean"),
        "What the memory is worth": memory_bars(groups),
        "Where the time went": time_bars(groups),
    }
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(_task(runs))}</p>',
        *_tiles(runs, groups),
        *_warnings(runs),
        *(f"<h2>{escape(name)}</h2>{_drawn(figure)}" for name, figure in figures.items() if figure is not None),
        "<h2>Groups</h2>",
        _table(("settings", *_GROUP_COLUMNS), [_of_group(group) for group in groups]),
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


def _task(runs: Sequence[Result]) -> str:
    """What all runs have in common, as far as a reader looks for it first."""
    keys = ("env.id", "cell", "algorithm", "backend", "total_frames")
    common = ((key, {run.settings.get(key, "") for run in runs}) for key in keys)
    return ", ".join(f"{key}={next(iter(values))}" for key, values in common if len(values) == 1 and "" not in values)


def _tiles(runs: Sequence[Result], groups: Sequence[Group]) -> Iterator[str]:
    whole = Group({}, runs)
    ended, speeds = sum(run.has_ended_well for run in runs), whole.numbers("frames_per_s")
    tiles = [
        (f"{ended} of {len(runs)}", "runs completed"),
        (_duration(sum(whole.numbers("wall_time_s"))), "time of all runs"),
    ]
    if speeds:
        tiles.append((f"{fmean(speeds):,.0f}", "frames/s"))
    best = max(((fmean(found), group.name) for group in groups if (found := group.numbers(_RETURN))), default=None)
    if best is not None:
        label = "evaluation return" if len(groups) == 1 else f"best evaluation return: {best[1]}"
        tiles.insert(0, (f"{best[0]:.1f}", label))
    inner = "".join(f'<div class="tile"><b>{escape(b)}</b><span>{escape(s)}</span></div>' for b, s in tiles)
    yield f'<div class="tiles">{inner}</div>'


def _warnings(runs: Sequence[Result]) -> Iterator[str]:
    found = [(run.name, "bad", f"{run.status}: {run.summary['error']}") for run in runs if run.summary.get("error")]
    found += [(run.name, "bad", "unfinished: it wrote no summary") for run in runs if not run.summary]
    for run in runs:
        texts = run.summary.get("warnings") or {}
        found += [(run.name, "warn", f"{name}: {text}") for name, text in texts.items()]
    if found:
        lines = (f'<li class="{kind}">{escape(name)}: {escape(text)}</li>' for name, kind, text in found)
        yield f"<h2>Warnings</h2><ul>{''.join(lines)}</ul>"


_GROUP_COLUMNS = ("runs", "mean return", "95% interval", "interquartile mean", "frames", "frames/s", "time a run")
_RUN_COLUMNS = ("seed", "return", "± std over episodes", "memory zeroed", "frames", "time", "status")


def _of_group(group: Group) -> tuple[str, ...]:
    returns, frames, speeds, seconds = map(group.numbers, (_RETURN, "frames", "frames_per_s", "wall_time_s"))
    interval = middle = ""
    if len(returns) > 1:
        interval = " to ".join(f"{end:.2f}" for end in interval_95(fmean(returns), stdev(returns), len(returns)))
        middle = f"{interquartile_mean(returns):.2f}"
    return (
        group.name,
        str(len(group.runs)),
        f"{fmean(returns):.2f}" if returns else "",
        interval,
        middle,
        f"{fmean(frames):,.0f}" if frames else "",
        f"{fmean(speeds):,.0f}" if speeds else "",
        _duration(fmean(seconds)) if seconds else "",
    )


def _of_run(run: Result, settings: str) -> tuple[str, ...]:
    keys = (_RETURN, "eval_return_std", "eval_return_mean_zeroed_state")
    found, seconds, frames = map(run.summary.get, keys), run.summary.get("wall_time_s"), run.summary.get("frames")
    return (
        run.name,
        settings,
        run.settings.get("seed", ""),
        *("" if number is None else f"{number:.2f}" for number in found),
        "" if frames is None else f"{frames:,.0f}",
        "" if seconds is None else _duration(seconds),
        run.status,
    )


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


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))
