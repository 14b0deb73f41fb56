"""Who is better: the one function behind "best", "better", "helps" and "not told apart".

**On one draw of the test rows**, the difference of two methods is a mean of terms, one per client (see
`client_differences`). It is better beyond chance if two tests say so; p is the larger of their two:

* Student's t of the terms over clients: whether other clients would have a difference too.
* A test of chance in these rows, which says what few or equal differences are worth: if both methods are equally good,
  the sign of each discordant row (of each term, where the rows are not at hand) is that of a fair coin. All signs of up
  to 12 are enumerated; more are as in a t test of them alone. (R. A. Fisher, The design of experiments, 1935.)

Among fewer than five clients, the clients are fixed, and only their rows are tested.
Of exactly five, the verdict says no more than that about others: their signs are equal in 6 % by chance.

**Seeds that divide the same data again are no sample**: they share rows, and a test over them is wrong more often than
it says. Their p is twice the median of theirs, at most 1, which holds however they depend, and the interval is that of
the seed in the middle at half the error; of an even number, the middle two are averaged. (L. Rüschendorf, Random
variables with maximum sums, Advances in Applied Probability 14, 1982.) Only seeds that draw new data, at least three,
are tested as a sample.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedtilt.evaluation.client_differences import Draw, differences
from fedtilt.evaluation.intervals import MIN_CLIENTS
from fedtilt.evaluation.scores import ACCURACY, sampling_variances, scores_of
from fedtilt.evaluation.weighted_predictions import Array

LEVEL = 0.05
_ENUMERATED = 12  # signs
_NORMAL = 1e6  # degrees of freedom
_LEAST = 1e-300  # p is above 0
_TINY = 1e-15  # p below agrees with any interval without 0


class Verdict(NamedTuple):
    """The difference of two methods and how certain it is; above 0, ours is better."""

    difference: float
    low: float  # of the interval, which contains 0 where p is above the level; −inf: there is none
    high: float
    p_value: float  # two-sided; never 0
    reason: str = ""  # why nothing can be said

    def sign(self, level: float = LEVEL) -> int:
        """1 or −1 where ours is better or worse beyond chance, else 0."""
        return 0 if self.p_value > level or not self.difference else 1 if self.difference > 0 else -1


class Best(NamedTuple):
    """The best of several methods, as far as they can be told apart."""

    names: tuple[str, ...]  # the first, then those that are not worse beyond chance
    against_first: Mapping[str, Verdict]  # the first against every other method

    @property
    def first(self) -> str:
        """The method with the best value."""
        return self.names[0]


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values of several tests, by Holm's step-down method.

    The k-th smallest of m p-values is multiplied by m − k + 1, is at least the one before it, and at most 1. The tests
    whose adjusted p-value is at most 0.05 contain a false positive with a probability of at most 5 %. (S. Holm, A
    simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6, 1979.)

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def best(
    draws: Sequence[Draw], key: str, values: Mapping[str, float], *, higher_is_better: bool, digits: int = 2,
    level: float = LEVEL,
) -> Best:  # fmt: skip
    """The best method by a metric, with all that are not told apart from it.

    One method is named alone if it is better than each other one at the level: that it is the best is wrong only if all
    these are. (R. L. Berger, Multiparameter hypothesis testing and acceptance sampling, Technometrics 24, 1982.) Which
    is the first was seen on the same rows; to leave out some of the others alone, all pairs are corrected by Holm. A
    difference that disappears in the digits of a table is not told apart.

    `draws` are the seeds, `key` is as in `client_differences.differences`, and `values` are means over the draws.
    """
    return best_of(
        values, lambda pairs: compare(draws, key, pairs, higher_is_better=higher_is_better),
        higher_is_better=higher_is_better, digits=digits, level=level,
    )  # fmt: skip


def best_of(
    values: Mapping[str, float], compared: Callable[[Sequence[tuple[str, str]]], Sequence[Verdict]], *,
    higher_is_better: bool, digits: int = 2, level: float = LEVEL,
) -> Best:  # fmt: skip
    """`best` from `compared`, which returns the verdicts on pairs of methods, above 0 where the first is better."""
    methods = sorted(values, key=lambda name: values[name], reverse=higher_is_better)  # stable: the first of equals
    first, others = methods[0], methods[1:]
    pairs = [(first, name) for name in others] + [(a, b) for n, a in enumerate(others) for b in others[n + 1 :]]
    found = compared(pairs) if pairs else []
    against = dict(zip(others, found, strict=False))
    seen = {name: abs(values[first] - values[name]) >= 0.5 * 10**-digits for name in others}
    alone = all(seen[name] and verdict.sign(level) > 0 for name, verdict in against.items())
    adjusted = dict(zip(others, holm([verdict.p_value for verdict in found]), strict=False))
    worse = [n for n in others if seen[n] and against[n].sign(level) > 0 and (alone or adjusted[n] <= level)]
    return Best((first, *(name for name in values if name != first and name not in worse)), against)


def compare(
    draws: Sequence[Draw], key: str, pairs: Sequence[tuple[str, str]], *, higher_is_better: bool,
    confidence: float = 1 - LEVEL,
) -> list[Verdict]:  # fmt: skip
    """The difference of the two methods of each pair in a metric, above 0 where the first is better; see `best`."""
    within = [_within(draw, key, pairs, higher_is_better) for draw in draws]
    return _over_draws(within, all(draw.new_data for draw in draws), confidence)


def of_summaries(
    values: Array, errors: Array, freedom: float, *, new_data: bool = False, confidence: float = 1 - LEVEL
) -> list[Verdict]:
    """Verdicts on differences of which each draw has only the value and its standard error, both (draws, pairs).

    Of two methods whose clients are positively correlated, √((s² + s'²) / (N − 1)) is at least the standard error. An
    error of inf says that nothing is known. The degrees of freedom are one less than the clients.

    >>> found = of_summaries(np.array([[2.0], [2.5], [3.0]]), np.array([[0.5], [1.0], [0.8]]), 99)[0]
    >>> round(found.p_value, 4), round(found.low, 2), round(found.high, 2)  # of 3.0 ± 0.8, twice
    (0.0006, 1.18, 4.82)
    """
    within = [_summary(value, error, freedom) for value, error in zip(values, errors, strict=True)]
    return _over_draws(within, new_data, confidence)


def of_units(terms: Array, confidence: float = 1 - LEVEL) -> list[Verdict]:
    """Verdicts on means of terms (pairs, units) of units that are not clients, such as data sets; as on one draw.

    >>> found = of_units(np.array([[1.0, 1.0, 2.0, 1.0, 1.0, 1.0], [1.0, -1.0, 2.0, -3.0, 1.0, 0.0]]))
    >>> [round(verdict.p_value, 3) for verdict in found]  # six equal signs; about as many on each side
    [0.031, 1.0]
    """
    pairs, units = terms.shape
    value, freedom = terms.mean(1), np.full(pairs, max(1.0, units - 1))
    if units < MIN_CLIENTS:
        return _over_draws([_unknown(value, freedom, f"fewer than {MIN_CLIENTS} units")], False, confidence)
    return _over_draws([_of_terms(value, terms, freedom, _flips(terms))], False, confidence)


def _over_draws(within: Sequence["_Within"], new_data: bool, confidence: float) -> list[Verdict]:
    """One verdict for every pair, from those within the draws."""
    several = len(within) > 1
    value, error, freedom, p_values = (np.stack(arrays) for arrays in zip(*(draw[:4] for draw in within), strict=True))
    mean = value.mean(0)
    if len(within) > 2 and new_data:
        error = np.sqrt(np.maximum(value.var(0, ddof=1), np.square(error).mean(0)) / len(within))
        freedom = np.full(len(mean), len(within) - 1.0)
        p_value = _student(mean, error, freedom)
        low, high = _interval(mean, error, freedom, 1 - confidence)
    else:
        middle, spread, freedom, p_value = _median(value, error, freedom, p_values)
        p_value = np.where(middle * mean > 0, np.minimum(1, (1 + several) * p_value), 1.0)
        low, high = _interval(middle, spread, freedom, (1 - confidence) / (1 + several))
        low, high = np.minimum(low, mean), np.maximum(high, mean)
    low, high = np.nan_to_num(low, nan=-math.inf, neginf=-math.inf), np.nan_to_num(high, nan=math.inf, posinf=math.inf)
    reason = next((draw.reason for draw in within if draw.reason), "")
    return [
        Verdict(gap, least, most, p, "" if math.isfinite(least) else reason)
        for gap, least, most, p in zip(mean.tolist(), low.tolist(), high.tolist(), p_value.tolist(), strict=True)
    ]


def _median(*draws: Array) -> tuple[Array, Array, Array, Array]:
    """The draw in the middle by how certain it is, with the sign of its difference; of two, the mean of both."""
    value, _, _, p_values = draws  # (draws, pairs), as error and freedom are
    count = len(value)
    order = np.argsort(np.sign(np.nan_to_num(value)) * (1 - p_values), 0, kind="stable")  # p near 0: see `_LEAST`
    first, second = (
        [np.take_along_axis(array, order[n : n + 1], 0)[0] for array in draws] for n in ((count - 1) // 2, count // 2)
    )
    gap, error, freedom = (first[0] + second[0]) / 2, (first[1] + second[1]) / 2, np.minimum(first[2], second[2])
    return gap, error, freedom, first[3] if count % 2 else _student(gap, error, freedom)


def worse_clients(draws: Sequence[Mapping[str, Array]], level: float = LEVEL) -> list[str]:
    """The clients for which ours is worse beyond chance, with this probability of naming any wrongly.

    By the signs of discordant rows (Q. McNemar, Psychometrika 12, 1947), over seeds as above, corrected by Holm. Each
    draw has the differences of the rows of every client, above 0 where ours is better.
    """
    names = list(dict.fromkeys(name for draw in draws for name in draw))
    found = [[_p_worse(draw[name]) if name in draw else 1.0 for draw in draws] for name in names]
    factor = 2 if len(draws) > 1 else 1
    adjusted = holm([min(1.0, factor * float(np.median(p_values))) for p_values in found])
    return [name for name, p_value in zip(names, adjusted, strict=True) if p_value <= level]


def _p_worse(rows: Array) -> float:
    return float(_flips(rows[None])[0]) if rows.sum() < 0 else 1.0


class _Within(NamedTuple):
    """Differences on one draw, each (pairs,)."""

    value: Array
    error: Array  # standard error, at least that which p implies; inf: nothing can be said
    freedom: Array  # degrees of freedom of Student's t
    p_value: Array
    reason: str = ""


def _within(draw: Draw, key: str, pairs: Sequence[tuple[str, str]], higher_is_better: bool) -> _Within:
    found = differences(draw, key, pairs, higher_is_better=higher_is_better)
    value, differing = found.value, found.terms * found.differs
    if found.of_rows:
        error, freedom, p_value = _test_rows(draw, pairs, value)
        reason = "" if np.isfinite(error).all() else "few clients, and what they got in each row is not known"
        return _Within(value, _implied(value, error, freedom, p_value), freedom, p_value, reason)
    freedom = np.full(len(pairs), max(1.0, found.freedom))
    if found.reason:
        return _unknown(value, freedom, found.reason)
    chance = _flips(differing)
    if found.is_mean:  # of few clients, the rows too; of five alone in place of their signs, which never say enough
        few = np.flatnonzero(found.differs.sum(1) <= _ENUMERATED)
        if len(few) and (rows := _weighted_rows(draw, [pairs[n] for n in few.tolist()])) is not None:
            of_clients = chance[few] if found.terms.shape[1] > MIN_CLIENTS else 0.0  # signs of five: equal in 6 %
            chance[few] = np.maximum(of_clients, _flips(rows[0]))
    return _of_terms(value, found.terms, freedom, chance)


def _unknown(value: Array, freedom: Array, reason: str) -> _Within:
    return _Within(value, np.full(len(value), math.inf), freedom, np.ones(len(value)), reason)


def _of_terms(value: Array, terms: Array, freedom: Array, chance: Array) -> _Within:
    """By Student's t of the terms (pairs, units), and by the p of `chance`."""
    error = terms.std(1, ddof=1) / math.sqrt(terms.shape[1])
    p_value = np.where(np.isfinite(value), np.maximum(_student(value, error, freedom), chance), 1.0)
    return _Within(value, _implied(value, error, freedom, p_value), freedom, p_value)


def _summary(value: Array, error: Array, freedom: float) -> _Within:
    """By Student's t, and at least by what as many equal signs as there are clients say."""
    every = np.full(len(value), float(freedom))
    p_value = np.maximum(_student(value, error, every), 2.0**-freedom)
    reason = "" if np.isfinite(error).all() else "no counts of clients"
    return _Within(value, _implied(value, error, every, p_value), every, p_value, reason)


def _weighted_rows(draw: Draw, pairs: Sequence[tuple[str, str]]) -> tuple[Array, Array] | None:
    """The differences of rows, (pairs, S), which add up to the mean over clients, and the client of each; or None."""
    found = {name: draw.rows(name) for pair in pairs for name in pair}
    scores = {name: rows.scores for name, rows in found.items() if rows is not None and rows.scores is not None}
    first = found[pairs[0][0]]
    if first is None or len(scores) < len(found):
        return None
    client = np.unique(first.clients, return_inverse=True)[1]
    count = np.bincount(client)
    return np.stack([scores[a] - scores[b] for a, b in pairs]) / (len(count) * count[client]), client


def _test_rows(draw: Draw, pairs: Sequence[tuple[str, str]], value: Array) -> tuple[Array, Array, Array]:
    """Standard errors, degrees of freedom and p of differences of means over fixed clients, from their rows."""
    found = _weighted_rows(draw, pairs)
    if found is None:
        return _test_counts(draw, pairs, value)
    rows, client = found
    variance = np.zeros(len(pairs))
    for number in range(client.max() + 1):
        of_client = rows[:, client == number]
        count = of_client.shape[1]
        variance += count**2 * (of_client.var(1, ddof=1) / count if count > 1 else np.square(of_client).sum(1))
    error, freedom = np.sqrt(variance), np.full(len(pairs), _NORMAL)
    return error, freedom, np.maximum(_student(value, error, freedom), _flips(rows))


def _test_counts(draw: Draw, pairs: Sequence[tuple[str, str]], value: Array) -> tuple[Array, Array, Array]:
    """The same from counts alone, as if each method was wrong where the other is right: as far apart as is possible."""
    total = draw.total.sum(1)
    samples = total[total > 0]
    sums = {name: draw.sums[name].sum(1)[total > 0] for pair in pairs for name in pair}
    step = 0.0
    if scores_of(next(iter(sums.values())))[0] is ACCURACY:
        shares = {name: (right + 1) / (samples + 2) for name, right in sums.items()}  # neither 0 nor 1
        variances = {name: 1e4 * share * (1 - share) / samples for name, share in shares.items()}
        discordant = [float((sums[a] - sums[b]).abs().sum()) for a, b in pairs]  # at least
        step = 100 / float(samples.sum())  # half of what one row more changes, which is continuous otherwise
    else:
        variances = {name: sampling_variances(each, samples) for name, each in sums.items()}
        discordant = [float(samples.sum())] * len(pairs)
    both = [variances[a].sqrt() + variances[b].sqrt() for a, b in pairs]
    error = np.array([float(each.square().sum().sqrt()) for each in both]) / len(samples)
    error, freedom = np.nan_to_num(error, nan=math.inf), np.full(len(pairs), _NORMAL)
    least = np.minimum(1, 2.0 ** (1 - np.array(discordant)))
    return error, freedom, np.maximum(_student(np.maximum(0, np.abs(value) - step), error, freedom), least)


def _student(value: Array, error: Array, freedom: Array) -> Array:
    """Two-sided p of differences."""
    from scipy.special import stdtr

    ratio = np.abs(value) / np.where(error > 0, error, np.where(value == 0, 1, 1e-300))
    return np.maximum(_LEAST, 2 * stdtr(freedom, -ratio))


def _implied(value: Array, error: Array, freedom: Array, p_value: Array) -> Array:
    """The standard error, at least that with which Student's t has this p, so that the interval agrees with it."""
    from scipy.special import stdtrit

    implied = np.abs(value) / -stdtrit(freedom, np.clip(p_value, _TINY, 0.5) / 2)
    return np.maximum(error, np.where(p_value > _TINY, implied, 0))


def _interval(value: Array, error: Array, freedom: Array, level: float) -> tuple[Array, Array]:
    from scipy.special import stdtrit

    margin = -stdtrit(freedom, level / 2) * error
    return value - margin, value + margin


def _flips(terms: Array) -> Array:
    """Two-sided p of the sum of terms (n, units) if each of their signs is that of a fair coin, (n,).

    >>> _flips(np.array([[1.0, 2.0, 3.0, 0.0], [1.0, 1.0, 1.0, -1.0], [0.0, 0.0, 0.0, 0.0]])).tolist()
    [0.25, 0.625, 1.0]
    """
    from scipy.special import bdtr, stdtr

    size = np.abs(terms)
    count, total, largest = (size > 0).sum(1), np.abs(terms.sum(1)), size.max(1)
    ratio = total / np.sqrt(np.maximum(_LEAST, np.square(terms).sum(1)))
    freedom = np.maximum(1, count - 1)
    student = ratio * np.sqrt(freedom / np.maximum(1e-12, count - np.square(ratio)))  # the same as a t test of these
    p_value = np.where(count > 0, np.maximum(2 * stdtr(freedom, -student), 2.0 ** (1 - count)), 1.0)
    equal = (count > 0) & (np.where(size > 0, size, largest[:, None]).min(1) > (1 - 1e-9) * largest)
    fewer = np.minimum((terms > 0).sum(1), (terms < 0).sum(1))
    p_value = np.where(equal, np.minimum(1, 2 * bdtr(fewer, np.maximum(1, count), 0.5)), p_value)
    few = np.flatnonzero((count > 0) & (count <= _ENUMERATED) & ~equal)
    if len(few):
        places = min(terms.shape[1], int(count[few].max()))
        kept = np.take_along_axis(terms[few], np.argsort(-size[few], 1)[:, :places], 1)
        signs = 1 - 2 * (np.arange(2 ** (places - 1))[:, None] >> np.arange(places) & 1)  # by symmetry, one is fixed
        reached = np.abs(kept @ signs.T) >= (1 - 1e-9) * total[few, None]
        p_value[few] = reached.mean(1)
    return np.maximum(_LEAST, p_value)
