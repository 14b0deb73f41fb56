"""Figures as plain plotly JSON, each with its data as rows; the page adds the colours of text and grid."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from fedtilt.data.groups import in_words
from fedtilt.evaluation.metrics import client_scores
from fedtilt.evaluation.scores import ACCURACY, scores_of
from fedtilt.report.compare import Metric, SeedValues, best_methods, metrics_of
from fedtilt.report.run_reader import Run, SeedRun
from fedtilt.report.style import Style, plotly_text

MAX_METHODS = 8  # the best, in every figure
MAX_BANDS = 6  # with more methods, the bands cover each other
MAX_POINTS = 1000  # clients per method among the sorted clients
MAX_CLIENTS = 120  # in the heat map
MAX_CLASSES = 60  # in the heat map
BINS = 20  # of the histogram


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A plotly figure, and its data as rows of a CSV file."""

    name: str
    title: str
    note: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    selectors: dict[str, list[str]] = field(default_factory=dict)  # key in a trace's meta → choices


def build_figures(run: Run, styles: dict[str, Style]) -> dict[str, list[Figure]]:
    """Section → its figures."""
    methods = best_methods(run, MAX_METHODS)
    return {
        "curves": [learning_curve(run, methods, styles, metric) for metric in metrics_of(run)[:3]],
        "clients": [sorted_clients(run, methods, styles), histogram(run, methods, styles)],
        "classes": [heat_map(run, methods)],
    }


# -- learning curves ---------------------------------------------------------------------------------------------------


def learning_curve(run: Run, methods: Sequence[str], styles: dict[str, Style], metric: Metric) -> Figure:
    """One metric of the evaluated models over rounds: the mean over seeds with a band of one standard deviation."""
    data: list[dict[str, Any]] = []
    rows: list[tuple[Any, ...]] = []
    for i, method in enumerate(methods):
        by_round: dict[int, list[float]] = {}
        for seed_run in run.seed_runs:
            for number, summary in seed_run.history[method]:
                by_round.setdefault(number, []).append(metric.value(summary.evaluated))
        points = [(number, SeedValues(tuple(by_round[number]))) for number in sorted(by_round)]
        rows += [(method, number, values.mean, values.std, len(values.values)) for number, values in points]
        band = [(number, values.mean, values.std) for number, values in points if values.std is not None]
        style = styles[method]
        if band and len(methods) <= MAX_BANDS:
            data.append(_band(method, style, band, 100.0 if metric.unit == "%" else float("inf")))
        data.append(
            {
                "type": "scatter", "mode": "lines+markers" if len(points) <= 30 else "lines",
                "name": plotly_text(method), "legendgroup": plotly_text(method), "meta": {"method": method},
                "zorder": len(methods) - i,  # dots and dashes are on top: a line below them stays visible
                "x": [number for number, _ in points], "y": [_round4(values.mean) for _, values in points],
                "line": {"color": style.color, "dash": style.dash, "width": 2},
                "marker": {"color": style.color, "symbol": style.symbol, "size": 5},
                "hovertemplate": "round %{x}: %{y:.2f}<extra>%{fullData.name}</extra>",
            }
        )  # fmt: skip
    y_title = {"text": f"{metric.title} ({metric.unit})" if metric.unit else metric.title}
    layout = figure_layout(310, methods, xaxis={"title": {"text": "round"}}, yaxis={"title": y_title})
    layout["yaxis"] |= {} if metric.higher_is_better else {"rangemode": "tozero"}
    is_score = metric.key == run.score.name
    better = "higher is better" if metric.higher_is_better else f"lower is {'better' if is_score else 'fairer'}"
    bands = "; band: ± one standard deviation over seeds" if any("band" in trace["meta"] for trace in data) else ""
    return Figure(
        name=f"curve-{metric.key}", title=_capitalise(metric.title),
        note=f"{_capitalise(metric.description)}; {better}{bands}.", data=data, layout=layout,
        columns=("method", "round", metric.key, "std_over_seeds", "seeds"), rows=rows,
    )  # fmt: skip


def _band(method: str, style: Style, points: list[tuple[int, float, float]], most: float) -> dict[str, Any]:
    low = [(x, max(0.0, mean - std)) for x, mean, std in points]
    high = [(x, min(most, mean + std)) for x, mean, std in points]
    outline = high + low[::-1]
    return {
        "type": "scatter", "mode": "lines", "fill": "toself", "fillcolor": style.faint(0.14), "line": {"width": 0},
        "x": [x for x, _ in outline], "y": [_round4(y) for _, y in outline], "hoverinfo": "skip", "showlegend": False,
        "legendgroup": plotly_text(method), "name": plotly_text(method), "meta": {"band": method},
    }  # fmt: skip


# -- clients -----------------------------------------------------------------------------------------------------------


def sorted_clients(run: Run, methods: Sequence[str], styles: dict[str, Style]) -> Figure:
    """The score of every client under every method, from the lowest to the highest, all seeds together."""
    data, rows, sampled, score = [], [], False, run.score
    unit, title = f" {score.unit}".rstrip(), score.title
    mark_outliers = any(seed_run.some_have_outliers for seed_run in run.compared)
    for method in methods:
        clients = sorted(point for seed_run in run.compared for point in _client_points(seed_run, method))
        indices = _sample_sorted(len(clients))
        sampled |= len(indices) < len(clients)
        points = [(100 * (i + 0.5) / len(clients), *clients[i]) for i in indices]
        rows += [(method, seed, name, share, value, outliers) for share, value, seed, name, outliers in points]
        seed_text = ", seed {}" if len(run.compared) > 1 else ""
        symbol = styles[method].symbol
        symbols = [f"{symbol}-open" if outliers else symbol for *_, outliers in points]
        data.append(
            {
                "type": "scatter", "mode": "lines+markers", "name": plotly_text(method), "meta": {"method": method},
                "x": [_round4(share) for share, *_ in points], "y": [_round4(value) for _, value, *_ in points],
                "text": [f"client {plotly_text(name)}{seed_text.format(seed)}" for _, _, seed, name, _ in points],
                "line": {"color": styles[method].faint(0.45), "width": 1},
                "marker": {
                    "color": styles[method].color, "size": 7 if len(points) < 80 else 4,
                    "symbol": symbols if mark_outliers else symbol,
                },
                "hovertemplate": "%{text}: %{y:.1f}" + f"{unit}<extra>%{{fullData.name}}</extra>",
            }
        )  # fmt: skip
    fair = "high" if score.higher_is_better else "low"
    note = f"One mark per client, from the lowest {title} to the highest; flat and {fair} is fair."
    note += " Open marks: clients with outliers." if mark_outliers else ""
    note += f" Shows {MAX_POINTS:,} clients per method: the worst, the best and a sample." if sampled else ""
    x_axis = {"title": {"text": "share of clients (%)"}, "range": [-2, 102]}
    y_axis = {"title": {"text": f"{title} ({score.unit})" if unit else title}}
    layout = figure_layout(_clients_height(methods), xaxis=x_axis, yaxis=y_axis)
    return Figure(
        name="clients", title=f"{_capitalise(title)} of every client, sorted", note=note, data=data, layout=layout,
        columns=("method", "seed", "client", "share_of_clients", score.name, "has_outliers"), rows=rows,
    )  # fmt: skip


def _clients_height(methods: Sequence[str]) -> int:
    """Both figures about clients are as tall as the histogram."""
    return max(370, 100 + 60 * len(methods))


def _client_points(seed_run: SeedRun, method: str) -> list[tuple[float, int, str, bool | None]]:
    """(score, seed, name, has outliers) of every client with test data."""
    clients = (seed_run.total.sum(1) > 0).nonzero().flatten().tolist()
    values = client_scores(seed_run.sums(method), seed_run.total).tolist()
    has_outliers = [None] * len(seed_run.total) if seed_run.has_outliers is None else seed_run.has_outliers.tolist()
    return [
        (a, seed_run.seed, seed_run.client_names[client], has_outliers[client])
        for client, a in zip(clients, values, strict=True)
    ]


def _sample_sorted(count: int) -> list[int]:
    """Indices into many sorted points: the lowest fifth, the highest twentieth, and an even sample between."""
    if count <= MAX_POINTS:
        return list(range(count))
    low, high = MAX_POINTS // 5, MAX_POINTS // 20
    between = torch.linspace(low, count - high - 1, MAX_POINTS - low - high).round().long().tolist()
    return sorted({*range(low), *between, *range(count - high, count)})


def histogram(run: Run, methods: Sequence[str], styles: dict[str, Style]) -> Figure:
    """The share of clients per bin of the score, one subplot per method."""
    score = run.score
    values = {m: torch.cat([client_scores(s.sums(m), s.total) for s in run.compared]) for m in methods}
    largest = 100.0 if score is ACCURACY else float(f"{1.05 * max(float(v.max()) for v in values.values()):.2g}") or 1.0
    width, unit = largest / BINS, f" {score.unit}".rstrip()
    edges = [int(e) if e.is_integer() else e for e in (float(f"{width * k:.6g}") for k in range(BINS + 1))]
    axes = ["y", *(f"y{i}" for i in range(2, len(methods) + 1))]
    layout = figure_layout(_clients_height(methods), showlegend=False, bargap=0.08, annotations=[])
    layout["grid"] = {"rows": len(methods), "columns": 1, "subplots": [[f"x{axis}"] for axis in axes], "ygap": 0.2}
    about = f"{score.title} of a client ({score.unit})" if unit else f"{score.title} of a client"
    layout["xaxis"] = {"range": [0, 1.005 * largest], "title": {"text": about}}
    data, rows = [], []
    for method, axis in zip(methods, axes, strict=True):
        bins = (values[method] / width).floor().long().clamp(max=BINS - 1)  # 100 % belongs to the last bin
        count = torch.bincount(bins, minlength=BINS)
        share = (100 * count / len(values[method])).tolist()
        rows += [(method, edges[b], edges[b + 1], int(count[b]), share[b]) for b in range(BINS)]
        data.append(
            {
                "type": "bar", "name": plotly_text(method), "meta": {"method": method}, "yaxis": axis, "xaxis": "x",
                "x": [_round4(edge + width / 2) for edge in edges[:-1]], "y": [_round4(s) for s in share],
                "width": width * 0.92, "marker": {"color": styles[method].color},
                "text": [f"{low:g} to {high:g}{unit}" for low, high in pairwise(edges)],
                "textposition": "none", "customdata": count.tolist(),
                "hovertemplate": "%{text}: %{customdata} clients, %{y:.0f} %<extra>%{fullData.name}</extra>",
            }
        )  # fmt: skip
        layout[f"yaxis{axis[1:]}"] = {"range": [0, 100], "tickvals": [0, 50, 100]}
        layout["annotations"].append(
            {
                "text": plotly_text(method), "showarrow": False, "font": {"color": styles[method].color, "size": 13},
                "x": 0.01, "xref": "x domain", "xanchor": "left", "y": 1, "yref": f"{axis} domain", "yanchor": "top",
            }
        )  # fmt: skip
    return Figure(
        name="histogram", title=f"Clients by {score.title}", data=data, layout=layout, rows=rows,
        note=f"Share of clients (%) per bin of {width:g} {score.spread_unit}".rstrip() + f" of {score.title}.",
        columns=("method", f"{score.name}_from", f"{score.name}_to", "clients", "share"),
    )  # fmt: skip


# -- classes by clients ------------------------------------------------------------------------------------------------


def heat_map(run: Run, methods: Sequence[str]) -> Figure:
    """The score in every class or group of every client, one method and seed at a time."""
    data: list[dict[str, Any]] = []
    rows: list[tuple[Any, ...]] = []
    score, group, unit = run.score, run.group, f" {run.score.unit}".rstrip()
    high, low = ("Blue", "orange") if score.higher_is_better else ("Orange", "blue")
    notes = [f"{high}: high {score.title}, {low}: low {score.title}, blank: no test data of that {group}."]
    for seed_run in run.compared:
        client_names, class_names = seed_run.client_names, seed_run.class_names
        clients = _sample_worst(seed_run, methods, 1, MAX_CLIENTS)
        labels = _sample_worst(seed_run, methods, 0, MAX_CLASSES)
        for what, sample, count in (
            ("clients", clients, len(client_names)),
            (in_words(group), labels, len(class_names)),
        ):
            if len(sample) < count:
                notes.append(f"Shows {len(sample)} of {count:,} {what}: the {len(sample) // 2} worst and a sample.")
        x, y = _axis_labels([client_names[i] for i in clients]), _axis_labels([class_names[k] for k in labels])
        total = seed_run.total[clients][:, labels].T  # (classes, clients)
        for method in methods:
            sums = seed_run.sums(method)[clients][:, labels].transpose(0, 1)
            values = score.values(sums, total.clamp(min=1))
            rows += [
                (method, seed_run.seed, client_names[clients[i]], class_names[labels[k]],
                 *([int(sums[k, i])] if score is ACCURACY else []), int(total[k, i]), float(values[k, i]))
                for k, i in (total > 0).nonzero().tolist()
            ]  # fmt: skip
            data.append(
                {
                    "type": "heatmap", "name": plotly_text(method),
                    "meta": {"method": method, "seed": str(seed_run.seed)},
                    "visible": not data, "x": x, "y": y, "coloraxis": "coloraxis", "xgap": 1, "ygap": 1,
                    "z": _cells(total, lambda k, i, values=values: _round4(values[k, i])),
                    "text": _cells(
                        total, lambda k, i, sums=sums, n=total:
                        f"{sums[k, i]} of {n[k, i]}" if score is ACCURACY else f"{n[k, i]} samples", "",
                    ),
                    "hoverongaps": False,
                    "hovertemplate": f"client %{{x}}, {plotly_text(group)} %{{y}}: %{{z:.1f}}{unit} (%{{text}})"
                    "<extra>%{fullData.name}</extra>",
                }
            )  # fmt: skip
    class_count = max(len(trace["y"]) for trace in data)
    label_height = 5 * max(len(name) for trace in data for name in trace["x"])  # long client names are slanted
    layout = figure_layout(
        120 + label_height + min(max(class_count, 4) * 24, 640),
        xaxis={"type": "category", "title": {"text": "client"}, "nticks": 25},
        yaxis={"type": "category", "title": {"text": plotly_text(group)}, "autorange": "reversed"},
    )
    bar = {"thickness": 10, "outlinewidth": 0, "ticksuffix": unit}
    largest = (
        100.0 if score is ACCURACY else max((z for trace in data for row in trace["z"] for z in row if z), default=1)
    )
    layout["coloraxis"] = {"cmin": 0, "cmax": largest, "reversescale": not score.higher_is_better, "colorbar": bar}
    selectors = {"method": list(methods), "seed": [str(seed_run.seed) for seed_run in run.compared]}
    return Figure(
        name="classes", title=f"{_capitalise(score.title)} by {group} and client", note=" ".join(dict.fromkeys(notes)),
        data=data, layout=layout, rows=rows,
        columns=("method", "seed", "client", group, *(["correct"] * (score is ACCURACY)), "samples", score.name),
        selectors={key: choices for key, choices in selectors.items() if len(choices) > 1},
    )  # fmt: skip


def _sample_worst(seed_run: SeedRun, methods: Sequence[str], dim: int, limit: int) -> list[int]:
    """Clients (`dim` 1 is summed) or classes (`dim` 0) with data: all, or `limit`, half the worst, half a sample."""
    total = seed_run.total.sum(dim)
    present = (total > 0).nonzero().flatten()
    if len(present) <= limit:
        return [int(i) for i in present]
    sums = torch.stack([seed_run.sums(method).sum(dim)[present] for method in methods])
    score = scores_of(sums)[0]
    worst = score.worst(score.values(sums, total[present].expand(len(methods), -1)), 0)
    order = worst.argsort(stable=True, descending=not score.higher_is_better)
    rest = order[limit // 2 :]
    sample = rest[torch.linspace(0, len(rest) - 1, limit - limit // 2).round().long()]
    return sorted(int(present[i]) for i in torch.cat([order[: limit // 2], sample]).unique())


def _cells(total: Tensor, value: Callable[..., Any], empty: Any = None) -> list[list[Any]]:
    """`value(k, i)` for every class and client with data, else `empty`."""
    has_data = (total > 0).tolist()
    return [[value(k, i) if cell else empty for i, cell in enumerate(row)] for k, row in enumerate(has_data)]


def _axis_labels(names: Sequence[str]) -> list[str]:
    """Names as labels of an axis; names that are equal once cut get a number."""
    labels = [plotly_text(name, 18) for name in names]
    return [label if labels.count(label) == 1 else f"{label} ({i})" for i, label in enumerate(labels)]


def _capitalise(text: str) -> str:
    return text[0].upper() + text[1:]


def _round4(value: Any) -> float:
    """Four decimals are enough for a figure and keep the page small."""
    return round(float(value), 4)


def figure_layout(height: int, legend_names: Sequence[str] = (), **layout: Any) -> dict[str, Any]:
    """A layout of that height, taller if the legend needs several rows on a narrow page."""
    widest = max((7 * len(plotly_text(name)) + 50 for name in legend_names), default=1)
    height += 20 * (len(legend_names) // max(1, 290 // widest))
    margin = {"l": 52, "r": 12, "t": 12, "b": 44}
    legend = {
        "orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "xanchor": "left", "maxheight": 400,
        "tracegroupgap": 0,
    }  # fmt: skip
    return {"height": height, "margin": margin, "legend": legend, "hovermode": "closest"} | layout
