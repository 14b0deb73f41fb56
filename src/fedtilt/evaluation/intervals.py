"""Intervals of metrics: exact ones of proportions, and the bootstrap over clients or over samples."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from fedtilt import seeds

Array = np.ndarray
MIN_CLIENTS = 5  # among fewer, samples are resampled within each client
MIN_SAMPLES = 10  # fewer are too few to resample
_CHUNK = 1_000_000  # weights at a time


class Interval(NamedTuple):
    """Where a metric may be, and how that was computed."""

    low: float = math.nan  # NaN: no interval
    high: float = math.nan
    kind: str = ""  # "exact", "bootstrap over clients" or "bootstrap over samples"
    reason: str = ""  # why there is none


class Bootstrap(NamedTuple):
    """Resampled values of metrics by name, each (resamples,)."""

    values: Mapping[str, Array]
    units: int  # how many clients or samples were resampled
    kind: str

    def interval(self, name: str, confidence: float) -> Interval:
        """The percentile interval of a metric, expanded as Student's t is for few units.

        (T. C. Hesterberg, What teachers should know about the bootstrap, The American Statistician 69, 2015.)
        """
        from scipy.special import ndtr

        values = self.values[name]
        defined = values[~np.isnan(values)]
        if 2 * len(defined) < len(values):
            return Interval(reason="not defined in most resamples")
        if np.ptp(defined) < 1e-12:
            return Interval(reason="the same in all resamples")
        tail = float(ndtr(-expansion(self.units, confidence) * _normal_quantile(confidence)))
        low, high = np.quantile(defined, [tail, 1 - tail])
        return Interval(float(low), float(high), self.kind)


def expansion(units: int, confidence: float) -> float:
    """How much wider an interval of a mean is if its variance comes from so many units, by Student's t.

    >>> round(expansion(6, 0.95), 2), round(expansion(100, 0.95), 2)
    (1.44, 1.02)
    """
    from scipy.special import stdtrit

    t = float(stdtrit(units - 1, (1 + confidence) / 2))
    return t / _normal_quantile(confidence) * math.sqrt(units / (units - 1))


def _normal_quantile(confidence: float) -> float:
    from scipy.special import ndtri

    return float(ndtri((1 + confidence) / 2))


def exact_interval(x: int, n: int, confidence: float) -> Interval:
    """The interval of a proportion x / n by Clopper and Pearson.

    >>> exact_interval(12, 12, 0.95)
    Interval(low=0.735..., high=1.0, kind='exact', reason='')
    """
    from scipy.special import betaincinv

    tail = (1 - confidence) / 2
    low = float(betaincinv(x, n - x + 1, tail)) if x else 0.0
    high = float(betaincinv(x + 1, n - x, 1 - tail)) if x < n else 1.0
    return Interval(low, high, "exact")


def bootstrap(
    metrics: Callable[[Array], Mapping[str, Array]],
    clients: Array,
    resamples: int,
    key: int,
    rows: Array | None = None,
) -> Bootstrap:
    """Metrics of resampled data; one key draws the same clients for any rows.

    Whole clients are drawn with replacement, because the samples of a client are alike; among fewer than `MIN_CLIENTS`
    the clients are fixed, and samples are drawn within each.

    Args:
        metrics: values (B,) by name, a function of weights (B, samples)
        clients: the client of each sample, (samples,)
        resamples: how many
        key: of the random numbers, from `seeds.key`
        rows: the samples that the metrics are about, (samples,) bool; the weights are theirs; None: all
    """
    numbers, client = np.unique(clients, return_inverse=True)
    rows = np.ones(len(client), dtype=bool) if rows is None else rows
    over_clients = len(numbers) >= MIN_CLIENTS
    draw = _draw_clients if over_clients else _draw_samples
    parts = [metrics(weights[:, rows]) for weights in draw(client, resamples, seeds.generator(key))]
    kind = f"bootstrap over {'clients' if over_clients else 'samples'}"
    units = len(np.unique(client[rows])) if over_clients else int(rows.sum())
    return Bootstrap({name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, units, kind)


def _draw_clients(client: Array, resamples: int, rng: np.random.Generator) -> Iterator[Array]:
    count = int(client.max()) + 1
    for size in _chunks(resamples, len(client)):
        yield rng.multinomial(count, np.full(count, 1 / count), size).astype(np.float32)[:, client]


def _draw_samples(client: Array, resamples: int, rng: np.random.Generator) -> Iterator[Array]:
    for size in _chunks(resamples, len(client)):
        weights = np.empty((size, len(client)), dtype=np.float32)
        for number in range(int(client.max()) + 1):
            rows = np.flatnonzero(client == number)
            weights[:, rows] = rng.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), size)
        yield weights


def _chunks(resamples: int, samples: int) -> Iterator[int]:
    size = max(1, _CHUNK // samples)
    for start in range(0, resamples, size):
        yield min(size, resamples - start)
