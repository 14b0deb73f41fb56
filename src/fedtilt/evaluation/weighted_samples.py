"""Samples with predicted probabilities and weights: the counts and rankings that metrics are functions of."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray
BINS = 10  # of equal width, of the calibration error and the reliability curve


@dataclass(frozen=True, eq=False)
class Samples:
    """Labels (S,) and predicted probabilities (S, K); `positive` is the class that metrics are about, if any."""

    labels: Array
    probabilities: Array
    positive: int | None = None

    @cached_property
    def predicted(self) -> Array:
        """The most probable class, (S,)."""
        return self.probabilities.argmax(1)

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
        """A probability, and whether what it is the probability of is true: the positive class, or the prediction."""
        if self.positive is None:
            return self.probabilities.max(1), self.correct
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

    def take(self, rows: Array, positive: int | None = None) -> "Samples":
        """The samples of these rows."""
        return Samples(self.labels[rows], self.probabilities[rows], self.positive if positive is None else positive)


class Counts(NamedTuple):
    """Weights of samples of one class against all others, each (B,)."""

    positive: Array
    predicted: Array
    hits: Array  # positive and predicted


class Ranking(NamedTuple):
    """How well the probability of one class ranks its samples above all others, each (B,)."""

    auroc: Array  # the probability that a positive sample has a higher score than a negative one; ties count half
    average_precision: Array  # the mean of the precision at the score of each positive sample


@dataclass(frozen=True, eq=False)
class Weighted:
    """Samples with weights (B, S)."""

    samples: Any  # Samples, or NumberSamples
    weights: Array

    @cached_property
    def total(self) -> Array:
        """The sum of the weights, (B,)."""
        return self.weights.sum(1)

    @cached_property
    def counts(self) -> dict[int, Counts]:
        """The counts of each class."""
        positive = self.samples.labels[:, None] == self.samples.classes  # (S, classes)
        predicted = self.samples.predicted[:, None] == self.samples.classes
        columns = np.concatenate([positive, predicted, positive & predicted], 1).astype(self.weights.dtype)
        sums = (self.weights @ columns).reshape(len(self.weights), 3, -1)
        return {label: Counts(*sums[:, :, i].T) for i, label in enumerate(self.samples.classes)}

    @cached_property
    def ranking(self) -> dict[int, Ranking]:
        """The ranking of each class."""
        return {label: self._rank(label) for label in self.samples.classes}

    def _rank(self, label: int) -> Ranking:
        order, first, last = self.samples.order(label)
        positive = np.flatnonzero(self.samples.labels[order] == label)  # (P,) their places in the order
        if not len(positive):
            return Ranking(*np.full((2, len(self.weights)), np.nan))
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
        return Ranking(ratio((hits * below).sum(1), positives * negatives), ratio((hits * precision).sum(1), positives))

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
