"""Figures of the convergence experiments: gaps, distances and bounds over iterations and rounds."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedtilt.report.style import Style
from reproduction.chapter import CaptionedFigure
from reproduction.plots import axis_suffix, panels


def fixed_figure(fixed: Mapping[str, Any], styles: Mapping[str, Style]) -> CaptionedFigure:
    """The gap of the objective with w fixed, and Lemma 6's bound."""
    data = []
    for name, result in fixed.items():
        first = result["clients"][0]
        curve = first["curve"]
        bound = [[t, curve[0][1] * first["allowed"] ** t] for t, _ in curve]
        data += [
            _curve(curve, name, styles[name], dash="solid"),
            _curve(bound, f"{name}: bound", styles[name], dash="dot", legend=False),
        ]
    return CaptionedFigure(
        name="convergence-fixed",
        caption="With w fixed, client 1: the gap L_n(v, w) − min (solid) and Lemma 6's bound (dotted).",
        figure={"data": data, "layout": _layout("iteration", "gap of the objective", -11)},
    )


def rounds_figure(rounds: Mapping[str, Any], styles: Mapping[str, Style]) -> CaptionedFigure:
    """Distances of w and v to their limits, and our bound."""
    data = []
    for name, r in rounds.items():
        data += [
            _curve(r["personal"], name, styles[name], dash="solid"),
            _curve(r["shared"], f"{name}: w", styles[name], dash="dash", legend=False),
            _curve(r["bound"], f"{name}: our bound on v", styles[name], dash="dot", legend=False),
        ]
    return CaptionedFigure(
        name="convergence-rounds",
        caption="Over rounds: ‖v_n − v_n*‖, mean over clients (solid), our bound on it (dotted), ‖w − w*‖ (dashed).",
        figure={"data": data, "layout": _layout("round", "distance to the limit", -9)},
    )


def bound_figure(rounds: Mapping[str, Any], styles: Mapping[str, Style]) -> CaptionedFigure:
    """The gap of the objective over rounds, and the theorem's bound on it."""
    data = []
    for name, r in rounds.items():
        data += [
            _curve([[t, abs(gap)] for t, gap in r["gap"]], name, styles[name], dash="solid"),
            _curve(r["printed"], f"{name}: the paper's bound", styles[name], dash="dot", legend=False),
        ]
    return CaptionedFigure(
        name="convergence-bound",
        caption="Over rounds, one client: |L_n(v^t, w^t) − L_n(v*, w*)| (solid) and the theorem's bound (dotted).",
        figure={"data": data, "layout": _layout("round", "gap of the objective", -11)},
    )


def special_figure(special: Mapping[str, Any]) -> CaptionedFigure:
    """The two cases in which w and v converge at different rates."""
    blue, grey = Style("#1a7fc4", "solid", "circle"), Style("#7f858d", "dash", "square")
    green, orange = Style("#009e73", "dot", "circle"), Style("#d55e00", "dot", "circle")
    titles = {"from-the-limit": "w starts at its limit", "decaying": "w's step decays"}
    data: list[dict[str, Any]] = []
    layout = _layout("", "", -9) | {"grid": panels(1, len(special)), "annotations": []}
    for i, (name, r) in enumerate(special.items()):
        n = axis_suffix(i)
        gap = [[t, abs(gap)] for t, gap in r["gap"]]
        curves = [
            _curve(r["shared"], "distance of w", grey, dash="dash", legend=i == 0),
            _curve(r["personal"], "distance of v (mean)", blue, dash="solid", legend=i == 0),
            _curve(r["bound"], "our bound on it", green, dash="dot", legend=i == 0),
            _curve(gap, "|gap of the objective|, one client", blue, dash="longdash", legend=i == 0),
            _curve(r["printed"], "the paper's bound on the gap", orange, dash="dot", legend=i == 0),
        ]
        data += [curve | {"xaxis": f"x{n}", "yaxis": f"y{n}"} for curve in curves]
        layout[f"xaxis{n}"] = {"title": {"text": "round"}, "anchor": f"y{n}"}
        layout[f"yaxis{n}"] = {
            "type": "log", "range": [-9, 1.5], "exponentformat": "power", "dtick": 2, "anchor": f"x{n}"
        }  # fmt: skip
        layout["annotations"].append(
            {"text": titles.get(name, name), "showarrow": False, "x": 0.5, "xref": f"x{n} domain",
             "xanchor": "center", "y": 1.0, "yref": "paper", "yanchor": "bottom"}
        )  # fmt: skip
    layout["margin"]["t"] = 70
    layout["legend"]["y"] = 1.1
    return CaptionedFigure(
        name="convergence-special",
        caption="Two cases. Left: w starts at its limit, so g(t) = 0, and v still needs many rounds. Right: w "
        "converges like 1 / round, and v follows it. The gap, and the paper's bound on it, are those of the client "
        "whose bound is violated first.",
        figure={"data": data, "layout": layout},
    )


def _curve(
    points: Sequence[Sequence[float]], name: str, style: Style, *, dash: str, legend: bool = True
) -> dict[str, Any]:
    positive = [(x, y) for x, y in points if y > 0]  # the axis is logarithmic
    return {
        "type": "scatter", "mode": "lines", "name": name, "showlegend": legend, "legendgroup": name.split(":")[0],
        "x": [x for x, _ in positive], "y": [y for _, y in positive],
        "line": {"color": style.color, "dash": dash, "width": 2 if dash == "solid" else 1.5},
        "hovertemplate": "%{x}: %{y:.2e}<extra>%{fullData.name}</extra>",
    }  # fmt: skip


def _layout(x_title: str, y_title: str, low: float) -> dict[str, Any]:
    return {
        "height": 400, "margin": {"l": 60, "r": 12, "t": 12, "b": 44}, "hovermode": "closest",
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "xanchor": "left"},
        "xaxis": {"title": {"text": x_title}},
        "yaxis": {
            "title": {"text": y_title}, "type": "log", "range": [low, 1.5], "exponentformat": "power", "dtick": 2
        },
    }  # fmt: skip
