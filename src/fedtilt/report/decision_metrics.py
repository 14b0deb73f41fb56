"""Decision metrics of a run, and their figures: ROC, precision and recall, confusion, reliability."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedtilt.evaluation.decision_metrics import METRICS, OVERALL_METRICS, Metric, Threshold, metrics_for
from fedtilt.evaluation.intervals import LARGE, RESAMPLES
from fedtilt.evaluation.metrics_frame import metrics_frame, with_targets
from fedtilt.evaluation.predictions import Predictions
from fedtilt.evaluation.results import SeedValues
from fedtilt.evaluation.scores import ACCURACY
from fedtilt.evaluation.weighted_predictions import Array, PredictedClasses, reliability_curve
from fedtilt.report.compare import best_methods
from fedtilt.report.figure import Figure, Style, axis, axis_labels, figure_layout, heat, heat_layout, line
from fedtilt.report.run_reader import Run

_MAX_METHODS = 5  # the best
MAX_CLASSES = 25  # of a confusion matrix
_MAX_POINTS = 200  # of a curve
PredictionsBySeed = Mapping[str, Sequence[Predictions]]  # method → one per seed


class MetricCell(NamedTuple):
    """A number in the table."""

    value: float  # mean over seeds
    uncertainty: str  # the interval or, of several seeds, the standard deviation; empty: unknown
    kind: str = ""  # of the interval


class DecisionMetrics(NamedTuple):
    """The section of a page."""

    metrics: tuple[Metric, ...]
    rows: dict[str, list[MetricCell]]  # by method; empty: the run has no stored predictions
    figures: list[Figure]
    command: str  # prints more; empty: the test data is on Flower sites
    uncertainty: str  # what that of a cell is


def decision_metrics(run: Run, styles: Mapping[str, Style]) -> DecisionMetrics:
    """Metrics of the stored predictions of the best methods, and of classes their figures."""
    stored = run.predictions
    methods = [m for m in best_methods(run, _MAX_METHODS) if all(m in by_method for by_method in stored)]
    predictions = {method: [by_method[method] for by_method in stored] for method in methods}
    is_class = run.score is ACCURACY
    task = next(iter(stored[0].values())).task if methods else "regression"
    names = OVERALL_METRICS if is_class else metrics_for(task)
    rows = {
        method: _cells(by_seed, names, [seed_run.thresholds.get(method) for seed_run in run.compared])
        for method, by_seed in predictions.items()
    }
    return DecisionMetrics(
        metrics=tuple(METRICS[name] for name in names),
        rows=rows,
        figures=decision_figures(predictions, styles, run.compared[0].thresholds) if predictions and is_class else [],
        command="" if run.fingerprint.get("runner") == "flower" else f"fedtilt metrics {shlex.quote(str(run.folder))}",
        uncertainty=_in_words(rows, len(stored), is_class and any(len(p.labels) > LARGE for p in stored[0].values())),
    )


def _in_words(rows: Mapping[str, Sequence[MetricCell]], seeds: int, in_bins: bool) -> str:
    if seeds > 1:
        return "the standard deviation over seeds"
    kinds = " or ".join(sorted({cell.kind for cells in rows.values() for cell in cells} - {""}, reverse=True))
    resamples = f" with {RESAMPLES:,} resamples" if "bootstrap" in kinds else ""
    bins = ", for which AUROC and AUPRC rank samples in bins of their scores" if in_bins else ""
    return f"95 % intervals ({kinds}{resamples}{bins})" if kinds else "95 % intervals"


def _cells(
    by_seed: Sequence[Predictions], names: Sequence[str], thresholds: Sequence[Threshold | None]
) -> list[MetricCell]:
    """A cell per metric, as `fedtilt metrics` computes it; several seeds need no intervals."""
    several = len(by_seed) > 1
    frames = [
        metrics_frame(p, names, by=None, threshold=threshold, resamples=0 if several else RESAMPLES)
        for p, threshold in zip(by_seed, thresholds, strict=True)
    ]
    cells = []
    for name in names:
        values = SeedValues(tuple(frame.overall_estimates[name].value for frame in frames))
        interval = frames[0].overall_estimates[name].interval
        of_rows = f"{interval.low:.3f} to {interval.high:.3f}" if interval.kind else ""
        cells.append(MetricCell(values.mean, f"± {values.std:.3f}" if several else of_rows, interval.kind))
    return cells


def decision_figures(
    predictions: PredictionsBySeed, styles: Mapping[str, Style], thresholds: Mapping[str, Threshold]
) -> list[Figure]:
    """The figures of classes; of two classes, ROC and precision–recall of the rarer one come first."""
    first = next(iter(predictions.values()))[0]
    figures = []
    if first.rarer_class is not None and len(first.labels.unique()) == 2:
        figures += _threshold_curves(predictions, styles, first.rarer_class)
    if len(first.class_names) <= MAX_CLASSES:
        figures.append(_confusion(predictions, thresholds))
    return [*figures, _reliability(predictions, styles)]


def _pooled(by_seed: Sequence[Predictions]) -> PredictedClasses:
    """The samples of all seeds together."""
    samples = [with_targets(p) for p in by_seed]
    labels, probabilities = zip(*((s.labels, s.probabilities) for s in samples), strict=True)
    return PredictedClasses(np.concatenate(labels), np.concatenate(probabilities))


def _dotted(x: list[float], y: list[float]) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines", "x": x, "y": y, "line": {"color": "#7f858d", "width": 1, "dash": "dot"},
        "hoverinfo": "skip", "name": "", "showlegend": False, "meta": {},
    }  # fmt: skip


def _axes(x: str, y: str, names: Iterable[str]) -> dict[str, Any]:
    return figure_layout(370, list(names), xaxis=axis(x, "%", range=[0, 102]), yaxis=axis(y, "%", range=[0, 102]))


def _threshold_curves(predictions: PredictionsBySeed, styles: Mapping[str, Style], label: int) -> list[Figure]:
    """ROC, and precision against recall, of one class over all thresholds."""
    from sklearn.metrics import precision_recall_curve, roc_curve  # slow to import

    name, share = next(iter(predictions.values()))[0].class_names[label], 0.0
    roc = _Curves("%{y:.0f} % found, %{x:.0f} % false alarms")
    precision_recall = _Curves("%{x:.0f} % found, %{y:.0f} % right")
    for method, by_seed in predictions.items():
        samples = _pooled(by_seed)
        is_class, score = samples.labels == label, samples.probabilities[:, label]
        share = 100 * float(is_class.mean())
        roc.add(method, styles[method], *roc_curve(is_class, score, drop_intermediate=False)[:2])
        precision, recall, _ = precision_recall_curve(is_class, score)
        precision_recall.add(method, styles[method], recall[-2::-1], precision[-2::-1])
    return [
        Figure(
            name="roc", title=f"ROC of {name}", rows=roc.rows, columns=("method", "false_positive_rate", "recall"),
            data=[_dotted([0, 100], [0, 100]), *roc.data],
            note=f"Share of {name} that is found against the share of the others that is taken for it; the dotted line "
            "is chance.", layout=_axes("false alarms", "found", predictions),
        ),
        Figure(
            name="precision-recall", title=f"Precision and recall of {name}", rows=precision_recall.rows,
            columns=("method", "recall", "precision"), data=[_dotted([0, 100], [share, share]), *precision_recall.data],
            note=f"Share of the predictions of {name} that are right, against the share that is found; the area is the "
            f"AUPRC. The dotted line is chance: {share:.1f} %.",
            layout=_axes("found", "right", predictions),
        ),
    ]  # fmt: skip


class _Curves:
    """The curves of methods, in percent: their points as rows, and their lines."""

    def __init__(self, hover: str) -> None:
        self._hover, self.rows, self.data = hover, list[tuple[Any, ...]](), list[dict[str, Any]]()

    def add(self, method: str, style: Style, x: Array, y: Array) -> None:
        """Add a curve, of many points some."""
        chosen = np.unique(np.linspace(0, len(x) - 1, min(len(x), _MAX_POINTS)).round().astype(int))
        points = 100 * np.stack([x, y])[:, chosen]
        self.rows += [(method, *point) for point in points.T.tolist()]
        self.data.append(line(method, style, points[0], points[1], self._hover))


def _confusion(predictions: PredictionsBySeed, thresholds: Mapping[str, Threshold]) -> Figure:
    """Which class is predicted for the samples of each class, one method at a time."""
    data, rows = list[dict[str, Any]](), list[tuple[Any, ...]]()
    names = next(iter(predictions.values()))[0].class_names
    labels = axis_labels(names)
    for method, by_seed in predictions.items():
        counts = np.zeros((len(names), len(names)), dtype=int)
        for found in by_seed:
            probabilities, threshold = found.probabilities, thresholds.get(method)
            predicted = probabilities.argmax(1) if threshold is None else threshold.classes(probabilities, names)
            np.add.at(counts, (found.labels.numpy(), predicted.numpy()), 1)
        shares = 100 * counts / counts.sum(1, keepdims=True).clip(1)
        rows += [(method, names[i], names[j], int(counts[i, j])) for i in range(len(names)) for j in range(len(names))]
        hover = "%{y}, predicted as %{x}: %{text} samples, %{z:.1f} %"
        z, text = shares.round(2).tolist(), counts.tolist()
        data.append(heat(method, labels, labels, z, text, hover, visible=not data, texttemplate="%{text}"))
    layout = heat_layout(max(370, 110 + 22 * len(names)), "predicted", "actual", 100, " %")
    layout["xaxis"] |= {"constrain": "domain"}
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
        confidence, accuracy, low, high, samples = map(np.array, zip(*curve, strict=True))
        error = {"type": "data", "symmetric": False, "thickness": 1, "width": 3, "color": styles[method].faint(0.6)}
        error |= {"array": _percent(high - accuracy), "arrayminus": _percent(accuracy - low)}
        hover = "confidence %{x:.0f} %: accuracy %{y:.0f} %, %{customdata} samples"
        x, y, more = _percent(confidence), _percent(accuracy), {"error_y": error, "customdata": samples.tolist()}
        data.append(line(method, styles[method], x, y, hover, mode="lines+markers", **more))
    return Figure(
        name="reliability", title="Reliability",
        note="Accuracy of predictions by their confidence, with 95 % intervals; on the dotted line, both are equal.",
        data=data, layout=_axes("confidence", "accuracy", predictions), rows=rows,
        columns=("method", "confidence", "accuracy", "low", "high", "samples"),
    )  # fmt: skip


def _percent(shares: Array) -> list[float]:
    return [round(100 * float(share), 2) for share in shares]
