"""Decision metrics of a run and their reliability curves, for its page."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedtilt.evaluation.decision_metrics import METRICS, NUMBER_METRICS, OVERALL_METRICS, Metric
from fedtilt.evaluation.metrics import ACCURACY
from fedtilt.evaluation.metrics_frame import metrics_frame, with_targets
from fedtilt.evaluation.predictions import Predictions
from fedtilt.evaluation.weighted_predictions import PredictedClasses, reliability_curve
from fedtilt.report.compare import SeedValues, best_methods
from fedtilt.report.figure import Figure, Style, figure_layout, plotly_text
from fedtilt.report.run_reader import Run

_MAX_METHODS = 5  # the best
_RESAMPLES = 200  # a page is written quickly; `fedtilt metrics` takes more

_PARTS = ("labels", "probabilities")
PredictionsBySeed = Mapping[str, Sequence[Predictions]]  # method → one per seed


class Cell(NamedTuple):
    """A number in the table."""

    value: float  # mean over seeds
    uncertainty: str  # the interval or, of several seeds, the standard deviation; empty: unknown


class DecisionMetrics(NamedTuple):
    """The section of a page."""

    metrics: tuple[Metric, ...]
    rows: dict[str, list[Cell]]  # by method; empty: the run has no stored predictions
    figures: list[Figure]
    command: str  # prints more; empty: the test data is on Flower sites


def decision_metrics(run: Run, styles: Mapping[str, Style]) -> DecisionMetrics:
    """Metrics of the stored predictions of the best methods, and of classes their reliability curves."""
    stored = run.predictions
    methods = [m for m in best_methods(run, _MAX_METHODS) if all(m in by_method for by_method in stored)]
    predictions = {method: [by_method[method] for by_method in stored] for method in methods}
    is_class = run.score is ACCURACY
    names = OVERALL_METRICS if is_class else NUMBER_METRICS
    return DecisionMetrics(
        metrics=tuple(METRICS[name] for name in names),
        rows={method: _cells(by_seed, names) for method, by_seed in predictions.items()},
        figures=[_reliability(predictions, styles)] if predictions and is_class else [],
        command="" if run.fingerprint.get("runner") == "flower" else f"fedtilt metrics {shlex.quote(str(run.folder))}",
    )


def _cells(by_seed: Sequence[Predictions], names: Sequence[str]) -> list[Cell]:
    several = len(by_seed) > 1
    frames = [metrics_frame(p, names, by=None, resamples=0 if several else _RESAMPLES) for p in by_seed]
    cells = []
    for name in names:
        values = SeedValues(tuple(frame.overall_estimates[name].value for frame in frames))
        interval = frames[0].overall_estimates[name].interval
        if several:
            uncertainty = f"± {values.std:.3f}"
        else:
            uncertainty = f"{interval.low:.3f} to {interval.high:.3f}" if interval.kind else ""
        cells.append(Cell(values.mean, uncertainty))
    return cells


def _reliability(predictions: PredictionsBySeed, styles: Mapping[str, Style]) -> Figure:
    """The accuracy of predictions by their confidence, the samples of all seeds together."""
    grey = {"color": "#7f858d", "width": 1, "dash": "dot"}
    diagonal = {"type": "scatter", "mode": "lines", "x": [0, 100], "y": [0, 100], "line": grey, "hoverinfo": "skip"}
    data: list[dict[str, Any]] = [{**diagonal, "name": "calibrated", "showlegend": False, "meta": {}}]
    rows: list[tuple[Any, ...]] = []
    for method, by_seed in predictions.items():
        samples = [with_targets(p) for p in by_seed]
        labels, probabilities = (np.concatenate([getattr(s, part) for s in samples]) for part in _PARTS)
        curve = reliability_curve(PredictedClasses(labels, probabilities))
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
    axes = {"xaxis": "confidence (%)", "yaxis": "accuracy (%)"}
    layout = figure_layout(
        370, list(predictions), **{axis: {"title": {"text": title}, "range": [0, 102]} for axis, title in axes.items()}
    )
    return Figure(
        name="reliability", title="Reliability",
        note="Accuracy of predictions by their confidence, with 95 % intervals; on the dotted line, both are equal.",
        data=data, layout=layout, rows=rows,
        columns=("method", "confidence", "accuracy", "low", "high", "samples"),
    )  # fmt: skip
