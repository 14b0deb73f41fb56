"""The curves of the convergence experiments: gaps, distances and bounds over iterations and rounds."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedtilt.report.style import Style
from fedtilt.reproduction.chapter import CaptionedFigure


def fixed_figure(fixed: Mapping[str, Any], look: Mapping[str, Style]) -> CaptionedFigure:
    """The gap of the objective with w fixed, and Lemma 6's bound."""
    data = []
    for name, result in fixed.items():
        first = result["clients"][0]
        curve = first["curve"]
        bound = [[t, curve[0][1] * first["allowed"] ** t] for t, _ in curve]
        data += [
            _curve(curve, name, look[name], dash="solid"),
            _curve(bound, f"{name}: bound", look[name], dash="dot", legend=False),
        ]
    return CaptionedFigure(
        name="convergence-fixed",
        caption="With w fixed, client 1: the gap L_n(v, w) − min (solid) and Lemma 6's bound (dotted).",
        figure={"data": data, "layout": _layout("iteration", "gap of the objective", -11)},
    )


def rounds_figure(rounds: Mapping[str, Any], look: Mapping[str, Style]) -> CaptionedFigure:
    """Distances of w and v to their limits, and our bound."""
    data = []
    for name, r in rounds.items():
        data += [
            _curve(r["personal"], name, look[name], dash="solid"),
            _curve(r["shared"], f"{name}: w", look[name], dash="dash", legend=False),
            _curve(r["bound"], f"{name}: our bound on v", look[name], dash="dot", legend=False),
        ]
    return CaptionedFigure(
        name="convergence-rounds",
        caption="Over rounds: ‖v_n − v_n*‖, mean over clients (solid), our bound on it (dotted), ‖w − w*‖ (dashed).",
        figure={"data": data, "layout": _layout("round", "distance to the limit", -9)},
    )


def bound_figure(rounds: Mapping[str, Any], look: Mapping[str, Style]) -> CaptionedFigure:
    """The gap of the objective over rounds, and the theorem's bound on it."""
    data = []
    for name, r in rounds.items():
        data += [
            _curve([[t, abs(gap)] for t, gap in r["gap"]], name, look[name], dash="solid"),
            _curve(r["printed"], f"{name}: the paper's bound", look[name], dash="dot", legend=False),
        ]
    return CaptionedFigure(
        name="convergence-bound",
        caption="Over rounds, one client: |L_n(v^t, w^t) − L_n(v*, w*)| (solid) and the theorem's bound (dotted).",
        figure={"data": data, "layout": _layout("round", "gap of the objective", -11)},
    )


def special_figure(special: Mapping[str, Any]) -> CaptionedFigure:
    """The two cases that tell w's rate and v's apart."""
    look = {"gap": Style("#1a7fc4", "solid", "circle"), "w": Style("#7f858d", "dash", "square"),
            "ours": Style("#009e73", "dot", "circle"), "printed": Style("#d55e00", "dot", "circle")}  # fmt: skip
    data: list[dict[str, Any]] = []
    layout = _layout("", "", -9)
    titles = {"from-the-limit": "w starts at its limit", "decaying": "w's step decays"}
    layout["annotations"] = []
    for i, (name, r) in enumerate(special.items()):
        axis, span = ("", str(i + 1))[i > 0], 1 / len(special)
        lines = [
            _curve(r["shared"], "distance of w", look["w"], dash="dash", legend=i == 0),
            _curve(r["personal"], "distance of v (mean)", look["gap"], dash="solid", legend=i == 0),
            _curve(r["bound"], "our bound on it", look["ours"], dash="dot", legend=i == 0),
            _curve(
                [[t, abs(gap)] for t, gap in r["gap"]], "|gap of the objective|, one client", look["gap"],
                dash="longdash", legend=i == 0,
            ),
            _curve(r["printed"], "the paper's bound on the gap", look["printed"], dash="dot", legend=i == 0),
        ]  # fmt: skip
        data += [line | {"xaxis": f"x{axis}", "yaxis": f"y{axis}"} for line in lines]
        domain = [i * span, (i + 1) * span - (0.07 if i < len(special) - 1 else 0)]
        layout[f"xaxis{axis}"] = {"title": {"text": "round"}, "domain": domain, "anchor": f"y{axis}"}
        layout[f"yaxis{axis}"] = {
            "type": "log", "range": [-9, 1.5], "exponentformat": "power", "dtick": 2, "anchor": f"x{axis}"
        }  # fmt: skip
        layout["annotations"].append(
            {"text": titles.get(name, name), "showarrow": False, "x": domain[0] + span / 2 - 0.03, "xref": "paper",
             "xanchor": "center", "y": 1.0, "yref": "paper", "yanchor": "bottom"}
        )  # fmt: skip
    layout["margin"]["t"] = 70
    layout["legend"]["y"] = 1.1
    return CaptionedFigure(
        name="convergence-special",
        caption="Two cases apart. Left: w stands at its limit, so g(t) = 0, and v still takes its time. Right: w "
        "converges like 1 / round, and v follows it. The gap and the paper's bound on it are those of the client that "
        "crosses it first.",
        figure={"data": data, "layout": layout},
    )


def _curve(
    points: Sequence[Sequence[float]], name: str, style: Style, *, dash: str, legend: bool = True
) -> dict[str, Any]:
    kept = [(x, y) for x, y in points if y > 0]
    return {
        "type": "scatter", "mode": "lines", "name": name, "showlegend": legend, "legendgroup": name.split(":")[0],
        "x": [x for x, _ in kept], "y": [y for _, y in kept],
        "line": {"color": style.color, "dash": dash, "width": 2 if dash == "solid" else 1.5},
        "hovertemplate": "%{x}: %{y:.2e}<extra>%{fullData.name}</extra>",
    }  # fmt: skip


def _layout(across: str, up: str, low: float, **extra: Any) -> dict[str, Any]:
    return {
        "height": 400, "margin": {"l": 60, "r": 12, "t": 12, "b": 44}, "hovermode": "closest",
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "xanchor": "left"},
        "xaxis": {"title": {"text": across}},
        "yaxis": {"title": {"text": up}, "type": "log", "range": [low, 1.5], "exponentformat": "power", "dtick": 2},
    } | extra  # fmt: skip
