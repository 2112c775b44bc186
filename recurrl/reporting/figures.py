"""The figures of a report, by plotly."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from statistics import fmean

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]

from recurrl.reporting.runs import Group
from recurrl.tracking.csv import Curve

# Distinct for colour-blind readers (Paul Tol, https://personal.sron.nl/~pault/), on a light and on a dark page.
_COLORS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")
_TIMES = (
    ("startup_time_s", "start-up"),
    ("compile_time_s", "compiling"),
    ("collect_time_s", "collecting"),
    ("learn_time_s", "learning"),
)
_MEMORY = (
    ("eval_return_mean", "as trained"),
    ("eval_return_mean_zeroed_state", "memory zeroed"),
    ("eval_return_mean_shuffled_state", "another episode's memory"),
    ("eval_return_mean_random", "random actions"),
)


def learning_curves(groups: Sequence[Group], metric: str) -> go.Figure | None:
    """The mean of a metric over seeds and its range, by group; None if no run has it."""
    figure = _figure("frames (environment steps)", "return")
    for color, group in zip(cycle(_COLORS), groups, strict=False):
        curves = [curve for run in group.runs if (curve := run.curve(metric))]
        if not curves:
            continue
        frames, values = _aligned(curves)
        label = f"{group.name} ({len(curves)} seeds)" if len(curves) > 1 else group.name
        if len(curves) > 1:
            low, high = np.nanmin(values, 0), np.nanmax(values, 0)
            band = go.Scatter(
                x=np.concatenate((frames, frames[::-1])),
                y=np.concatenate((high, low[::-1])),
                fill="toself",
                fillcolor=color,
                opacity=0.2,
                line={"width": 0},
                hoverinfo="skip",
                legendgroup=group.name,
                showlegend=False,
            )
            figure.add_trace(band)
        line = go.Scatter(
            x=frames,
            y=np.nanmean(values, 0),
            mode="lines+markers" if len(frames) < 40 else "lines",
            line={"color": color, "width": 2},
            name=label,
            legendgroup=group.name,
            hovertemplate="%{x:,} frames: %{y:.2f}",
        )
        figure.add_trace(line)
    return figure if figure.data else None


def memory_bars(groups: Sequence[Group]) -> go.Figure | None:
    """The return as trained, without memory and with random actions; None if no run was evaluated so."""
    figure = _figure(None, "evaluation return")
    for color, (key, label) in zip(_COLORS, _MEMORY, strict=False):
        values = {group.name: group.numbers(key) for group in groups}
        if any(values.values()):
            means = [fmean(found) if found else None for found in values.values()]
            spreads = [float(np.std(found)) if found else 0.0 for found in values.values()]
            error = {"type": "data", "array": spreads, "color": "#808080"}
            figure.add_trace(go.Bar(x=list(values), y=means, name=label, marker_color=color, error_y=error))
    return figure if len(figure.data) > 1 else None


def time_bars(groups: Sequence[Group]) -> go.Figure | None:
    """Seconds by phase, means over a group's runs; None if no run has times."""
    figure = _figure("seconds", None)
    walls = {group.name: group.numbers("wall_time_s") for group in groups}
    rest = {name: fmean(found) if found else 0.0 for name, found in walls.items()}
    for color, (key, label) in zip(_COLORS, _TIMES, strict=False):
        values = {group.name: fmean(group.numbers(key) or [0.0]) for group in groups}
        rest = {name: rest[name] - value for name, value in values.items()}
        if any(values.values()):
            figure.add_trace(_horizontal(values, label, color))
    figure.add_trace(_horizontal({name: max(0.0, value) for name, value in rest.items()}, "evaluation, rest", "#999"))
    figure.update_layout(barmode="stack", height=120 + 32 * len(groups))
    figure.update_yaxes(autorange="reversed")
    return figure if any(walls.values()) else None


def _horizontal(values: Mapping[str, float], label: str, color: str) -> go.Bar:
    hover = "%{x:.1f} s"
    bars = {"x": list(values.values()), "y": list(values), "orientation": "h"}
    return go.Bar(**bars, name=label, marker_color=color, hovertemplate=hover)


def _figure(x: str | None, y: str | None) -> go.Figure:
    figure = go.Figure()
    # Without colours of its own, a figure follows the page's, light or dark.
    figure.update_layout(
        xaxis={"title": x, "gridcolor": "rgba(128,128,128,.25)", "zeroline": False, "automargin": True},
        yaxis={"title": y, "gridcolor": "rgba(128,128,128,.25)", "zeroline": False, "automargin": True},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": "#808080", "family": "system-ui, sans-serif"},
        margin={"l": 8, "r": 8, "t": 30, "b": 8},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.0, "x": 0, "traceorder": "normal"},
        hovermode="x unified" if y == "return" else "closest",
        height=340,
    )
    return figure


def _aligned(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """All frames of some curves, and their values there ``[curves, frames]``: linear between, NaN beyond a curve."""
    frames = np.unique([frame for curve in curves for frame, _ in curve])
    values = []
    for curve in curves:
        at, value = np.array(curve).T
        values.append(np.interp(frames, at, value, left=np.nan, right=np.nan))
    return frames, np.array(values)
