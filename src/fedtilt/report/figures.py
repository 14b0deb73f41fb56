"""Figures as plotly's plain JSON, each with the rows it shows; colours of text and grid are the page's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedtilt.evaluation.metrics import client_accuracy
from fedtilt.report.compare import ACCURACY, CLASS_FAIRNESS, CLIENT_FAIRNESS, Metric, SeedValues, leading
from fedtilt.report.run_reader import Part, Run
from fedtilt.report.style import Style, shown

POINTS = 1000  # of one method in the strip, beyond which it is thinned out
CLIENTS = 120  # in the heat map
CLASSES = 60
BIN = 5  # points of accuracy
METHODS = 8  # in any figure: the most accurate
BANDS = 6  # methods beyond which bands only cover each other


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What plotly draws, and the same as rows of a CSV file."""

    name: str
    title: str
    note: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    selectors: dict[str, list[str]] = field(default_factory=dict)  # key in a trace's meta → choices


def figures(run: Run, look: dict[str, Style]) -> dict[str, list[Figure]]:
    """Section → its figures."""
    methods = leading(run, METHODS)
    return {
        "curves": [curve(run, methods, look, metric) for metric in (ACCURACY, CLIENT_FAIRNESS, CLASS_FAIRNESS)],
        "clients": [strip(run, methods, look), histogram(run, methods, look)],
        "cells": [heat_map(run, methods)],
    }


# -- learning curves ---------------------------------------------------------------------------------------------------


def curve(run: Run, methods: Sequence[str], look: dict[str, Style], metric: Metric) -> Figure:
    """One metric of the judged models over rounds: the mean of the seeds, and a band of one std around it."""
    data: list[dict[str, Any]] = []
    rows: list[tuple[Any, ...]] = []
    for i, method in enumerate(methods):
        by_round: dict[int, list[float]] = {}
        for part in run.parts:
            for number, summary in part.history[method]:
                by_round.setdefault(number, []).append(metric.of(summary.evaluated))
        points = [(number, SeedValues(tuple(by_round[number]))) for number in sorted(by_round)]
        rows += [(method, number, cell.mean, cell.std, len(cell.values)) for number, cell in points]
        banded = [(number, cell.mean, cell.std) for number, cell in points if cell.std is not None]
        if banded and len(methods) <= BANDS:
            data.append(_band(method, look[method], banded))
        data.append(
            {
                "type": "scatter", "mode": "lines+markers" if len(points) <= 30 else "lines",
                "name": shown(method), "legendgroup": shown(method), "meta": {"method": method},
                "zorder": len(methods) - i,  # the first has dots and dashes: on top, what lies under them is seen
                "x": [number for number, _ in points], "y": [_fine(cell.mean) for _, cell in points],
                "line": {"color": look[method].color, "dash": look[method].dash, "width": 2},
                "marker": {"color": look[method].color, "symbol": look[method].symbol, "size": 5},
                "hovertemplate": "round %{x}: %{y:.2f}<extra>%{fullData.name}</extra>",
            }
        )  # fmt: skip
    axis = f"{metric.title} ({'%' if metric.higher_is_better else 'points'})"
    layout = _layout(310, methods, xaxis={"title": {"text": "round"}}, yaxis={"title": {"text": axis}})
    layout["yaxis"] |= {} if metric.higher_is_better else {"rangemode": "tozero"}
    better = "higher is better" if metric.higher_is_better else "lower is fairer"
    band = "; band: ± one standard deviation over seeds" if any("band" in trace["meta"] for trace in data) else ""
    return Figure(
        name=f"curve-{metric.key}", title=f"{metric.title[0].upper()}{metric.title[1:]}",
        note=f"{metric.meaning[0].upper()}{metric.meaning[1:]}; {better}{band}.", data=data, layout=layout,
        columns=("method", "round", metric.key, "std_over_seeds", "seeds"), rows=rows,
    )  # fmt: skip


def _band(method: str, style: Style, points: list[tuple[int, float, float]]) -> dict[str, Any]:
    low = [(x, max(0.0, mean - std)) for x, mean, std in points]
    high = [(x, min(100.0, mean + std)) for x, mean, std in points]
    outline = high + low[::-1]
    return {
        "type": "scatter", "mode": "lines", "fill": "toself", "fillcolor": style.faint(0.14), "line": {"width": 0},
        "x": [x for x, _ in outline], "y": [_fine(y) for _, y in outline], "hoverinfo": "skip", "showlegend": False,
        "legendgroup": shown(method), "name": shown(method), "meta": {"band": method},
    }  # fmt: skip


# -- clients -----------------------------------------------------------------------------------------------------------


def strip(run: Run, methods: Sequence[str], look: dict[str, Style]) -> Figure:
    """Every client's accuracy under every method, from the worst client to the best, all seeds together."""
    data, rows, thinned = [], [], False
    marked = any(
        part.has_outliers is not None and 0 < int(part.has_outliers.sum()) < len(part.total) for part in run.compared
    )
    for method in methods:
        clients = sorted(entry for part in run.compared for entry in _clients(part, method))
        kept = _thinned(len(clients))
        thinned |= len(kept) < len(clients)
        entries = [(100 * (i + 0.5) / len(clients), *clients[i]) for i in kept]
        rows += [(method, seed, name, share, accuracy, harm) for share, accuracy, seed, name, harm in entries]
        symbol = look[method].symbol
        where = [f"client {shown(e[3])}{f', seed {e[2]}' if len(run.compared) > 1 else ''}" for e in entries]
        data.append(
            {
                "type": "scatter", "mode": "lines+markers", "name": shown(method), "meta": {"method": method},
                "x": [_fine(e[0]) for e in entries], "y": [_fine(e[1]) for e in entries], "text": where,
                "line": {"color": look[method].faint(0.45), "width": 1},
                "marker": {
                    "color": look[method].color, "size": 7 if len(entries) < 80 else 4,
                    "symbol": [f"{symbol}-open" if marked and e[4] else symbol for e in entries] if marked else symbol,
                },
                "hovertemplate": "%{text}: %{y:.1f} %<extra>%{fullData.name}</extra>",
            }
        )  # fmt: skip
    note = "Every mark is a client, from the one served worst to the one served best; flat and high is fair."
    note += " Open marks carry outliers." if marked else ""
    note += f" The worst, the best and a sample, {POINTS:,} of a method, are shown." if thinned else ""
    across = {"title": {"text": "share of clients (%)"}, "range": [-2, 102]}
    layout = _layout(_clients_height(methods), xaxis=across, yaxis={"title": {"text": "accuracy (%)"}})
    return Figure(
        name="clients", title="Accuracy of every client, sorted", note=note, data=data, layout=layout,
        columns=("method", "seed", "client", "share_of_clients", "accuracy", "carries_outliers"), rows=rows,
    )  # fmt: skip


def _clients_height(methods: Sequence[str]) -> int:
    """Both figures about clients are as tall as the histogram needs."""
    return max(370, 100 + 60 * len(methods))


def _clients(part: Part, method: str) -> list[tuple[float, int, str, bool | None]]:
    """(accuracy, seed, name, carries outliers) of every client with test data."""
    held = (part.total.sum(1) > 0).nonzero().flatten().tolist()
    accuracy = client_accuracy(part.correct(method), part.total).tolist()
    harmed = None if part.has_outliers is None else part.has_outliers.tolist()
    return [
        (a, part.seed, part.client_names[i], None if harmed is None else harmed[i])
        for i, a in zip(held, accuracy, strict=True)
    ]


def _thinned(count: int) -> list[int]:
    """Which of many sorted points to show: the worst fifth, the best twentieth, and evenly from between."""
    if count <= POINTS:
        return list(range(count))
    low, high = POINTS // 5, POINTS // 20
    between = torch.linspace(low, count - high - 1, POINTS - low - high).round().long().tolist()
    return sorted({*range(low), *between, *range(count - high, count)})


def histogram(run: Run, methods: Sequence[str], look: dict[str, Style]) -> Figure:
    """How many clients reach which accuracy, one row per method."""
    edges = torch.arange(0, 101, BIN)
    data, rows = [], []
    layout = _layout(_clients_height(methods), showlegend=False, bargap=0.08, annotations=[])
    height = 1 / len(methods)
    for i, method in enumerate(methods):
        accuracy = torch.cat([client_accuracy(part.correct(method), part.total) for part in run.compared])
        cell = (accuracy / BIN).floor().long().clamp(max=len(edges) - 2)  # 100 % belongs to the last
        count = torch.bincount(cell, minlength=len(edges) - 1)
        share = (100 * count / len(accuracy)).tolist()
        rows += [(method, int(edges[b]), int(edges[b + 1]), int(count[b]), share[b]) for b in range(len(count))]
        axis = "" if i == 0 else str(i + 1)
        top = 1 - i * height
        data.append(
            {
                "type": "bar", "name": shown(method), "meta": {"method": method}, "yaxis": f"y{axis}", "xaxis": "x",
                "x": (edges[:-1] + BIN / 2).tolist(), "y": [_fine(s) for s in share], "width": BIN * 0.92,
                "marker": {"color": look[method].color}, "text": [f"{e} to {e + BIN} %" for e in edges[:-1].tolist()],
                "textposition": "none", "customdata": count.tolist(),
                "hovertemplate": "%{text}: %{customdata} clients, %{y:.0f} %<extra>%{fullData.name}</extra>",
            }
        )  # fmt: skip
        layout[f"yaxis{axis}"] = {"domain": [top - height * 0.82, top], "range": [0, 100], "tickvals": [0, 50, 100]}
        layout["annotations"].append(
            {
                "text": shown(method), "showarrow": False, "font": {"color": look[method].color, "size": 13},
                "x": 0.01, "xref": "paper", "xanchor": "left", "y": top, "yref": "paper", "yanchor": "top",
            }
        )  # fmt: skip
    last = "" if len(methods) == 1 else str(len(methods))
    layout["xaxis"] = {"range": [0, 100.5], "title": {"text": "accuracy of a client (%)"}, "anchor": f"y{last}"}
    return Figure(
        name="histogram", title="How many clients reach what", data=data, layout=layout, rows=rows,
        note=f"Share of the clients (%) in steps of {BIN} points of accuracy.",
        columns=("method", "accuracy_from", "accuracy_to", "clients", "share"),
    )  # fmt: skip


# -- classes by clients ------------------------------------------------------------------------------------------------


def heat_map(run: Run, methods: Sequence[str]) -> Figure:
    """Accuracy in every class of every client, one method and seed at a time."""
    data: list[dict[str, Any]] = []
    rows: list[tuple[Any, ...]] = []
    notes = ["Blue is right, orange is wrong, blank: the client has no test data of that class."]
    for part in run.compared:
        clients = _limited(part, methods, 1, CLIENTS)
        labels = _limited(part, methods, 0, CLASSES)
        for what, kept, all_of in (("clients", clients, len(part.total)), ("classes", labels, part.total.shape[1])):
            if len(kept) < all_of:
                notes.append(f"Of {all_of:,} {what} the {len(kept) // 2} served worst and an even sample are shown.")
        x, y = _unique([part.client_names[i] for i in clients]), _unique([part.class_names[k] for k in labels])
        total = part.total[clients][:, labels].T  # (classes, clients)
        for method in methods:
            right = part.correct(method)[clients][:, labels].T
            share = 100 * right.double() / total.clamp(min=1).double()
            rows += [
                (method, part.seed, part.client_names[clients[i]], part.class_names[labels[k]], int(right[k, i]),
                 int(total[k, i]), float(share[k, i])) for k, i in (total > 0).nonzero().tolist()
            ]  # fmt: skip
            data.append(
                {
                    "type": "heatmap", "name": shown(method), "meta": {"method": method, "seed": str(part.seed)},
                    "visible": not data, "x": x, "y": y, "coloraxis": "coloraxis", "xgap": 1, "ygap": 1,
                    "z": _grid(total, lambda k, i, share=share: _fine(share[k, i])),
                    "text": _grid(total, lambda k, i, right=right, n=total: f"{right[k, i]} of {n[k, i]}", ""),
                    "hoverongaps": False,
                    "hovertemplate": "client %{x}, class %{y}: %{z:.1f} % (%{text})<extra>%{fullData.name}</extra>",
                }
            )  # fmt: skip
    tall = max(len(trace["y"]) for trace in data)
    slanted = 5 * max(len(name) for trace in data for name in trace["x"])  # names of clients stand under the map
    layout = _layout(120 + slanted + min(max(tall, 4) * 24, 640),
                     xaxis={"type": "category", "title": {"text": "client"}, "nticks": 25},
                     yaxis={"type": "category", "title": {"text": "class"}, "autorange": "reversed"})  # fmt: skip
    layout["coloraxis"] = {"cmin": 0, "cmax": 100, "colorbar": {"thickness": 10, "outlinewidth": 0, "ticksuffix": " %"}}
    selectors = {"method": list(methods), "seed": [str(part.seed) for part in run.compared]}
    return Figure(
        name="cells", title="Class by client", note=" ".join(dict.fromkeys(notes)), data=data, layout=layout, rows=rows,
        columns=("method", "seed", "client", "class", "correct", "samples", "accuracy"),
        selectors={key: choices for key, choices in selectors.items() if len(choices) > 1},
    )  # fmt: skip


def _limited(part: Part, methods: Sequence[str], dim: int, limit: int) -> list[int]:
    """Which clients (dim 1 summed away) or classes (dim 0): all, or half of the limit the worst, half a sample."""
    total = part.total.sum(dim)
    held = (total > 0).nonzero().flatten()
    if len(held) <= limit:
        return [int(i) for i in held]
    lowest = torch.stack([part.correct(m).sum(dim)[held].double() / total[held].double() for m in methods]).amin(0)
    order = lowest.argsort(stable=True)
    rest = order[limit // 2 :]
    sample = rest[torch.linspace(0, len(rest) - 1, limit - limit // 2).round().long()]
    return sorted(int(held[i]) for i in torch.cat([order[: limit // 2], sample]).unique())


def _grid(total: Tensor, of: Callable[..., Any], empty: Any = None) -> list[list[Any]]:
    held = (total > 0).tolist()
    return [[of(k, i) if held[k][i] else empty for i in range(total.shape[1])] for k in range(total.shape[0])]


def _unique(names: Sequence[str]) -> list[str]:
    """Names as labels of an axis; those that look alike once cut are told apart by their number."""
    cut = [shown(name, 18) for name in names]
    return [label if cut.count(label) == 1 else f"{label} ({i})" for i, label in enumerate(cut)]


def _fine(value: Any) -> float:
    """Enough digits for a figure."""
    return round(float(value), 4)


def _layout(height: int, legend_of: Sequence[str] = (), **parts: Any) -> dict[str, Any]:
    """A layout of that height, and more where a legend has several rows on a narrow page."""
    widest = max((7 * len(shown(name)) + 50 for name in legend_of), default=1)
    height += 20 * (len(legend_of) // max(1, 290 // widest))
    margin = {"l": 52, "r": 12, "t": 12, "b": 44}
    legend = {
        "orientation": "h",
        "x": 0,
        "y": 1.02,
        "yanchor": "bottom",
        "xanchor": "left",
        "maxheight": 400,
        "tracegroupgap": 0,
    }
    return {"height": height, "margin": margin, "legend": legend, "hovermode": "closest"} | parts
