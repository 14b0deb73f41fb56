"""Predictions with weights: the counts and rankings that metrics are functions of, and the reliability curve."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray
BINS = 10  # of equal width, of the calibration error and the reliability curve
RANKS = 2000  # scores at which a class is divided into bins of a ranking, where samples are weighted in units


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

    def order(self, label: int) -> tuple[Array, Array]:
        """The samples by the probability of a class, descending; and the first place of each distinct probability."""
        score = -self.probabilities[:, label]
        order = np.argsort(score, kind="stable")
        ordered = score[order]
        return order, np.flatnonzero(np.concatenate([[True], ordered[1:] > ordered[:-1]])[: len(ordered)])

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


Samples = PredictedClasses | PredictedNumbers | SampleSums


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
    """Samples with weights, each its own or those of units; all that is computed has one value per row of weights.

    With units, a row of weights costs the number of units in place of that of samples. Sums are the same; a ranking is
    that of scores in bins, see `RANKS`.
    """

    samples: Any  # `Samples`: each metric takes one kind
    weights: Array  # (B, S), or (B, units)
    units: Array | None = None  # (S,) the unit of each sample, such as its client; None: weights of samples

    def sum(self, values: Array) -> Array:
        """The weighted sum of values (S,) or (S, k), (B,) or (B, k)."""
        if self.units is None:
            return self.weights @ values
        samples = np.arange(len(self.units))
        return self.weights @ (_indicator(self.units, samples, self.weights.shape[1], len(samples)) @ values)

    @cached_property
    def total(self) -> Array:
        """The sum of the weights of all samples, (B,)."""
        if self.units is None:
            return self.weights.sum(1)
        return self.weights @ np.bincount(self.units, minlength=self.weights.shape[1])

    @cached_property
    def counts(self) -> dict[int, ClassCounts]:
        """The counts of each class."""
        positive = self.samples.labels[:, None] == self.samples.classes  # (S, classes)
        predicted = self.samples.predicted[:, None] == self.samples.classes
        columns = np.concatenate([positive, predicted, positive & predicted], 1).astype(self.weights.dtype)
        sums = self.sum(columns).reshape(len(self.weights), 3, -1)
        return {label: ClassCounts(*sums[:, :, i].T) for i, label in enumerate(self.samples.classes)}

    def mean(self, values: Array) -> Array:
        """The weighted mean of values (S,), (B,)."""
        return ratio(self.sum(values), self.total)

    @cached_property
    def rank(self) -> Callable[[int], _Ranking]:
        """How well the probability of a class ranks its samples, by class."""
        return cache(self._rank)

    def _rank(self, label: int) -> _Ranking:
        order, starts = self.samples.order(label)
        is_label = self.samples.labels[order] == label
        if not is_label.any():
            return _Ranking(*np.full((2, len(self.weights)), np.nan))
        if self.units is None:
            ordered, middle = self.weights[:, order], np.zeros(len(starts))
            weight, hits = (np.add.reduceat(w, starts, axis=1) for w in (ordered, ordered * is_label))  # (B, scores)
            own = hits
        else:
            bins, middle = _rank_bins(is_label, starts)
            units, shape = self.units[order], (len(middle), self.weights.shape[1])
            of_bins = _indicator(bins, units, *shape), _indicator(bins[is_label], units[is_label], *shape)
            weight, hits = ((matrix @ self.weights.T).T for matrix in of_bins)  # (B, bins)
            own = hits / np.bincount(bins[is_label], minlength=len(middle)).clip(1)  # of one positive sample
        hits_to, weight_to = np.cumsum(hits, 1), np.cumsum(weight, 1)
        positives, negatives = hits_to[:, -1], weight_to[:, -1] - hits_to[:, -1]
        below = negatives[:, None] - (weight_to - hits_to) + (weight - hits) / 2  # ties count half
        precision = ratio(hits_to - middle * (hits - own), weight_to - middle * (weight - own), empty=0.0)
        auroc = ratio((hits * below).sum(1), positives * negatives)
        return _Ranking(auroc, average_precision=ratio((hits * precision).sum(1), positives))

    def mean_over_classes(self, values: Callable[[int], Array]) -> Array:
        """The mean over the classes that have samples, of those where the value is defined."""
        by_class = np.stack([values(label) for label in self.samples.classes])  # (classes, B)
        if self.samples.positive is not None:
            return by_class[0]
        present = np.stack([self.counts[label].positive for label in self.samples.classes]) > 0
        counted = present & ~np.isnan(by_class)
        return ratio(np.where(counted, by_class, 0).sum(0), counted.sum(0))


def _indicator(rows: Array, columns: Array, *shape: int) -> Any:
    """A sparse matrix that counts pairs of a row and a column."""
    from scipy.sparse import csr_matrix  # slow to import

    return csr_matrix((np.ones(len(rows)), (rows, columns)), shape=shape)


def _rank_bins(is_label: Array, starts: Array) -> tuple[Array, Array]:
    """The bin of each place of a ranking; and what part of a bin is below its mean sample.

    The score at which another share of 1 / `RANKS` of either class is reached is a bin, and so are those between two
    such scores; all are, if they are few. That part is a half, and 0 in a bin of one score, whose precision is that at
    its end.
    """
    ends = np.append(starts[1:], len(is_label))  # of each distinct score
    number = np.arange(len(ends))
    if len(ends) > RANKS:
        hits = np.append(0, np.cumsum(is_label))[ends]
        shares = [np.ceil(found * (RANKS / max(1, found[-1]))) for found in (hits, ends - hits)]
        reached = np.any([np.diff(share, prepend=0) > 0 for share in shares], 0)
        reached[1:] |= reached[:-1]  # the next bin begins after it
        number = np.cumsum(reached) - 1
    return np.repeat(number, np.diff(ends, prepend=0)), np.where(np.bincount(number) == 1, 0.0, 0.5)


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
