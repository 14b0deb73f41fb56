"""Metrics of predictions overall and by client, class or group, with intervals, in the manner of fairlearn.

The gap between groups is the highest value minus the lowest (`difference`) or the lowest over the highest (`ratio`): of
the selection rate, that is demographic parity; of the recall, equal opportunity. (M. Hardt, E. Price and N. Srebro,
Equality of opportunity in supervised learning, NeurIPS 2016.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedtilt import checks
from fedtilt.data.groups import CLASS
from fedtilt.data.targets import TARGETS
from fedtilt.errors import InputError
from fedtilt.evaluation import decision_metrics
from fedtilt.evaluation.decision_metrics import METRICS, Threshold, check_metrics
from fedtilt.evaluation.intervals import RESAMPLES, Estimate, Gap, estimate, gap_between
from fedtilt.evaluation.predictions import CLIENT, Predictions
from fedtilt.evaluation.weighted_predictions import PredictedClasses, PredictedNumbers, SampleSums
from fedtilt.imports import import_extra


@dataclass(frozen=True, kw_only=True, eq=False)
class MetricsFrame:
    """Metrics overall and by group; `metrics_frame` makes one."""

    metrics: tuple[str, ...]
    by: str | None  # "client", "class", or a column of groups; None: only overall
    positive: str | None  # the class that the metrics are about
    confidence: float
    overall_estimates: Mapping[str, Estimate] = field(repr=False)  # by metric
    group_estimates: Mapping[str, Mapping[str, Estimate]] = field(repr=False)  # by group and metric

    @property
    def overall(self) -> Any:
        """The metrics on all samples, a pandas Series."""
        values = [self.overall_estimates[name].value for name in self.metrics]
        return _pandas().Series(values, self.metrics, name="overall")

    @property
    def by_group(self) -> Any:
        """A pandas DataFrame with a row per group and a column per metric."""
        rows = [[row[name].value for name in self.metrics] for row in self.group_estimates.values()]
        index = _pandas().Index(list(self.group_estimates), name=self.by)
        return _pandas().DataFrame(rows, index, list(self.metrics))

    def group_min(self) -> Any:
        """The lowest value of each metric over the groups where it is defined."""
        return self.by_group.min()

    def group_max(self) -> Any:
        """The highest value of each metric over the groups where it is defined."""
        return self.by_group.max()

    def difference(self, method: str = "between_groups") -> Any:
        """The gap of each metric: the highest minus the lowest, or the largest distance "to_overall"."""
        if _check_method(method) == "between_groups":
            return self.group_max() - self.group_min()
        return (self.by_group - self.overall).abs().max()

    def ratio(self, method: str = "between_groups") -> Any:
        """The gap of each metric as a ratio: the lowest over the highest, or the smallest ratio "to_overall"."""
        if _check_method(method) == "between_groups":
            return self.group_min() / self.group_max()
        ratios = self.by_group / self.overall
        return ratios.where(ratios <= 1, 1 / ratios).min()

    def gap(self, name: str) -> Gap:
        """The gap of a metric between groups, with an interval that holds for all pairs of groups at once."""
        return gap_between({group: row[name] for group, row in self.group_estimates.items()}, self.confidence)

    def gaps(self) -> Any:
        """The gap of every metric with its interval, a pandas DataFrame with a row per metric."""
        return _pandas().DataFrame([self.gap(name) for name in self.metrics], self.metrics, Gap._fields)

    def to_pandas(self) -> Any:
        """One row per group and metric: value, interval, samples and what is missing; `overall` is the last group."""
        columns = [self.by or "samples", "metric", "value", "low", "high", "interval", "samples", "reason"]
        return _pandas().DataFrame(self.rows(), columns=columns)

    def rows(self) -> list[tuple[Any, ...]]:
        """The rows of `to_pandas`."""
        groups = [*self.group_estimates.items(), ("overall", self.overall_estimates)]
        found = ((group, name, e) for group, row in groups for name, e in row.items())
        return [(group, name, e.value, *e.interval[:3], e.samples, e.reason) for group, name, e in found]


def metrics_frame(
    predictions: Predictions, metrics: Sequence[str] | str | None = None, *, by: str | None = CLIENT,
    positive: str | None = None, confidence: float = 0.95, resamples: int = RESAMPLES,
    threshold: Threshold | None = None,
) -> MetricsFrame:  # fmt: skip
    """Metrics of predictions, overall and by group.

    Intervals of proportions on the samples of few clients are exact (Clopper and Pearson). Intervals of other metrics,
    and over several clients, are Student's t from a bootstrap: over clients, or over samples if there are few clients.

    Args:
        predictions: of one method
        metrics: names of `METRICS`; default: a selection
        by: "client", "class" (each class against all others, on all samples), "range" (of numbers as targets) or a
            column of groups; None: only overall
        positive: the class that all metrics are about, against all others; default: means over classes
        confidence: of the intervals
        resamples: of the bootstrap; 0: only exact intervals
        threshold: of a class; default: the most probable class is predicted
    """
    if by is not None and by not in predictions.groupings:
        raise InputError(f"by = {by!r} is unknown; choose among {', '.join(predictions.groupings)}")
    confidence = checks.probability(confidence, "confidence", 0.95)
    resamples = checks.whole(resamples, "resamples", 0)
    if by == CLASS and positive is not None:
        raise InputError("by = 'class' is about every class in turn; leave out positive")
    samples = with_targets(predictions, positive, threshold)
    names = check_metrics(_defaults(by, positive, predictions.task) if metrics is None else metrics, predictions.task)
    one_class = None if by == CLASS or positive is not None else [n for n in names if METRICS[n].needs_positive]
    if one_class:
        known = ", ".join(predictions.class_names)
        raise InputError(f"metric {one_class[0]!r} is about one class; set positive to one of {known}")
    clients = predictions.groupings[CLIENT].codes.numpy()
    grouping = predictions.groupings[by or CLIENT]
    group_names = () if by is None else grouping.names
    # Bonferroni: with the second confidence, the intervals of all groups hold together
    confidences = confidence, 1 - (1 - confidence) / max(1, len(group_names))
    overall = estimate(samples, clients, names, confidences, resamples=resamples)
    groups = {}
    for number, group in enumerate(group_names):
        rows = grouping.codes.numpy() == number
        if by == CLASS:
            found = estimate(replace(samples, positive=number), clients, names, confidences, resamples=resamples)
            groups[group] = {name: e._replace(samples=int(rows.sum())) for name, e in found.items()}
        elif by == CLIENT:
            members = samples.take(rows)
            groups[group] = estimate(members, clients[rows], names, confidences, resamples=resamples, key=number + 1)
        else:  # the groups share clients, which are resampled together
            groups[group] = estimate(samples, clients, names, confidences, resamples=resamples, rows=rows)
    return MetricsFrame(
        metrics=tuple(names), by=by, positive=positive, confidence=confidence, overall_estimates=overall,
        group_estimates=groups,
    )  # fmt: skip


def _defaults(by: str | None, positive: str | None, task: str) -> tuple[str, ...]:
    if task != "classification":
        return decision_metrics.metrics_for(task)
    if by == CLASS:
        return decision_metrics.CLASS_METRICS
    return decision_metrics.OVERALL_METRICS if positive is None else decision_metrics.POSITIVE_METRICS


def with_targets(predictions: Predictions, positive: str | None = None, threshold: Threshold | None = None) -> Any:
    """Predictions as metrics take them: `PredictedClasses` of classes, `PredictedNumbers` or `SampleSums`."""
    if positive is not None and not predictions.of_classes:
        words = TARGETS[predictions.task].words
        raise InputError(f"positive = {positive!r} is for classes, and the data has {words}; leave it out")
    if predictions.numbers is not None:
        return PredictedNumbers(predictions.numbers.double().numpy(), predictions.outputs.numpy())
    if not predictions.of_classes:
        return SampleSums(predictions.outputs.numpy())
    if positive is not None and positive not in predictions.class_names:
        raise InputError(f"positive = {positive!r} is no class; choose among {', '.join(predictions.class_names)}")
    label = None if positive is None else predictions.class_names.index(positive)
    probabilities = predictions.probabilities
    chosen = None if threshold is None else threshold.classes(probabilities, predictions.class_names).numpy()
    return PredictedClasses(
        predictions.labels.numpy(), probabilities.double().numpy(), label, predictions.rarer_class, chosen
    )


def _check_method(method: str) -> str:
    if method not in ("between_groups", "to_overall"):
        raise InputError(f"method = {method!r} is unknown; choose between_groups or to_overall")
    return method


def _pandas() -> Any:
    return import_extra("pandas", "a table of metrics", "report")
