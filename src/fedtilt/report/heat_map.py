"""The heat map of the report: the score in every class or group of every client."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedtilt.data.groups import in_words
from fedtilt.evaluation.metrics import ACCURACY, scores_of
from fedtilt.report.figure import Figure, capitalise, figure_layout, plotly_text, round4
from fedtilt.report.run_reader import Run, SeedRun

MAX_CLIENTS = 120
MAX_CLASSES = 60


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
                    "z": _cells(total, lambda k, i, values=values: round4(values[k, i])),
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
        100.0 if score.unit == "%" else max((z for trace in data for row in trace["z"] for z in row if z), default=1)
    )
    layout["coloraxis"] = {"cmin": 0, "cmax": largest, "reversescale": not score.higher_is_better, "colorbar": bar}
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


def _cells(total: Tensor, value: Callable[..., Any], empty: Any = None) -> list[list[Any]]:
    """`value(k, i)` for every class and client with data, else `empty`."""
    has_data = (total > 0).tolist()
    return [[value(k, i) if cell else empty for i, cell in enumerate(row)] for k, row in enumerate(has_data)]


def _axis_labels(names: Sequence[str]) -> list[str]:
    """Names as labels of an axis; names that are equal once cut get a number."""
    labels = [plotly_text(name, 18) for name in names]
    return [label if labels.count(label) == 1 else f"{label} ({i})" for i, label in enumerate(labels)]
