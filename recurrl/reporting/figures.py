"""The figures of a report, drawn with plotly."""

from collections.abc import Sequence
from itertools import cycle
from statistics import fmean

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]

from recurrl.reporting.results import Group
from recurrl.returns import return_format, sample_std

# Distinct for colour-blind readers (Paul Tol, https://personal.sron.nl/~pault/), on a light and on a dark page.
_COLORS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")
_STATES = {"": "as trained", "_zeroed_state": "memory zeroed", "_shuffled_state": "another episode's memory"}
_BARS = {**_STATES, "_random": "random actions"}


def learning_curves(groups: Sequence[Group], metric: str) -> go.Figure | None:
    """Plots a metric's mean and range over seeds, by group; None if no run has more than one value of it."""
    figure = _figure("frames (environment steps)", "return").update_layout(hovermode="x unified")
    for color, group in zip(cycle(_COLORS), groups, strict=False):
        curves = [curve for run in group.seeds or group.runs if (curve := run.curve(metric))]
        if not curves:
            continue
        # At the frames of all curves together: interpolated linearly within each curve, NaN beyond it.
        frames = np.unique([frame for curve in curves for frame, _ in curve])
        beyond = {"left": np.nan, "right": np.nan}
        values = np.array([np.interp(frames, *np.array(curve).T, **beyond) for curve in curves])
        line, name = {"x": frames, "mode": "lines", "legendgroup": group.name}, group.name
        if len(curves) > 1:
            bounds = {**line, "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
            figure.add_scatter(y=np.nanmin(values, 0), **bounds)
            figure.add_scatter(y=np.nanmax(values, 0), **bounds, fill="tonexty", fillcolor=f"{color}33")
            name += f" (mean and range of {len(curves)} seeds)"
        hover = f"%{{x:,}} frames: %{{y:{return_format(np.nanmax(np.abs(values)))}}}"
        style = {"color": color, "width": 2}
        figure.add_scatter(y=np.nanmean(values, 0), **line, line=style, name=name, hovertemplate=hover)
    return figure if any(len(trace.x) > 1 for trace in figure.data) else None


def memory_bars(groups: Sequence[Group]) -> go.Figure | None:
    """Plots the return as trained, without its memory and with random actions; None if only the first is known."""
    figure = _figure(None, "evaluation return")
    for color, (suffix, label) in zip(_COLORS, _BARS.items(), strict=False):
        values = {group.name: returns for group in groups if (returns := group.numbers(f"eval_return_mean{suffix}"))}
        if values:
            spreads = {"type": "data", "array": [*map(sample_std, values.values())], "color": "#808080"}
            means = [fmean(returns) for returns in values.values()]
            figure.add_bar(x=list(values), y=means, name=label, marker_color=color, error_y=spreads)
    return figure if len(figure.data) > 1 else None


def _figure(x: str | None, y: str | None) -> go.Figure:
    axis = {"gridcolor": "rgba(128,128,128,.25)", "zeroline": False, "automargin": True}
    clear = "rgba(0,0,0,0)"  # the page's colours show, light or dark
    figure = go.Figure().update_xaxes(title=x, rangemode="tozero", **axis).update_yaxes(title=y, **axis)
    figure.update_layout(paper_bgcolor=clear, plot_bgcolor=clear, height=340, margin={"l": 8, "r": 8, "t": 30, "b": 8})
    legend = {"orientation": "h", "yanchor": "bottom", "y": 1.0, "x": 0, "traceorder": "normal"}
    return figure.update_layout(legend=legend, font={"color": "#808080", "family": "system-ui, sans-serif"})
