"""Predictions with weights: the counts and rankings that metrics are functions of, and the reliability curve."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray
BINS = 10  # of equal width, of the calibration error and the reliability curve


@dataclass(frozen=True, eq=False)
class PredictedClasses:
    """Labels (S,) and predicted probabilities (S, K) of samples; `positive` is the class that metrics are about."""

    labels: Array
    probabilities: Array
    positive: int | None = None
    rarer: int | None = None  # of two classes, the one with fewer samples, some of which may not be among these
    chosen: Array | None = None  # (S,) the predicted classes; None: the most probable ones

    @cached_property
    def predicted(self) -> Array:
        """The predicted class, (S,)."""
        return self.probabilities.argmax(1) if self.chosen is None else self.chosen

    @cached_property
    def correct(self) -> Array:
        """Whether a prediction is right, (S,); with a positive class, whether it is right about that class."""
        if self.positive is None:
            return self.predicted == self.labels
        return (self.predicted == self.positive) == (self.labels == self.positive)

    @cached_property
    def classes(self) -> list[int]:
        """The classes that metrics are about: the positive one, or all that the samples have."""
        return np.unique(self.labels).tolist() if self.positive is None else [self.positive]

    @cached_property
    def confidence(self) -> tuple[Array, Array]:
        """A probability, and whether what it is of is true: the positive class, or the most probable one."""
        if self.positive is None:
            return self.probabilities.max(1), self.probabilities.argmax(1) == self.labels
        return self.probabilities[:, self.positive], self.labels == self.positive

    @cached_property
    def bins(self) -> Array:
        """The bin of the confidence, (S,), each without its lower edge, as in scikit-learn's calibration_curve."""
        return np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], self.confidence[0])

    def order(self, label: int) -> tuple[Array, Array, Array]:
        """The samples by the probability of a class, descending; and for each place the first and last of its ties."""
        score = -self.probabilities[:, label]
        order = np.argsort(score, kind="stable")
        ordered = score[order]
        return order, np.searchsorted(ordered, ordered), np.searchsorted(ordered, ordered, "right") - 1

    def take(self, rows: Array) -> "PredictedClasses":
        """The samples of these rows."""
        chosen = None if self.chosen is None else self.chosen[rows]
        return PredictedClasses(self.labels[rows], self.probabilities[rows], self.positive, self.rarer, chosen)


@dataclass(frozen=True, eq=False)
class PredictedNumbers:
    """Targets and predictions, both (S,), in the unit of the target."""

    targets: Array
    predictions: Array

    positive = None  # numbers have no class that metrics are about

    @cached_property
    def errors(self) -> Array:
        """Prediction − target, (S,)."""
        return self.predictions - self.targets

    @cached_property
    def sums(self) -> Array:
        """What `scores` sums of every sample, (S, 2)."""
        return np.stack([np.abs(self.errors), np.square(self.errors)], 1)

    def take(self, rows: Array) -> "PredictedNumbers":
        """The samples of these rows."""
        return PredictedNumbers(self.targets[rows], self.predictions[rows])


@dataclass(frozen=True, eq=False)
class SampleSums:
    """What `scores` sums of every sample, (S, sums), of tokens or several labels."""

    sums: Array

    positive = None

    def take(self, rows: Array) -> "SampleSums":
        """The samples of these rows."""
        return SampleSums(self.sums[rows])


class ClassCounts(NamedTuple):
    """Weights of samples of one class against all others, each (B,)."""

    positive: Array
    predicted: Array
    hits: Array  # positive and predicted


class _Ranking(NamedTuple):
    """How well the probability of one class ranks its samples above all others, each (B,)."""

    auroc: Array  # the probability that a positive sample has a higher score than a negative one; ties count half
    average_precision: Array  # the mean of the precision at the score of each positive sample


@dataclass(frozen=True, eq=False)
class Weighted:
    """Samples with weights (B, S); what is computed of them has one value per row of weights, (B,)."""

    samples: Any  # PredictedClasses, PredictedNumbers or SampleSums
    weights: Array

    @cached_property
    def total(self) -> Array:
        """The sum of the weights, (B,)."""
        return self.weights.sum(1)

    @cached_property
    def counts(self) -> dict[int, ClassCounts]:
        """The counts of each class."""
        positive = self.samples.labels[:, None] == self.samples.classes  # (S, classes)
        predicted = self.samples.predicted[:, None] == self.samples.classes
        columns = np.concatenate([positive, predicted, positive & predicted], 1).astype(self.weights.dtype)
        sums = (self.weights @ columns).reshape(len(self.weights), 3, -1)
        return {label: ClassCounts(*sums[:, :, i].T) for i, label in enumerate(self.samples.classes)}

    def mean(self, values: Array) -> Array:
        """The weighted mean of values (S,), (B,)."""
        return ratio(self.weights @ values, self.total)

    @cached_property
    def ranking(self) -> dict[int, _Ranking]:
        """The ranking of each class."""
        return {label: self.rank(label) for label in self.samples.classes}

    def rank(self, label: int) -> _Ranking:
        """How well the probability of a class ranks its samples."""
        order, first, last = self.samples.order(label)
        positive = np.flatnonzero(self.samples.labels[order] == label)  # (P,) their places in the order
        if not len(positive):
            return _Ranking(*np.full((2, len(self.weights)), np.nan))
        ordered = self.weights[:, order]
        above = np.cumsum(ordered, 1)  # (B, S) weight at this place and above
        hits = ordered[:, positive]  # (B, P)
        hits_above = np.cumsum(hits, 1)
        first, last = first[positive], last[positive]  # of the places with the same score
        to_last, to_first = above[:, last], above[:, first] - ordered[:, first]
        hits_to_last = hits_above[:, np.searchsorted(positive, last, "right") - 1]
        hits_to_first = hits_above[:, np.searchsorted(positive, first)] - hits[:, np.searchsorted(positive, first)]
        misses_to_last, misses_to_first = to_last - hits_to_last, to_first - hits_to_first
        positives = hits_above[:, -1]
        negatives = above[:, -1] - positives
        below = negatives[:, None] - (misses_to_last + misses_to_first) / 2  # ties count half
        precision = ratio(hits_to_last, to_last, empty=0.0)
        return _Ranking(
            ratio((hits * below).sum(1), positives * negatives), ratio((hits * precision).sum(1), positives)
        )

    def mean_over_classes(self, values: Callable[[int], Array]) -> Array:
        """The mean over the classes that have samples, of those where the value is defined."""
        by_class = np.stack([values(label) for label in self.samples.classes])  # (classes, B)
        if self.samples.positive is not None:
            return by_class[0]
        present = np.stack([self.counts[label].positive for label in self.samples.classes]) > 0
        counted = present & ~np.isnan(by_class)
        return ratio(np.where(counted, by_class, 0).sum(0), counted.sum(0))


def ratio(a: Array, b: Array, empty: float = np.nan) -> Array:
    """A / b, and `empty` where b is 0."""
    return np.divide(a, b, out=np.full(a.shape, empty, dtype=a.dtype), where=b > 0)


class ReliabilityBin(NamedTuple):
    """One bin of a reliability curve."""

    confidence: float  # mean predicted probability
    accuracy: float  # share of the samples where the prediction is right, or that are of the positive class
    low: float  # of the exact 95 % interval of the accuracy
    high: float
    samples: int


def reliability_curve(samples: PredictedClasses) -> list[ReliabilityBin]:
    """The bins with samples; predictions are calibrated where accuracy equals confidence.

    (A. Niculescu-Mizil and R. Caruana, Predicting good probabilities with supervised learning, ICML 2005; the
    calibration error is that of C. Guo et al., On calibration of modern neural networks, ICML 2017.)
    """
    confidence, is_true = samples.confidence
    curve = []
    for number in np.unique(samples.bins):
        inside = samples.bins == number
        x, n = int(is_true[inside].sum()), int(inside.sum())
        low, high = clopper_pearson(x, n, 0.95)
        curve.append(ReliabilityBin(float(confidence[inside].mean()), x / n, low, high, n))
    return curve


def clopper_pearson(x: int, n: int, confidence: float) -> tuple[float, float]:
    """The exact interval of a proportion x / n by Clopper and Pearson.

    >>> clopper_pearson(12, 12, 0.95)
    (0.735..., 1.0)
    """
    from scipy.special import betaincinv

    tail = (1 - confidence) / 2
    low = float(betaincinv(x, n - x + 1, tail)) if x else 0.0
    high = float(betaincinv(x + 1, n - x, 1 - tail)) if x < n else 1.0
    return low, high
