"""Metrics of predicted numbers: MAE, RMSE, mean error and R², as functions of weighted samples.

They have the form of those of `decision_metrics`: one value per row of weights (B, S), and NaN where a metric is not
defined. MAE, RMSE and mean error are in the unit of the target.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class NumberSamples:
    """Targets and predictions, both (S,), in the unit of the target."""

    targets: Array
    predictions: Array

    positive = None  # numbers have no class that metrics are about

    @cached_property
    def errors(self) -> Array:
        """Prediction − target, (S,)."""
        return self.predictions - self.targets

    def take(self, rows: Array) -> "NumberSamples":
        """The samples of these rows."""
        return NumberSamples(self.targets[rows], self.predictions[rows])


def mean_absolute_error(errors: Array, targets: Array, weights: Array) -> Array:
    """Mean of |error|."""
    return _mean(np.abs(errors), weights)


def root_mean_squared_error(errors: Array, targets: Array, weights: Array) -> Array:
    """Root of the mean of error²."""
    return np.sqrt(_mean(np.square(errors), weights))


def mean_error(errors: Array, targets: Array, weights: Array) -> Array:
    """Mean of the error: above 0, predictions are too high on average."""
    return _mean(errors, weights)


def r2(errors: Array, targets: Array, weights: Array) -> Array:
    """1 − Σ error² / Σ (target − its mean)²: the share of the variance that is predicted."""
    centred = targets - targets.mean() if len(targets) else targets  # the variance of large numbers cancels otherwise
    variance = _mean(np.square(centred), weights) - np.square(_mean(centred, weights))
    explained = np.full(len(weights), np.nan)
    varies = variance > 1e-12 * np.square(centred).max(initial=0.0)
    return 1 - np.divide(_mean(np.square(errors), weights), variance, out=explained, where=varies)


def _mean(values: Array, weights: Array) -> Array:
    total = weights.sum(1)
    return np.divide(weights @ values, total, out=np.full(len(weights), np.nan), where=total > 0)
