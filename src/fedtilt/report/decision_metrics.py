"""Decision metrics of a run and their figures, for its page."""

import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedtilt.evaluation.decision_metrics import METRICS, OVERALL_METRICS, Metric, metrics_for
from fedtilt.evaluation.metrics import ACCURACY
from fedtilt.evaluation.metrics_frame import metrics_frame
from fedtilt.evaluation.predictions import Predictions
from fedtilt.report.compare import SeedValues, best_methods
from fedtilt.report.decision_figures import decision_figures
from fedtilt.report.figure import Figure, Style
from fedtilt.report.run_reader import Run

_MAX_METHODS = 5  # the best
_RESAMPLES = 200  # a page is written quickly; `fedtilt metrics` takes more


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
    """Metrics of the stored predictions of the best methods, and of classes their figures."""
    stored = run.predictions
    methods = [m for m in best_methods(run, _MAX_METHODS) if all(m in by_method for by_method in stored)]
    predictions = {method: [by_method[method] for by_method in stored] for method in methods}
    is_class = run.score is ACCURACY
    task = next(iter(stored[0].values())).task if methods else "regression"
    names = OVERALL_METRICS if is_class else metrics_for(task)
    return DecisionMetrics(
        metrics=tuple(METRICS[name] for name in names),
        rows={method: _cells(by_seed, names) for method, by_seed in predictions.items()},
        figures=decision_figures(predictions, styles, run.compared[0].thresholds) if predictions and is_class else [],
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
