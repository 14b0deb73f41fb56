"""Metrics of probabilities (AUROC, F1, log loss, …), of numbers (MAE, R², …), of tokens and of several labels.

Every metric is a function of weighted samples, with one value per row of weights: equal weights give the metric, and
the weights of a bootstrap its resamples, all at once. The values are those of scikit-learn with `sample_weight`. NaN:
the metric is not defined.

Without a positive class, precision, recall, F1, AUROC and AUPRC are means over the classes that the samples have, each
class against all others; of two classes, the AUPRC is that of the rarer one. With a positive class, every metric is
about this class against all others. A threshold predicts one class, in place of the most probable one.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtilt.checks import number
from fedtilt.data.targets import TARGETS
from fedtilt.errors import InputError
from fedtilt.evaluation.scores import EXACT_MATCH, SCORES, TASK_SCORES, Score
from fedtilt.evaluation.weighted_predictions import BINS, Array, ClassCounts, PredictedClasses, Weighted, ratio

_SMALLEST = float(np.finfo(np.float32).eps)  # a smaller probability counts as this in the log loss, as in scikit-learn
Mask = Callable[[PredictedClasses], Array]  # (S,) bool


def _over_classes(value: Callable[[ClassCounts], Array]) -> Callable[[Weighted], Array]:
    return lambda weighted: weighted.mean_over_classes(lambda label: value(weighted.counts[label]))


_recall = _over_classes(lambda counts: ratio(counts.hits, counts.positive))


def _auprc(weighted: Weighted) -> Array:
    """The average precision: of a random ranking, the share of the class."""
    rarer = weighted.samples.rarer
    if weighted.samples.positive is None and rarer is not None:
        return weighted.rank(rarer).average_precision
    return weighted.mean_over_classes(lambda label: weighted.rank(label).average_precision)


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
    return weighted.mean(-np.log(probability.clip(_SMALLEST, 1 - _SMALLEST)))


def _calibration_error(weighted: Weighted) -> Array:
    """Mean of |confidence − accuracy| over bins of the confidence, by their size (expected calibration error)."""
    confidence, is_true = weighted.samples.confidence
    gaps = np.zeros((len(confidence), BINS))
    gaps[np.arange(len(confidence)), weighted.samples.bins] = confidence - is_true
    return ratio(np.abs(weighted.sum(gaps)).sum(1), weighted.total)


def _r2(weighted: Weighted) -> Array:
    """1 − Σ error² / Σ (target − its mean)²: the share of the variance that is predicted."""
    targets = weighted.samples.targets
    centred = targets - targets.mean() if len(targets) else targets  # the variance of large numbers cancels otherwise
    variance = weighted.mean(np.square(centred)) - np.square(weighted.mean(centred))
    varies = variance > 1e-12 * np.square(centred).max(initial=0.0)
    error = weighted.mean(np.square(weighted.samples.errors))
    return 1 - np.divide(error, variance, out=np.full(len(weighted.weights), np.nan), where=varies)


def _of_score(score: Score) -> Callable[[Weighted], Array]:
    """A score as a metric of weighted samples; percentages as shares."""

    def values(weighted: Weighted) -> Array:
        sums = torch.from_numpy(weighted.sum(weighted.samples.sums))
        found: Array = score.values(sums, torch.from_numpy(weighted.total)).numpy()
        return found / 100 if score.unit == "%" else found

    return values


class Metric(NamedTuple):
    """A metric in tables."""

    title: str
    values: Callable[[Weighted], Array]  # (B,)
    undefined: str = "no samples"  # when it is NaN
    higher_is_better: bool | None = True  # None: neither
    proportion: Callable[[Any], tuple[int, int] | None] = lambda samples: None  # (x, n) if it is a proportion x / n
    needs_positive: bool = False
    tasks: tuple[str, ...] = ("classification",)
    scale: str = "share"  # of its interval: a "share" in [0, 1], an "error" above 0 or "any" number; empty: it has none


def _share(of: Mask, among: Mask, *, of_class: bool = True) -> Callable[[PredictedClasses], tuple[int, int] | None]:
    """The proportion (x, n) of samples `of` among others; None: a mean over several classes, which is none."""

    def share(samples: PredictedClasses) -> tuple[int, int] | None:
        if of_class and samples.positive is None:
            return None
        return int((of(samples) & among(samples)).sum()), int(among(samples).sum())

    return share


def _positive(samples: PredictedClasses) -> Array:
    return samples.labels == samples.positive


def _predicted(samples: PredictedClasses) -> Array:
    return samples.predicted == samples.positive


def _any(samples: PredictedClasses) -> Array:
    return np.ones(len(samples.labels), dtype=bool)


METRICS = {
    "accuracy": Metric(
        "accuracy", lambda w: w.mean(w.samples.correct), proportion=_share(lambda s: s.correct, _any, of_class=False)
    ),
    "balanced_accuracy": Metric("balanced accuracy", _balanced_accuracy, "no samples of the class, or of no other"),
    "precision": Metric(
        "precision", _over_classes(lambda counts: ratio(counts.hits, counts.predicted)),
        "the class is never predicted", proportion=_share(_positive, _predicted),
    ),
    "recall": Metric("recall", _recall, "no samples of the class", proportion=_share(_predicted, _positive)),
    "f1": Metric(
        "F1",
        _over_classes(lambda counts: ratio(2 * counts.hits, counts.positive + counts.predicted)),
        "the class neither occurs nor is predicted",
    ),
    "auroc": Metric(
        "AUROC", lambda w: w.mean_over_classes(lambda label: w.rank(label).auroc), "samples of only one class"
    ),
    "auprc": Metric("AUPRC", _auprc, "no samples of the class"),
    "log_loss": Metric("log loss", _log_loss, higher_is_better=False, scale="error"),
    # of few samples it is too high, and of resamples more so
    "calibration_error": Metric("calibration error", _calibration_error, higher_is_better=False, scale=""),
    "selection_rate": Metric(
        "selection rate", _selection_rate, higher_is_better=None, proportion=_share(_predicted, _any),
        needs_positive=True,
    ),
    "false_positive_rate": Metric(
        "false positive rate", _false_positive_rate, "no samples of another class", higher_is_better=False,
        proportion=_share(_predicted, lambda s: ~_positive(s)), needs_positive=True,
    ),
}  # fmt: skip
for _name, _score in SCORES.items():
    if _name not in METRICS:
        _tasks = tuple(task for task, scores in TASK_SCORES.items() if _score in scores)
        _scale = "share" if _score.unit == "%" else "error"
        _about = _score.title, _of_score(_score)
        METRICS[_name] = Metric(*_about, higher_is_better=_score.higher_is_better, tasks=_tasks, scale=_scale)
METRICS["exact_match"] = METRICS["exact_match"]._replace(
    proportion=lambda samples: (int(samples.sums[:, EXACT_MATCH.share].sum()), len(samples.sums))
)
METRICS |= {
    "mean_error": Metric(  # above 0, predictions are too high on average
        "mean error", lambda w: w.mean(w.samples.errors), higher_is_better=None, tasks=("regression",), scale="any"
    ),
    "r2": Metric("R²", _r2, "the same target in all samples", tasks=("regression",), scale="any"),
}
OVERALL_METRICS = ("accuracy", "balanced_accuracy", "f1", "auroc", "auprc", "log_loss", "calibration_error")
CLASS_METRICS = ("precision", "recall", "f1", "auroc", "auprc", "calibration_error")
POSITIVE_METRICS = (*CLASS_METRICS[:5], "log_loss", "calibration_error", "selection_rate", "false_positive_rate")


def metrics_for(task: str) -> tuple[str, ...]:
    """The names of all metrics for a task."""
    return tuple(name for name, metric in METRICS.items() if task in metric.tasks)


def check_metrics(names: Sequence[str], task: str = "classification") -> list[str]:
    """The names, or an error about one that does not exist for a task."""
    names = [names] if isinstance(names, str) else list(names)
    known = metrics_for(task)
    for name in names:
        if name not in known:
            what = TARGETS[task].words if task in TARGETS else "classes"
            why = f"there is no metric {name!r}" if name not in METRICS else f"metric {name!r} is not for {what}"
            raise InputError(f"{why}; choose among {', '.join(known)}")
    if not names:
        raise InputError(f"metrics is empty; choose among {', '.join(known)}")
    return names


class Threshold(NamedTuple):
    """Predict a class if its probability is at least `value`, and otherwise the most probable of the others.

    The metadata of an exported model has it as JSON under `threshold`, and so has thresholds.json in the folder of a
    seed, by method: `{"class": "ill", "value": 0.31, "by": "f1"}`.

    >>> Threshold("ill", 0.3).classes(torch.tensor([[0.35, 0.65], [0.2, 0.8]]), ["ill", "well"]).tolist()
    [0, 1]
    """

    name: str  # of the class
    value: float
    by: str | None = None  # what it was chosen by, such as f1; None: by hand

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Threshold":
        """The inverse of `to_json`."""
        return cls(str(values["class"]), _checked(values["value"]), values.get("by"))

    @classmethod
    def from_text(cls, text: str) -> "Threshold":
        """A threshold that is written as CLASS=VALUE."""
        name, equals, value = text.rpartition("=")
        try:
            return cls(name, _checked(float(value)) if equals else float(name))
        except ValueError:
            why = f"threshold {text!r} must be CLASS=VALUE with a value in [0, 1], such as ill=0.3"
            raise InputError(why) from None

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"class": self.name, "value": self.value} | ({} if self.by is None else {"by": self.by})

    def in_words(self) -> str:
        """One sentence.

        >>> Threshold("ill", 0.31, "f1").in_words()
        "'ill' if its probability is at least 0.31 (chosen by f1), else the most probable other class"
        """
        at_least = f"at least {self.value:g}" + ("" if self.by is None else f" (chosen by {self.by})")
        return f"{self.name!r} if its probability is {at_least}, else the most probable other class"

    def check(self, class_names: Sequence[str]) -> None:
        """Raise InputError if there is no such class."""
        if self.name not in class_names:
            raise InputError(f"the threshold is for class {self.name!r}; the classes are {', '.join(class_names)}")

    def classes(self, probabilities: Tensor, class_names: Sequence[str]) -> Tensor:
        """The predicted class of each row of probabilities (n, K), int64."""
        self.check(class_names)
        own = list(class_names).index(self.name)
        others = probabilities.clone()
        others[:, own] = -1.0
        return torch.where(probabilities[:, own] >= self.value, own, others.argmax(1))


def choose_threshold(name: str, probability: Tensor, is_class: Tensor) -> Threshold:
    """The threshold with the highest F1 on samples, in the middle between the two probabilities that it separates.

    >>> found = choose_threshold("ill", torch.tensor([0.9, 0.4, 0.3, 0.1]), torch.tensor([True, True, False, False]))
    >>> round(found.value, 2)
    0.35

    `probability` is that of the class, (S,), and `is_class` says whether a sample is of it; some are.
    """
    ordered, order = probability.double().sort(descending=True, stable=True)
    hits = is_class[order].cumsum(0)
    predicted = torch.arange(1, len(ordered) + 1)
    f1 = 2 * hits / (predicted + int(is_class.sum()))
    is_last = torch.cat([ordered[1:] < ordered[:-1], torch.tensor([True])])  # samples with one probability go together
    best = int(torch.where(is_last, f1, -1.0).argmax())
    below = float(ordered[best + 1]) if best + 1 < len(ordered) else 0.0
    return Threshold(name, (float(ordered[best]) + below) / 2, "f1")


def _checked(value: Any) -> float:
    value = number(value, "a threshold")
    if not 0 <= value <= 1:
        raise InputError(f"a threshold is {value:g}; it is compared with a probability, in [0, 1]")
    return value
