"""Metrics of some samples with their intervals, exact or from a bootstrap, and the gap between groups in a metric."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedtilt import seeds
from fedtilt.evaluation.decision_metrics import METRICS
from fedtilt.evaluation.weighted_predictions import Array, PredictedClasses, Samples, Weighted, clopper_pearson

CONFIDENCE = 0.95  # of an interval, unless another one is asked for
MIN_CLIENTS = 5  # among fewer, samples are resampled within each client
RESAMPLES = 1000  # of a bootstrap, unless another number is given
MIN_SAMPLES = 10  # fewer are too few to resample
MIN_UNITS = 5  # of the rarer class
NO_SAMPLES = "no test samples"
Range = tuple[float, float]
LARGE = 20_000  # of more samples, sums of units are resampled: of clients, or of blocks of samples
BLOCKS = 1000  # of a client
_CHUNK = 1_000_000  # weights at a time
_UNKNOWN = math.nan, math.nan
_SAME = "the same in all resamples"


class Interval(NamedTuple):
    """Where a metric may be, and how that was computed."""

    low: float = math.nan  # NaN: no interval
    high: float = math.nan
    kind: str = ""  # "exact", "bootstrap over clients", "bootstrap over samples" or "… over blocks of samples"
    reason: str = ""  # why there is none


def student_interval(values: Array, confidence: float) -> Range:
    """Of the mean of values, by Student's t: x̄ ± t s / √n; one value has none.

    >>> low, high = student_interval(np.array([1.0, 2.0, 3.0]), 0.95)
    >>> round(low, 2), round(high, 2)
    (-0.48, 4.48)
    """
    from scipy.special import stdtrit

    if len(values) < 2:
        return -math.inf, math.inf
    margin = float(stdtrit(len(values) - 1, (1 + confidence) / 2) * values.std(ddof=1)) / math.sqrt(len(values))
    return float(values.mean()) - margin, float(values.mean()) + margin


class Bootstrap(NamedTuple):
    """Resampled values of metrics by name, each (resamples,)."""

    values: Mapping[str, Array]
    units: int  # how many clients, samples or blocks of samples have the rarer class, or were resampled
    rows: int  # samples of that class
    kind: str

    def interval(self, name: str, value: float, rows: int, confidence: float) -> Interval:
        """Student's t interval of a metric from its resampled variance, on the scale where its errors are symmetric.

        With u units and t the quantile of u − 1 degrees of freedom, a share v of m rows is (m v + 1/2) / (m + 1) ± t s
        on the scale of logits, where s² has the variance of the resamples, times u / (u − 1), and that of one more row
        with a share of 1/2, ((v − 1/2) / (m + 1))²; an error v is v · exp(± t s) with the relative variance and that of
        one more unit, 1 / (u + 1)². Percentiles of resamples have covered 65 % with few samples of a rare class.
        """
        from scipy.special import expit, logit, stdtrit

        scale, values = METRICS[name].scale, self.values[name]
        defined = values[~np.isnan(values)]
        if not scale:
            return Interval(reason="resamples say nothing about its bias")
        if 2 * len(defined) < len(values):
            return Interval(reason="not defined in most resamples")
        if np.ptp(defined) < 1e-12:
            return Interval(reason=_SAME)
        if not rows:
            return Interval(reason="samples of only one class")  # what it would be with another one is unknown
        if self.units < MIN_UNITS:
            return Interval(reason=f"fewer than {MIN_UNITS} {self.kind.split()[-1]} of a class")
        center, slope, extra = value, 1.0, 0.0
        if scale == "share":
            center = (rows * value + 0.5) / (rows + 1)
            slope, extra = 1 / (center * (1 - center)), (value - 0.5) / (rows + 1)
        elif scale == "error":
            slope, extra = 1 / value, value / (self.units + 1)
        error = slope * math.sqrt(float(defined.var()) * self.units / (self.units - 1) + extra**2)
        margin = float(stdtrit(self.units - 1, (1 + confidence) / 2)) * error
        ends = {
            "share": lambda margin: float(expit(logit(center) + margin)),
            "error": lambda margin: value * math.exp(margin),
            "any": lambda margin: value + margin,
        }[scale]
        return Interval(ends(-margin), ends(margin), self.kind)


def expansion(units: int, confidence: float) -> float:
    """How much wider an interval of a mean is if its variance comes from this number of units, by Student's t.

    >>> round(expansion(6, 0.95), 2), round(expansion(100, 0.95), 2)
    (1.44, 1.02)
    """
    from scipy.special import ndtri, stdtrit

    quantile = (1 + confidence) / 2
    return float(stdtrit(units - 1, quantile) / ndtri(quantile)) * math.sqrt(units / (units - 1))


class Estimate(NamedTuple):
    """A metric on some samples."""

    value: float  # NaN: not defined
    intervals: tuple[Interval, ...]  # one for each confidence that was asked for
    samples: int
    undefined: str = ""  # why the value is not defined
    resampled: Array | None = None  # (resamples,) values of the bootstrap, if the interval comes from one
    units: int = 0  # as in `Bootstrap`

    @property
    def interval(self) -> Interval:
        """The interval of the first confidence."""
        return self.intervals[0]

    @property
    def reason(self) -> str:
        """Why the value or its interval is missing; empty: nothing is."""
        return self.undefined or self.interval.reason


def estimate(
    samples: Samples, clients: Array, metrics: Sequence[str], confidences: Sequence[float], *, resamples: int,
    rows: Array | None = None, key: int = 0,
) -> dict[str, Estimate]:  # fmt: skip
    """Metrics of these samples by name, each with an interval for every confidence.

    A proportion over few clients has an exact interval, everything else that of a bootstrap; a proportion of 0 or 1,
    which is the same in all resamples, has an exact one too. Without `resamples`, there are only exact intervals.

    `clients` is the client of each sample, (S,). The metrics are about `rows`, (S,) bool, while all clients are
    resampled; None: all. Estimates with another `key` have other random numbers.
    """
    everyone = clients
    if rows is not None:
        samples, clients = samples.take(rows), clients[rows]
    count, few_clients = len(clients), len(np.unique(clients)) < MIN_CLIENTS
    needs = {name: METRICS[name].needs_positive and samples.positive is None for name in metrics}
    undefined = {n: NO_SAMPLES if not count else "about one class only" if needs[n] else "" for n in metrics}
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
        members, chosen = (clients, None) if few_clients else (everyone, rows)
        drawn = bootstrap(samples, members, resampled, resamples, key, chosen)

    def interval(name: str, confidence: float) -> Interval:
        if undefined[name]:
            return Interval(reason=undefined[name])
        found, share = Interval(reason=reason), shares[name]
        if drawn is not None and name in resampled:
            found = drawn.interval(name, values[name], drawn.rows if share is None else share[1], confidence)
        if share is not None and (name not in resampled or found.reason == _SAME):
            return Interval(*clopper_pearson(*share, confidence), "exact")
        return found

    estimates = {}
    for name in metrics:
        intervals = tuple(interval(name, confidence) for confidence in confidences)
        found = Estimate(values.get(name, math.nan), intervals, count, undefined[name])
        if drawn is not None and found.interval.kind == drawn.kind:
            found = found._replace(resampled=drawn.values[name], units=drawn.units)
        estimates[name] = found
    return estimates


def bootstrap(
    samples: Samples, clients: Array, metrics: Sequence[str], resamples: int, key: int, rows: Array | None = None
) -> Bootstrap:
    """Metrics of resampled data; one key draws the same clients for any rows.

    Whole clients are drawn with replacement, because the samples of a client are alike; among fewer than `MIN_CLIENTS`
    the clients are fixed, and samples are drawn within each. Of more than `LARGE` samples, the sums of each client are
    resampled, and rankings are those of scores in bins; samples of fixed clients are drawn in `BLOCKS` of random
    samples, which have the variance of independent ones. (K. M. Wolter, Introduction to variance estimation, 2007,
    on random groups.)
    `samples` are those of `rows`, (S,) bool, `clients` those of all rows; the others are as in `estimate`.
    """
    numbers, client = np.unique(clients, return_inverse=True)
    rows = np.ones(len(client), dtype=bool) if rows is None else rows
    rng = seeds.generator(seeds.key(0, "bootstrap of metrics", client=key))
    is_large = len(client) > LARGE
    kind, unit, stratum = "samples", np.arange(len(client)), client
    if len(numbers) >= MIN_CLIENTS:
        kind, unit, stratum = "clients", client, np.zeros(len(numbers), dtype=int)
    elif is_large:
        kind, (unit, stratum) = "blocks of samples", _blocks(client, rng)
    unit = unit[rows]
    values: dict[str, list[Array]] = {name: [] for name in metrics}
    at_once = max(1, _CHUNK // (len(stratum) if is_large else len(client)))
    for start in range(0, resamples, at_once):
        weights = _draw(stratum, min(at_once, resamples - start), rng)
        weighted = Weighted(samples, weights, unit) if is_large else Weighted(samples, weights[:, unit])
        for name in metrics:
            values[name].append(METRICS[name].values(weighted))
    drawn = {name: np.concatenate(parts) for name, parts in values.items()}
    return Bootstrap(drawn, *_rarer_class(samples, unit), f"bootstrap over {kind}")


def _rarer_class(samples: Samples, unit: Array) -> tuple[int, int]:
    """The units and the samples of the rarer of two classes; of several, all units and the median of the samples."""
    everyone = len(np.unique(unit))
    if not isinstance(samples, PredictedClasses):
        return everyone, len(unit)
    labels = samples.labels if samples.positive is None else samples.labels == samples.positive
    found, counts = np.unique(labels, return_counts=True)
    if len(found) == 1:
        return everyone, 0
    units = min(len(np.unique(unit[labels == label])) for label in found) if len(found) == 2 else everyone
    return units, int(np.sort(counts)[(len(counts) - 1) // 2])


def _draw(stratum: Array, resamples: int, rng: np.random.Generator) -> Array:
    """How often each unit is drawn, with replacement, from the units of its stratum, (resamples, units)."""
    weights = np.empty((resamples, len(stratum)), dtype=np.float32)
    for number in range(int(stratum.max()) + 1):
        units = np.flatnonzero(stratum == number)
        weights[:, units] = rng.multinomial(len(units), np.full(len(units), 1 / len(units)), resamples)
    return weights


def _blocks(client: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """A random block of every sample, all of one client of nearly equal size; and the client of each block."""
    unit, stratum = np.empty(len(client), dtype=int), list[int]()
    for number in range(int(client.max()) + 1):
        members = rng.permutation(np.flatnonzero(client == number))
        count = min(BLOCKS, len(members))
        unit[members] = len(stratum) + np.arange(len(members)) % count
        stratum += [number] * count
    return unit, np.array(stratum)


class Gap(NamedTuple):
    """How far apart the groups are in one metric; NaN where nothing is known."""

    lowest: str  # the group
    highest: str
    minimum: float
    maximum: float
    difference: float  # maximum − minimum
    difference_low: float
    difference_high: float
    ratio: float  # minimum / maximum
    ratio_low: float
    ratio_high: float


def gap_between(estimates: Mapping[str, Estimate], confidence: float) -> Gap:
    """The gap between groups with an interval, if every group has one.

    The highest and the lowest of many groups differ by chance alone, so the interval holds for all pairs of groups at
    once. If all groups were resampled, it is that of `_range_of_pairs`; otherwise it follows from intervals of the
    groups that hold together, their second ones: the highest value is between the highest lower and upper end.
    """
    defined = {group: estimate for group, estimate in estimates.items() if not math.isnan(estimate.value)}
    if not defined:
        return Gap("", "", *[math.nan] * 8)
    lowest, highest = (choose(defined, key=lambda group: defined[group].value) for choose in (min, max))
    minimum, maximum = defined[lowest].value, defined[highest].value
    found = list(defined.values())
    resampled = [estimate.resampled for estimate in found if estimate.resampled is not None]
    if len(resampled) == len(found) > 1:
        of_each = 1 - (1 - confidence) / math.comb(len(found), 2)  # Bonferroni: t of few units has the longer tails
        wider = max(expansion(estimate.units, of_each) for estimate in found)
        difference, ratio = _from_resamples(np.array([e.value for e in found]), np.stack(resampled), confidence, wider)
    else:
        difference, ratio = _from_intervals(np.array([estimate.intervals[1][:2] for estimate in found]))
    ratio_value = minimum / maximum if maximum and minimum >= 0 else math.nan  # of signed values it means nothing
    return Gap(lowest, highest, minimum, maximum, maximum - minimum, *difference, ratio_value, *ratio)


def _from_intervals(intervals: Array) -> tuple[Range, Range]:
    """Intervals of the difference and the ratio from intervals of the groups, (groups, 2); NaN if a group has none."""
    low, high = intervals.T
    if np.isnan(intervals).any():
        return _UNKNOWN, _UNKNOWN
    difference = float(max(0.0, low.max() - high.min())), float(high.max() - low.min())
    if low.min() < 0:
        return difference, _UNKNOWN
    ratio = low.min() / high.max() if high.max() else math.nan, min(1.0, high.min() / low.max()) if low.max() else 1.0
    return difference, (float(ratio[0]), float(ratio[1]))


def _from_resamples(values: Array, resampled: Array, confidence: float, wider: float) -> tuple[Range, Range]:
    """Intervals of the difference and the ratio from resamples (groups, B); the ratio is a difference of logarithms."""
    difference = _range_of_pairs(values, resampled, confidence, wider)
    if (resampled <= 0).any() or (values <= 0).any():
        return difference, _UNKNOWN
    low, high = _range_of_pairs(np.log(values), np.log(resampled), confidence, wider)
    return difference, (math.exp(-high), math.exp(-low))


def _range_of_pairs(values: Array, resampled: Array, confidence: float, wider: float) -> Range:
    """An interval of the highest minus the lowest of several values, from resamples (groups, B) of all of them at once.

    With s_ij the standard deviation of the resampled v_i − v_j, and c the quantile of the largest deviation over all
    pairs in units of s_ij, all differences are within c · s_ij of v_i − v_j at once, as in Tukey's method; so is the
    largest. (J. P. Romano and M. Wolf, Exact and approximate stepdown methods for multiple hypothesis testing, JASA
    100, 2005.)
    """
    resampled = resampled[:, ~np.isnan(resampled).any(0)]
    if resampled.shape[1] < 20:
        return _UNKNOWN
    largest = np.zeros(resampled.shape[1])
    differences, errors = [], []
    for i in range(len(values) - 1):
        deviation = resampled[i] - resampled[i + 1 :] - (values[i] - values[i + 1 :])[:, None]  # (pairs, B)
        error = deviation.std(1)
        if (error < 1e-12).any():
            return _UNKNOWN
        largest = np.maximum(largest, np.abs(deviation / error[:, None]).max(0))
        differences.append(np.abs(values[i] - values[i + 1 :]))
        errors.append(error)
    margin = float(np.quantile(largest, confidence)) * wider * np.concatenate(errors)
    difference = np.concatenate(differences)
    return float(max(0.0, (difference - margin).max())), float((difference + margin).max())
