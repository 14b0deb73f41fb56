"""Figures of stored predictions: ROC, precision and recall, confusion, and how reliable probabilities are."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedtilt.evaluation.metrics_frame import with_targets
from fedtilt.evaluation.predictions import Predictions
from fedtilt.evaluation.threshold import Threshold
from fedtilt.evaluation.weighted_predictions import PredictedClasses, reliability_curve
from fedtilt.report.figure import Figure, Style, figure_layout, plotly_text, round4

MAX_CLASSES = 25  # of a confusion matrix
_MAX_POINTS = 200  # of a curve
PredictionsBySeed = Mapping[str, Sequence[Predictions]]  # method → one per seed


def decision_figures(
    predictions: PredictionsBySeed, styles: Mapping[str, Style], thresholds: Mapping[str, Threshold]
) -> list[Figure]:
    """The figures of classes; of two classes, ROC and precision–recall of the rarer one come first."""
    first = next(iter(predictions.values()))[0]
    figures = []
    if first.rarer_class is not None:
        figures += [_roc(predictions, styles), _precision_recall(predictions, styles)]
    if len(first.class_names) <= MAX_CLASSES:
        figures.append(_confusion(predictions, thresholds))
    return [*figures, _reliability(predictions, styles)]


def _pooled(by_seed: Sequence[Predictions]) -> PredictedClasses:
    """The samples of all seeds together."""
    samples = [with_targets(p) for p in by_seed]
    labels, probabilities = (
        np.concatenate([getattr(s, part) for s in samples]) for part in ("labels", "probabilities")
    )
    return PredictedClasses(labels, probabilities)


def _cumulated(samples: PredictedClasses, label: int) -> tuple[Any, Any]:
    """Hits and false alarms at every threshold, from the highest; ties go together."""
    score = samples.probabilities[:, label]
    order = np.argsort(-score, kind="stable")
    last = np.append(np.flatnonzero(np.diff(score[order])), len(score) - 1)
    is_class = samples.labels[order] == label
    return np.cumsum(is_class)[last], np.cumsum(~is_class)[last]


def _thinned(count: int) -> Any:
    return np.unique(np.linspace(0, count - 1, min(count, _MAX_POINTS)).round().astype(int))


def _line(method: str, style: Style, points: Any, hover: str) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines", "name": plotly_text(method), "meta": {"method": method},
        "x": [round4(value) for value in points[0]], "y": [round4(value) for value in points[1]],
        "line": {"color": style.color, "dash": style.dash, "width": 2},
        "hovertemplate": f"{hover}<extra>%{{fullData.name}}</extra>",
    }  # fmt: skip


def _dotted(x: list[float], y: list[float]) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines", "x": x, "y": y, "line": {"color": "#7f858d", "width": 1, "dash": "dot"},
        "hoverinfo": "skip", "name": "", "showlegend": False, "meta": {},
    }  # fmt: skip


def _axes(x: str, y: str, names: Sequence[str]) -> dict[str, Any]:
    axes = {"xaxis": x, "yaxis": y}
    return figure_layout(370, names, **{a: {"title": {"text": t}, "range": [0, 102]} for a, t in axes.items()})


def _roc(predictions: PredictionsBySeed, styles: Mapping[str, Style]) -> Figure:
    """The share of the rarer class that is found against the share of false alarms, over all thresholds."""
    first = next(iter(predictions.values()))[0]
    label = first.rarer_class
    assert label is not None
    name, data, rows = first.class_names[label], [_dotted([0, 100], [0, 100])], []
    for method, by_seed in predictions.items():
        hits, alarms = _cumulated(_pooled(by_seed), label)
        points = np.stack(
            [np.append(0, 100 * alarms / max(1, alarms[-1])), np.append(0, 100 * hits / max(1, hits[-1]))]
        )
        points = points[:, _thinned(points.shape[1])]
        rows += [(method, *point) for point in points.T.tolist()]
        data.append(_line(method, styles[method], points, "%{y:.0f} % found, %{x:.0f} % false alarms"))
    return Figure(
        name="roc", title=f"ROC of {name}", rows=rows, columns=("method", "false_positive_rate", "recall"), data=data,
        note=f"Share of {name} that is found against the share of the others that is taken for it; the dotted line is "
        "chance.", layout=_axes("false alarms (%)", "found (%)", list(predictions)),
    )  # fmt: skip


def _precision_recall(predictions: PredictionsBySeed, styles: Mapping[str, Style]) -> Figure:
    """How many of those that are taken for the rarer class are of it, against how many are found."""
    first = next(iter(predictions.values()))[0]
    label = first.rarer_class
    assert label is not None
    name, data, rows, share = first.class_names[label], [], [], 0.0
    for method, by_seed in predictions.items():
        samples = _pooled(by_seed)
        hits, alarms = _cumulated(samples, label)
        share = 100 * float((samples.labels == label).mean())
        points = np.stack([100 * hits / max(1, hits[-1]), 100 * hits / (hits + alarms)])
        points = points[:, _thinned(points.shape[1])]
        rows += [(method, *point) for point in points.T.tolist()]
        data.append(_line(method, styles[method], points, "%{x:.0f} % found, %{y:.0f} % right"))
    return Figure(
        name="precision-recall", title=f"Precision and recall of {name}", rows=rows,
        columns=("method", "recall", "precision"), data=[_dotted([0, 100], [share, share]), *data],
        note=f"Share of the predictions of {name} that are right, against the share that is found; the area is the "
        f"AUPRC. The dotted line is chance: {share:.1f} %.",
        layout=_axes("found (%)", "right (%)", list(predictions)),
    )  # fmt: skip


def _confusion(predictions: PredictionsBySeed, thresholds: Mapping[str, Threshold]) -> Figure:
    """Which class is predicted for the samples of each class, one method at a time."""
    data: list[dict[str, Any]] = []
    rows: list[tuple[Any, ...]] = []
    names = next(iter(predictions.values()))[0].class_names
    labels = [plotly_text(name, 18) for name in names]
    for method, by_seed in predictions.items():
        counts = np.zeros((len(names), len(names)), dtype=int)
        for found in by_seed:
            probabilities = found.probabilities
            threshold = thresholds.get(method)
            predicted = probabilities.argmax(1) if threshold is None else threshold.classes(probabilities, names)
            np.add.at(counts, (found.labels.numpy(), predicted.numpy()), 1)
        shares = 100 * counts / counts.sum(1, keepdims=True).clip(1)
        rows += [(method, names[i], names[j], int(counts[i, j])) for i in range(len(names)) for j in range(len(names))]
        data.append(
            {
                "type": "heatmap", "name": plotly_text(method), "meta": {"method": method}, "visible": not data,
                "x": labels, "y": labels, "z": shares.round(2).tolist(), "coloraxis": "coloraxis", "xgap": 1,
                "ygap": 1, "text": counts.tolist(), "texttemplate": "%{text}",
                "hovertemplate": "%{y}, predicted as %{x}: %{text} samples, %{z:.1f} %<extra>%{fullData.name}</extra>",
            }
        )  # fmt: skip
    layout = figure_layout(
        max(370, 110 + 22 * len(names)),
        xaxis={"type": "category", "title": {"text": "predicted"}, "constrain": "domain"},
        yaxis={"type": "category", "title": {"text": "actual"}, "autorange": "reversed"},
    )
    layout["coloraxis"] = {"cmin": 0, "cmax": 100, "colorbar": {"thickness": 10, "outlinewidth": 0, "ticksuffix": " %"}}
    chosen = " with the threshold that was chosen on validation data" if thresholds else ""
    return Figure(
        name="confusion", title="Confusion", data=data, layout=layout, rows=rows,
        columns=("method", "actual", "predicted", "samples"),
        note=f"Test samples by their class and the predicted one{chosen}; the colour is the share of the class.",
        selectors={"method": list(predictions)} if len(predictions) > 1 else {},
    )  # fmt: skip


def _reliability(predictions: PredictionsBySeed, styles: Mapping[str, Style]) -> Figure:
    """The accuracy of predictions by their confidence, the samples of all seeds together."""
    data: list[dict[str, Any]] = [_dotted([0, 100], [0, 100])]
    rows: list[tuple[Any, ...]] = []
    for method, by_seed in predictions.items():
        curve = reliability_curve(_pooled(by_seed))
        rows += [(method, *found) for found in curve]
        style, confidence = styles[method], [round(100 * found.confidence, 2) for found in curve]
        data.append(
            {
                "type": "scatter", "mode": "lines+markers", "name": plotly_text(method), "meta": {"method": method},
                "x": confidence, "y": [round(100 * found.accuracy, 2) for found in curve],
                "error_y": {
                    "type": "data", "symmetric": False, "thickness": 1, "width": 3, "color": style.faint(0.6),
                    "array": [round(100 * (found.high - found.accuracy), 2) for found in curve],
                    "arrayminus": [round(100 * (found.accuracy - found.low), 2) for found in curve],
                },
                "customdata": [found.samples for found in curve],
                "line": {"color": style.color, "dash": style.dash, "width": 2},
                "marker": {"color": style.color, "symbol": style.symbol, "size": 6},
                "hovertemplate": "confidence %{x:.0f} %: accuracy %{y:.0f} %, %{customdata} samples"
                "<extra>%{fullData.name}</extra>",
            }
        )  # fmt: skip
    layout = _axes("confidence (%)", "accuracy (%)", list(predictions))
    return Figure(
        name="reliability", title="Reliability",
        note="Accuracy of predictions by their confidence, with 95 % intervals; on the dotted line, both are equal.",
        data=data, layout=layout, rows=rows,
        columns=("method", "confidence", "accuracy", "low", "high", "samples"),
    )  # fmt: skip
