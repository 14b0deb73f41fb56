"""Metrics of some samples with their intervals."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedtilt import seeds
from fedtilt.evaluation.decision_metrics import METRICS
from fedtilt.evaluation.intervals import MIN_CLIENTS, MIN_SAMPLES, Bootstrap, Interval, bootstrap, exact_interval
from fedtilt.evaluation.number_metrics import NumberSamples
from fedtilt.evaluation.weighted_samples import Samples, Weighted

Array = np.ndarray
NO_SAMPLES = "no test samples"


class Estimate(NamedTuple):
    """A metric on some samples."""

    value: float  # NaN: not defined
    intervals: tuple[Interval, ...]  # one for each confidence that was asked for
    samples: int
    undefined: str = ""  # why the value is not defined
    resampled: Array | None = None  # (resamples,) values of the bootstrap, if the interval comes from one
    units: int = 0  # how many clients or samples were resampled

    @property
    def interval(self) -> Interval:
        """The interval of the first confidence."""
        return self.intervals[0]

    @property
    def reason(self) -> str:
        """Why the value or its interval is missing; empty: nothing is."""
        return self.undefined or self.interval.reason


def estimate(
    samples: Samples | NumberSamples,
    clients: Array,
    metrics: Sequence[str],
    confidences: Sequence[float],
    *,
    resamples: int,
    rows: Array | None = None,
    key: int = 0,
) -> dict[str, Estimate]:
    """Metrics of these samples by name, each with an interval for every confidence.

    A proportion over few clients has an exact interval, everything else that of a bootstrap; a proportion of 0 or 1,
    which is the same in all resamples, has an exact one too.

    Args:
        samples: labels and probabilities, or numbers and predictions
        clients: the client of each sample, (S,)
        metrics: names of `METRICS`
        confidences: of the intervals
        resamples: of the bootstrap; 0: only exact intervals
        rows: the samples that the metrics are about, (S,) bool, while all clients are resampled; None: all
        key: tells apart the random numbers of several estimates
    """
    everyone = clients
    if rows is not None:
        samples, clients = samples.take(rows), clients[rows]
    count, few_clients = len(clients), len(np.unique(clients)) < MIN_CLIENTS
    undefined = {name: _undefined(name, samples, count) for name in metrics}
    defined = [name for name in metrics if not undefined[name]]
    whole = Weighted(samples, np.ones((1, count)))
    values = {name: float(METRICS[name].values(whole)[0]) for name in defined}
    undefined |= {name: METRICS[name].undefined for name in defined if math.isnan(values[name])}
    shares = {name: METRICS[name].proportion(samples) for name in defined if not undefined[name]}
    resampled = [name for name, share in shares.items() if share is None or not few_clients]
    drawn, reason = None, "" if resamples else "only exact intervals"
    if few_clients and count < MIN_SAMPLES:
        reason = f"fewer than {MIN_SAMPLES} samples"
    if resampled and not reason:
        drawn = _bootstrap(samples, *((clients, None) if few_clients else (everyone, rows)), resampled, resamples, key)

    def interval(name: str, confidence: float) -> Interval:
        if undefined[name]:
            return Interval(reason=undefined[name])
        found = Interval(reason=reason) if drawn is None or name not in resampled else drawn.interval(name, confidence)
        share = shares[name]
        return found if found.kind or share is None else exact_interval(*share, confidence)

    estimates = {}
    for name in metrics:
        intervals = tuple(interval(name, confidence) for confidence in confidences)
        found = Estimate(values.get(name, math.nan), intervals, count, undefined[name])
        if drawn is not None and found.interval.kind == drawn.kind:
            found = found._replace(resampled=drawn.values[name], units=drawn.units)
        estimates[name] = found
    return estimates


def _undefined(name: str, samples: Samples | NumberSamples, count: int) -> str:
    if not count:
        return NO_SAMPLES
    return "about one class only" if METRICS[name].needs_positive and samples.positive is None else ""


def _bootstrap(
    samples: Samples | NumberSamples,
    clients: Array,
    rows: Array | None,
    metrics: Sequence[str],
    resamples: int,
    key: int,
) -> Bootstrap:
    def values(weights: Array) -> dict[str, Array]:
        weighted = Weighted(samples, weights)
        return {name: METRICS[name].values(weighted) for name in metrics}

    return bootstrap(values, clients, resamples, seeds.key(0, "bootstrap of metrics", client=key), rows)
