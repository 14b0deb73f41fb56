"""The heat map of the report: the score in every class or group of every client."""

from collections.abc import Sequence
from typing import Any

import torch

from fedtilt.data.groups import in_words
from fedtilt.evaluation.scores import ACCURACY, scores_of
from fedtilt.report.figure import Figure, axis_labels, capitalise, heat, heat_layout, plotly_text, round4
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
        x, y = axis_labels([client_names[i] for i in clients]), axis_labels([class_names[k] for k in labels])
        total = seed_run.total[clients][:, labels].T  # (classes, clients)
        for method in methods:
            sums = seed_run.sums(method)[clients][:, labels].transpose(0, 1)
            values = score.values(sums, total.clamp(min=1))
            z: list[list[float | None]] = [[None] * len(clients) for _ in labels]
            text = [[""] * len(clients) for _ in labels]
            for k, i in (total > 0).nonzero().tolist():
                samples, correct = int(total[k, i]), [int(sums[k, i])] if score is ACCURACY else []
                z[k][i] = round4(values[k, i])
                text[k][i] = f"{correct[0]} of {samples}" if correct else f"{samples} samples"
                names = client_names[clients[i]], class_names[labels[k]]
                rows.append((method, seed_run.seed, *names, *correct, samples, float(values[k, i])))
            hover = f"client %{{x}}, {plotly_text(group)} %{{y}}: %{{z:.1f}}{unit} (%{{text}})"
            meta = {"method": method, "seed": str(seed_run.seed)}
            data.append(heat(method, x, y, z, text, hover, meta=meta, visible=not data, hoverongaps=False))
    class_count = max(len(trace["y"]) for trace in data)
    label_height = 5 * max(len(name) for trace in data for name in trace["x"])  # long client names are slanted
    largest = (
        100.0 if score.unit == "%" else max((z for trace in data for row in trace["z"] for z in row if z), default=1)
    )
    height = 120 + label_height + min(max(class_count, 4) * 24, 640)
    layout = heat_layout(height, "client", plotly_text(group), largest, unit, reversescale=not score.higher_is_better)
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
