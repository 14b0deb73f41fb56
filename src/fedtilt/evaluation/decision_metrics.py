"""Metrics of predicted probabilities: balanced accuracy, precision, recall, F1, AUROC, log loss, calibration, rates.

Every metric is a function of weighted samples, with one value per row of weights (B, S): equal weights give the metric,
and the weights of a bootstrap its resamples, all at once. The values are those of scikit-learn with `sample_weight`,
with which the tests compare them; a resample there takes as long as all of them here. NaN: the metric is not defined.

Without a positive class, precision, recall, F1, AUROC and average precision are means over the classes that the samples
have, each class against all others. With a positive class, every metric is about this class against all others.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedtilt.errors import InputError
from fedtilt.evaluation.number_metrics import mean_absolute_error, mean_error, r2, root_mean_squared_error
from fedtilt.evaluation.weighted_samples import BINS, Array, Samples, Weighted, ratio

_SMALLEST = float(np.finfo(np.float32).eps)  # a smaller probability counts as this in the log loss, as in scikit-learn


def _recall(weighted: Weighted) -> Array:
    counts = weighted.counts
    return weighted.mean_over_classes(lambda label: ratio(counts[label].hits, counts[label].positive))


def _precision(weighted: Weighted) -> Array:
    counts = weighted.counts
    return weighted.mean_over_classes(lambda label: ratio(counts[label].hits, counts[label].predicted))


def _f1(weighted: Weighted) -> Array:
    counts = weighted.counts
    return weighted.mean_over_classes(lambda k: ratio(2 * counts[k].hits, counts[k].positive + counts[k].predicted))


def _auroc(weighted: Weighted) -> Array:
    return weighted.mean_over_classes(lambda label: weighted.ranking[label].auroc)


def _average_precision(weighted: Weighted) -> Array:
    return weighted.mean_over_classes(lambda label: weighted.ranking[label].average_precision)


def _accuracy(weighted: Weighted) -> Array:
    return ratio(weighted.weights @ weighted.samples.correct, weighted.total)


def _balanced_accuracy(weighted: Weighted) -> Array:
    recall = _recall(weighted)
    return recall if weighted.samples.positive is None else (recall + 1 - _false_positive_rate(weighted)) / 2


def _selection_rate(weighted: Weighted) -> Array:
    (counts,) = weighted.counts.values()
    return ratio(counts.predicted, weighted.total)


def _false_positive_rate(weighted: Weighted) -> Array:
    (counts,) = weighted.counts.values()
    return ratio(counts.predicted - counts.hits, weighted.total - counts.positive)


def _log_loss(weighted: Weighted) -> Array:
    samples = weighted.samples
    if samples.positive is None:
        probability = samples.probabilities[np.arange(len(samples.labels)), samples.labels]
    else:
        positive = samples.probabilities[:, samples.positive]
        probability = np.where(samples.labels == samples.positive, positive, 1 - positive)
    return ratio(weighted.weights @ -np.log(probability.clip(_SMALLEST, 1 - _SMALLEST)), weighted.total)


def _calibration_error(weighted: Weighted) -> Array:
    """Mean of |confidence − accuracy| over bins of the confidence, by their size (expected calibration error)."""
    confidence, is_true = weighted.samples.confidence
    gaps = np.zeros((len(confidence), BINS))
    gaps[np.arange(len(confidence)), weighted.samples.bins] = confidence - is_true
    return ratio(np.abs(weighted.weights @ gaps).sum(1), weighted.total)


class Metric(NamedTuple):
    """A metric in tables."""

    title: str
    values: Callable[[Weighted], Array]  # (B,)
    undefined: str  # when it is NaN
    higher_is_better: bool | None = True  # None: neither
    proportion: Callable[[Any], tuple[int, int] | None] = lambda _: None  # (x, n) if it is a proportion x / n
    needs_positive: bool = False
    of_numbers: bool = False


def _share(of: Callable[[Samples], Array], among: Callable[[Samples], Array]) -> Callable[[Samples], tuple[int, int]]:
    return lambda samples: (int((of(samples) & among(samples)).sum()), int(among(samples).sum()))


def _if_positive(share: Callable[[Samples], tuple[int, int]]) -> Callable[[Samples], tuple[int, int] | None]:
    """A mean over several classes is no proportion."""
    return lambda samples: None if samples.positive is None else share(samples)


def _positive(samples: Samples) -> Array:
    return samples.labels == samples.positive


def _predicted(samples: Samples) -> Array:
    return samples.predicted == samples.positive


def _any(samples: Samples) -> Array:
    return np.ones(len(samples.labels), dtype=bool)


def _of_errors(values: Callable[[Array, Array, Array], Array]) -> Callable[[Weighted], Array]:
    return lambda weighted: values(weighted.samples.errors, weighted.samples.targets, weighted.weights)


def _number_metric(title: str, values: Callable[[Array, Array, Array], Array], **settings: Any) -> Metric:
    return Metric(title, _of_errors(values), **{"undefined": "no samples", **settings}, of_numbers=True)


METRICS = {
    "accuracy": Metric("accuracy", _accuracy, "no samples", proportion=_share(lambda s: s.correct, _any)),
    "balanced_accuracy": Metric("balanced accuracy", _balanced_accuracy, "no samples of the class, or of no other"),
    "precision": Metric(
        "precision",
        _precision,
        "the class is never predicted",
        proportion=_if_positive(_share(_positive, _predicted)),
    ),
    "recall": Metric(
        "recall",
        _recall,
        "no samples of the class",
        proportion=_if_positive(_share(_predicted, _positive)),
    ),
    "f1": Metric("F1", _f1, "the class neither occurs nor is predicted"),
    "auroc": Metric("AUROC", _auroc, "samples of only one class"),
    "average_precision": Metric("average precision", _average_precision, "no samples of the class"),
    "log_loss": Metric("log loss", _log_loss, "no samples", higher_is_better=False),
    "calibration_error": Metric("calibration error", _calibration_error, "no samples", higher_is_better=False),
    "selection_rate": Metric(
        "selection rate",
        _selection_rate,
        "no samples",
        higher_is_better=None,
        proportion=_share(_predicted, _any),
        needs_positive=True,
    ),
    "false_positive_rate": Metric(
        "false positive rate",
        _false_positive_rate,
        "no samples of another class",
        higher_is_better=False,
        proportion=_share(_predicted, lambda s: ~_positive(s)),
        needs_positive=True,
    ),
    "mae": _number_metric("MAE", mean_absolute_error, higher_is_better=False),
    "rmse": _number_metric("RMSE", root_mean_squared_error, higher_is_better=False),
    "mean_error": _number_metric("mean error", mean_error, higher_is_better=None),
    "r2": _number_metric("R²", r2, undefined="the same target in all samples"),
}
NUMBER_METRICS = ("mae", "rmse", "mean_error", "r2")
OVERALL_METRICS = ("accuracy", "balanced_accuracy", "f1", "auroc", "average_precision", "log_loss", "calibration_error")
CLASS_METRICS = ("precision", "recall", "f1", "auroc", "average_precision", "calibration_error")
POSITIVE_METRICS = (*CLASS_METRICS[:5], "log_loss", "calibration_error", "selection_rate", "false_positive_rate")


def check_metrics(names: Sequence[str], *, of_numbers: bool = False) -> list[str]:
    """The names, or an error about one that does not exist for classes, or for numbers as targets."""
    names = [names] if isinstance(names, str) else list(names)
    known = [name for name, metric in METRICS.items() if metric.of_numbers == of_numbers]
    for name in names:
        if name not in known:
            task = "numbers as targets" if of_numbers else "classes"
            why = f"there is no metric {name!r}" if name not in METRICS else f"metric {name!r} is not for {task}"
            raise InputError(f"{why}; choose among {', '.join(known)}")
    if not names:
        raise InputError(f"metrics is empty; choose among {', '.join(known)}")
    return names
