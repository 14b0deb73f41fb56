"""The reliability curve: how often predictions are right, by their confidence."""

from typing import NamedTuple

import numpy as np

from fedtilt.evaluation.intervals import exact_interval
from fedtilt.evaluation.weighted_samples import Samples


class ReliabilityBin(NamedTuple):
    """One bin of a reliability curve."""

    confidence: float  # mean predicted probability
    accuracy: float  # share of the samples where the prediction is right, or that are of the positive class
    low: float  # of the exact 95 % interval of the accuracy
    high: float
    samples: int


def reliability_curve(samples: Samples) -> list[ReliabilityBin]:
    """The bins with samples; predictions are calibrated where accuracy equals confidence.

    (A. Niculescu-Mizil and R. Caruana, Predicting good probabilities with supervised learning, ICML 2005; the
    calibration error is that of C. Guo et al., On calibration of modern neural networks, ICML 2017.)
    """
    confidence, is_true = samples.confidence
    curve = []
    for number in np.unique(samples.bins):
        inside = samples.bins == number
        x, n = int(is_true[inside].sum()), int(inside.sum())
        interval = exact_interval(x, n, 0.95)
        curve.append(ReliabilityBin(float(confidence[inside].mean()), x / n, interval.low, interval.high, n))
    return curve
