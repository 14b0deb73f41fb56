"""The figures of a run: learning curves, clients, classes; the page adds the colours of text and grid."""

from collections.abc import Sequence
from itertools import pairwise
from math import ceil, isinf
from typing import Any

import torch

from fedtilt.data.groups import in_words
from fedtilt.evaluation.results import SeedValues
from fedtilt.evaluation.scores import ACCURACY, client_scores, scores_of
from fedtilt.report import figure as drawing
from fedtilt.report.compare import Metric, best_methods, fairness_metrics, metrics_of, rare_class
from fedtilt.report.figure import Figure, Style, axis, axis_labels, capitalise, figure_layout, line, plotly_text, round4
from fedtilt.report.run_reader import Run, SeedRun
from fedtilt.report.verdict import gains_of

MAX_METHODS = 8  # the best, in every figure
MAX_BANDS = 6  # with more methods, the bands cover each other
MAX_POINTS = 1000  # clients per method among the sorted clients
BINS = 20  # of the histogram
MAX_HEAT_CLIENTS, MAX_HEAT_CLASSES = 120, 60  # in the heat map
GAIN_SYMBOLS = ("circle", "diamond", "square")


def build_figures(run: Run, styles: dict[str, Style]) -> dict[str, list[Figure]]:
    """Section → its figures."""
    methods, metrics = best_methods(run, MAX_METHODS), (metrics_of(run)[0], *fairness_metrics(run))
    return {
        "curves": [learning_curve(run, methods, styles, metric) for metric in metrics],
        "clients": [sorted_clients(run, methods, styles), histogram(run, methods, styles), *who_gains(run, methods)],
        "classes": [heat_map(run, methods)],
    }


def learning_curve(run: Run, methods: Sequence[str], styles: dict[str, Style], metric: Metric) -> Figure:
    """One metric of the evaluated models over rounds: the mean over seeds with a band of one standard deviation."""
    data, rows = list[dict[str, Any]](), list[tuple[Any, ...]]()
    for i, method in enumerate(methods):
        by_round: dict[int, list[float]] = {}
        for seed_run in run.seed_runs:
            for number, summary in seed_run.history[method]:
                by_round.setdefault(number, []).append(metric.value(summary.evaluated))
        points = [(number, SeedValues(tuple(by_round[number]))) for number in sorted(by_round)]
        rows += [(method, number, values.mean, values.std, len(values.values)) for number, values in points]
        band = [(number, values.mean, values.std) for number, values in points if values.std is not None]
        if band and len(methods) <= MAX_BANDS:
            data.append(_band(method, styles[method], band, 100.0 if metric.unit == "%" else float("inf")))
        rounds, means = [number for number, _ in points], [values.mean for _, values in points]
        mode = "lines+markers" if len(points) <= 30 else "lines"
        curve = line(method, styles[method], rounds, means, "round %{x}: %{y:.2f}", mode=mode)
        above = len(methods) - i  # dots and dashes are on top: a line below them stays visible
        data.append(curve | {"legendgroup": plotly_text(method), "zorder": above})
    layout = figure_layout(310, methods, xaxis=axis("round"), yaxis=axis(metric.title, metric.unit))
    if max((number for _, number, *_ in rows), default=0) <= 10:
        layout["xaxis"]["dtick"] = 1  # between a few rounds, Plotly would label halves
    layout["yaxis"] |= {} if metric.higher_is_better else {"rangemode": "tozero"}
    is_score = metric.key == run.score.name
    better = "higher is better" if metric.higher_is_better else f"lower is {'better' if is_score else 'fairer'}"
    bands = "; band: ± one standard deviation over seeds" if any("band" in trace["meta"] for trace in data) else ""
    return Figure(
        name=f"curve-{metric.key}", title=capitalise(metric.title),
        note=f"{capitalise(metric.description)}; {better}{bands}.", data=data, layout=layout,
        columns=("method", "round", metric.key, "std_over_seeds", "seeds"), rows=rows,
    )  # fmt: skip


def _band(method: str, style: Style, points: list[tuple[int, float, float]], most: float) -> dict[str, Any]:
    outline = [(x, min(most, mean + std)) for x, mean, std in points]
    outline += [(x, max(0.0, mean - std)) for x, mean, std in reversed(points)]
    return {
        "type": "scatter", "mode": "lines", "fill": "toself", "fillcolor": style.faint(0.14), "line": {"width": 0},
        "x": [x for x, _ in outline], "y": [round4(y) for _, y in outline], "hoverinfo": "skip", "showlegend": False,
        "legendgroup": plotly_text(method), "name": plotly_text(method), "meta": {"band": method},
    }  # fmt: skip


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
        style = styles[method]
        symbols = [f"{style.symbol}-open" if outliers else style.symbol for *_, outliers in points]
        marker: dict[str, Any] = {"color": style.color, "size": 7 if len(points) < 80 else 4}
        shares, values = ([point[i] for point in points] for i in (0, 1))
        marker["symbol"] = symbols if mark_outliers else style.symbol
        text = [f"client {plotly_text(name)}{seed_text.format(seed)}" for _, _, seed, name, _ in points]
        more = {"text": text, "line": {"color": style.faint(0.45), "width": 1}, "marker": marker}
        hover = f"%{{text}}: %{{y:.1f}}{unit}"
        data.append(line(method, style, shares, values, hover, mode="lines+markers", **more))
    fair = "high" if score.higher_is_better else "low"
    note = f"One mark per client, from the lowest {title} to the highest; flat and {fair} is fair."
    note += " Open marks: clients with outliers." if mark_outliers else ""
    note += f" Shows {MAX_POINTS:,} clients per method: the worst, the best and a sample." if sampled else ""
    x_axis, y_axis = axis("share of clients", "%", range=[-2, 102]), axis(title, score.unit)
    layout = figure_layout(_clients_height(methods), xaxis=x_axis, yaxis=y_axis)
    return Figure(
        name="clients", title=f"{capitalise(title)} of every client, sorted", note=note, data=data, layout=layout,
        columns=("method", "seed", "client", "share_of_clients", score.name, "has_outliers"), rows=rows,
    )  # fmt: skip


def _clients_height(methods: Sequence[str]) -> int:
    """Both figures about clients are as tall as the histogram."""
    return max(370, 100 + 60 * len(methods))


def _client_points(seed_run: SeedRun, method: str) -> list[tuple[float, int, str, bool]]:
    """(score, seed, name, has outliers) of every client with test data."""
    values = client_scores(seed_run.sums(method), seed_run.total).tolist()
    return [
        (a, seed_run.seed, seed_run.client_names[client], bool(seed_run.has_outliers[client]))
        for client, a in zip(seed_run.tested, values, strict=True)
    ]


def _sample_sorted(count: int) -> list[int]:
    """Indices into many sorted points: the lowest fifth, the highest twentieth, and an even sample between."""
    if count <= MAX_POINTS:
        return list(range(count))
    low, high = MAX_POINTS // 5, MAX_POINTS // 20
    between = torch.linspace(low, count - high - 1, MAX_POINTS - low - high).round().long().tolist()
    return sorted({*range(low), *between, *range(count - high, count)})


def who_gains(run: Run, methods: Sequence[str]) -> list[Figure]:
    """The difference of every client to its model alone, and to pooled rows, by the best method; or nothing."""
    stored, best = run.predictions[0], best_methods(run, 1)[0]
    against = [name for name in run.baselines if name in stored and (name == "local" or name.startswith("pooled"))]
    if best not in stored or not against or rare_class(run) is not None:
        return []
    data, rows = [], []
    for name, symbol in zip(against, GAIN_SYMBOLS, strict=False):
        gains = gains_of(run, best, name)
        clients = sorted(gains.clients, key=lambda client: client.difference)
        clients = [clients[i] for i in _sample_sorted(len(clients))]
        rows += [(best, name, *client, client.outcome) for client in clients]
        spans = [  # one error has no interval
            (None, None) if isinf(c.high) else (round4(c.high - c.difference), round4(c.difference - c.low))
            for c in clients
        ]
        data.append(
            {
                "type": "scatter", "mode": "markers", "name": plotly_text(name), "meta": {"against": name},
                "x": [round4(100 * (i + 0.5) / len(clients)) for i in range(len(clients))],
                "y": [round4(c.difference) for c in clients],
                "text": [f"client {plotly_text(c.client)}, {c.samples} samples: {c.outcome}" for c in clients],
                "error_y": {
                    "type": "data", "symmetric": False, "thickness": 1, "width": 0,
                    "array": [up for up, _ in spans], "arrayminus": [down for _, down in spans],
                },
                "marker": {"symbol": symbol, "size": 6},
                "visible": True if name == against[0] else "legendonly",
                "hovertemplate": "%{text}, %{y:.1f}<extra>%{fullData.name}</extra>",
            }
        )  # fmt: skip
    unit = "points" if run.score.unit == "%" else run.score.title
    x_axis, y_axis = axis("share of clients", "%", range=[-2, 102]), axis(f"{plotly_text(best)} minus the other", unit)
    layout = figure_layout(_clients_height(methods), against, xaxis=x_axis, yaxis=y_axis)
    note = (
        f"The difference of every client by {best} to its model alone, and to pooled rows, with a 95 % interval of its "
        "test samples (Bonett and Price); above 0 the client gains. Click a name to show it."
    )
    columns = ("method", "against", "client", "samples", "difference", "low", "high", "outcome")
    return [Figure(name="gains", title="Who gains", note=note, data=data, layout=layout, columns=columns, rows=rows)]


def histogram(run: Run, methods: Sequence[str], styles: dict[str, Style]) -> Figure:
    """The share of clients per bin of the score, one subplot per method."""
    score = run.score
    values = {m: torch.cat([client_scores(s.sums(m), s.total) for s in run.compared]) for m in methods}
    largest = 100.0 if score.unit == "%" else float(f"{1.05 * max(float(v.max()) for v in values.values()):.2g}") or 1.0
    width, unit = largest / BINS, f" {score.unit}".rstrip()
    edges = [int(e) if e.is_integer() else e for e in (float(f"{width * k:.6g}") for k in range(BINS + 1))]
    axes = ["y", *(f"y{i}" for i in range(2, len(methods) + 1))]
    layout = figure_layout(_clients_height(methods), showlegend=False, bargap=0.08, annotations=[])
    layout["grid"] = {"rows": len(methods), "columns": 1, "subplots": [[f"x{name}"] for name in axes], "ygap": 0.2}
    layout["xaxis"] = axis(f"{score.title} of a client", score.unit, range=[0, 1.005 * largest])
    data, rows = [], []
    for method, y_axis in zip(methods, axes, strict=True):
        bins = (values[method] / width).floor().long().clamp(max=BINS - 1)  # 100 % belongs to the last bin
        count = torch.bincount(bins, minlength=BINS)
        share = (100 * count / len(values[method])).tolist()
        rows += [(method, edges[b], edges[b + 1], int(count[b]), share[b]) for b in range(BINS)]
        data.append(
            drawing.trace(
                "bar", method, yaxis=y_axis, xaxis="x", width=width * 0.92, marker={"color": styles[method].color},
                x=[round4(edge + width / 2) for edge in edges[:-1]], y=[round4(s) for s in share],
                text=[f"{low:g} to {high:g}{unit}" for low, high in pairwise(edges)],
                textposition="none", customdata=count.tolist(),
                hovertemplate="%{text}: %{customdata} clients, %{y:.0f} %<extra>%{fullData.name}</extra>",
            )
        )  # fmt: skip
        layout["annotations"].append(
            {
                "text": plotly_text(method), "showarrow": False, "font": {"color": styles[method].color, "size": 13},
                "x": 0.01, "xref": "x domain", "xanchor": "left", "y": 1, "yref": f"{y_axis} domain", "yanchor": "top",
            }
        )  # fmt: skip
    top = 20 * ceil(max(row[-1] for row in rows) / 20)  # of all methods: bars are compared
    layout |= {f"yaxis{name[1:]}": {"range": [0, top], "tickvals": [0, top // 2, top]} for name in axes}
    return Figure(
        name="histogram", title=f"Clients by {score.title}", data=data, layout=layout, rows=rows,
        note=f"Share of clients (%) per bin of {width:g} {score.spread_unit}".rstrip() + f" of {score.title}.",
        columns=("method", f"{score.name}_from", f"{score.name}_to", "clients", "share"),
    )  # fmt: skip


def heat_map(run: Run, methods: Sequence[str]) -> Figure:
    """The score in every class or group of every client, one method and seed at a time."""
    data, rows = list[dict[str, Any]](), list[tuple[Any, ...]]()
    score, group, unit = run.score, run.group, f" {run.score.unit}".rstrip()
    high, low = ("Blue", "orange") if score.higher_is_better else ("Orange", "blue")
    notes = [f"{high}: high {score.title}, {low}: low {score.title}, blank: no test data of that {group}."]
    for seed_run in run.compared:
        client_names, class_names = seed_run.client_names, seed_run.class_names
        clients = _sample_worst(seed_run, methods, 1, MAX_HEAT_CLIENTS)
        labels = _sample_worst(seed_run, methods, 0, MAX_HEAT_CLASSES)
        of_labels = in_words(group), labels, len(class_names)
        for what, sample, count in (("clients", clients, len(client_names)), of_labels):
            if len(sample) < count:
                notes.append(f"Shows {len(sample)} of {count:,} {what}: the {len(sample) // 2} worst and a sample.")
        x, y = axis_labels([client_names[i] for i in clients]), axis_labels([class_names[k] for k in labels])
        total = seed_run.total[clients][:, labels].T  # (classes, clients)
        for method in methods:
            sums = seed_run.sums(method)[clients][:, labels].transpose(0, 1)
            scores = score.values(sums, total.clamp(min=1))
            z: list[list[float | None]] = [[None] * len(clients) for _ in labels]
            text = [[""] * len(clients) for _ in labels]
            for k, i in (total > 0).nonzero().tolist():
                samples, correct = int(total[k, i]), [int(sums[k, i])] if score is ACCURACY else []
                z[k][i] = round4(scores[k, i])
                text[k][i] = f"{correct[0]} of {samples}" if correct else f"{samples} samples"
                names = client_names[clients[i]], class_names[labels[k]]
                rows.append((method, seed_run.seed, *names, *correct, samples, float(scores[k, i])))
            hover = f"client %{{x}}, {plotly_text(group)} %{{y}}: %{{z:.1f}}{unit} (%{{text}})"
            meta = {"method": method, "seed": str(seed_run.seed)}
            data.append(drawing.heat(method, x, y, z, text, hover, meta=meta, visible=not data, hoverongaps=False))
    class_count = max(len(trace["y"]) for trace in data)
    label_height = 5 * max(len(name) for trace in data for name in trace["x"])  # long client names are slanted
    values = [z for trace in data for row in trace["z"] for z in row if z]
    largest = 100.0 if score.unit == "%" else max(values, default=1)
    height = 120 + label_height + min(max(class_count, 4) * 24, 640)
    scale = {"reversescale": not score.higher_is_better}
    layout = drawing.heat_layout(height, "client", plotly_text(group), largest, unit, **scale)
    selectors = {"method": list(methods), "seed": [str(seed_run.seed) for seed_run in run.compared]}
    return Figure(
        name="classes", title=f"{capitalise(score.title)} by {group} and client", note=" ".join(dict.fromkeys(notes)),
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
