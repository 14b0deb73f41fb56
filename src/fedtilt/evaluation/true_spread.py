"""Fairness beyond chance: how far the true scores of clients are apart, and what is known about each of them.

A client with n test samples and true accuracy p has X ~ Binomial(n, p) correct predictions. The standard deviation of
X / n over clients, the client fairness of the paper, grows with the chance in every X / n. Without it:

* **Method of moments.** E[var(X / n)] = var(p) + (1 − 1/N) · mean of p (1 − p) / n, with population variances over N
  clients. An unbiased estimate of p (1 − p) / n is x/n · (1 − x/n) / (n − 1), so the difference is unbiased for var(p),
  the variance of these N clients. (J. C. Kleinman, Proportions with extraneous variance, JASA 68, 1973.) The square
  root is taken of at least 0, and is therefore not unbiased itself. One sample says nothing about p (1 − p): a client
  with one has the mean of the others.
* **Likelihood.** With p ~ Beta, X is beta-binomial (J. G. Skellam, A probability distribution derived from the binomial
  distribution, JRSS B 10, 1948; D. A. Williams, The analysis of binary responses from toxicological experiments,
  Biometrics 31, 1975). With mean m and t = 1 / (alpha + beta), its likelihood needs only three counts for every j:

      log L(m, t) = Σ_j  #{x > j} log(m + j t) + #{n − x > j} log(1 − m + j t) − #{n > j} log(1 + j t)

  The standard deviation is √(m (1 − m) t / (1 + t)). Its estimate and its interval come from the profile likelihood:
  the interval has all values whose log-likelihood, maximised over m, is at most F / 2 below the maximum. F is the
  quantile of the F distribution with 1 and N − 1 degrees of freedom, in place of that of chi-squared, for few clients.
* **Means with known variances.** The mean absolute error of a client, or its mean difference between two methods, is
  normal about its true value, with the variance of its samples; true values are normal about their mean. The estimate
  is the restricted maximum likelihood (D. A. Harville, JASA 72, 1977), with the profile of the restricted likelihood.
  It is the random-effects model of R. DerSimonian and N. Laird (Meta-analysis in clinical trials, Controlled Clinical
  Trials 7, 1986).
* **Every client.** Given m and t, p ~ Beta(m/t + x, (1 − m)/t + n − x): shrunk towards the mean (empirical Bayes). A
  spread that is estimated at 0 would give every client the same point, so estimates and intervals average over the
  spread, weighted by its profile likelihood with a flat prior of its square; they contain the uncertainty of m, too.
  (C. N. Morris, Parametric empirical Bayes inference: theory and applications, JASA 78, 1983.)

All of it needs the variance of samples, which `sampling_variances` has for accuracy and mean absolute error. For other
scores, and for errors of clients with one sample each, results are NaN.

scipy is slow to import, so functions import it themselves.
"""

import math
from collections.abc import Callable
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtilt.evaluation.scores import (
    ACCURACY,
    client_scores,
    client_variances,
    sampling_variances,
    scores_of,
    variance_beyond_chance,
)
from fedtilt.evaluation.statistics import CONFIDENCE, PairedDifference, mean_difference
from fedtilt.evaluation.weighted_predictions import Array

_PRIOR_SAMPLES = 10  # how much the mean variance of all clients counts in the variance of one
_GRID = 15  # values of the spread at which its likelihood is computed
_UNLIKELY = 10.0  # this far below its maximum, the log-likelihood is neglected
_LEAST_BETA = 0.1  # parameter of the beta distribution of true accuracies, for estimates of single clients
_SMALLEST = 1e-9
_EXACT = 2000  # terms of the likelihood that are summed one by one, of more than `_LARGE`
_LARGE = 20_000


class TrueSpread(NamedTuple):
    """How far the true scores of clients (or groups) are apart, in points of accuracy, or in the unit of the target.

    NaN: unknown.
    """

    observed: float  # population std of the scores on the test data: the client fairness of the paper
    chance: float  # the std that would remain if all were equally good
    moments: float  # std of the true scores, by the method of moments; 0: chance explains all of it
    estimate: float  # the same by maximum likelihood
    low: float  # of its interval
    high: float
    mean: float  # of the true scores
    clients: int

    @property
    def is_beyond_chance(self) -> bool:
        """Whether chance alone does not explain the observed spread: the interval does not contain 0."""
        return self.low > 0


class ClientEstimates(NamedTuple):
    """The true score of every client, shrunk towards the mean, with an interval; NaN: no test data, or unknown."""

    estimate: Tensor  # (N,)
    low: Tensor
    high: Tensor
    mean: float  # of the clients' true scores

    def worst(self, higher_is_better: bool) -> int | None:
        """The client with the worst estimate, of those whose interval is worse than the mean; None: there is none."""
        worse = self.high < self.mean if higher_is_better else self.low > self.mean
        if not worse.any():
            return None
        sign = 1 if higher_is_better else -1
        return int((sign * self.estimate).where(worse, math.inf).argmin())


def true_spread(sums: Tensor, total: Tensor, confidence: float = CONFIDENCE) -> TrueSpread:
    """The spread of the true accuracy, or mean absolute error, over clients.

    For groups over the samples of all clients, pass `sums.sum(0)[:, None]` and `total.sum(0)[:, None]`.

    >>> spread = true_spread(torch.tensor([[45], [60], [30], [52]]), torch.tensor([[60], [62], [59], [61]]))
    >>> [round(value, 1) for value in (spread.observed, spread.chance, spread.moments, spread.estimate)]
    [16.9, 4.4, 16.4, 16.2]
    >>> round(spread.low, 1), round(spread.high, 1)
    (5.3, 43.9)

    Args:
        sums: correct predictions (clients, groups), or errors (clients, groups, 2); see `metrics`
        total: test samples, (clients, groups)
        confidence: of the interval
    """
    model, values = _model(sums, total), client_scores(sums, total)
    if model is None:
        return _unknown(len(values))
    return _spread(model, values, client_variances(sums, total), confidence)


def true_spread_in_clients(sums: Tensor, total: Tensor, confidence: float = CONFIDENCE) -> TrueSpread:
    """The spread of the true score over the classes or groups of a client, root mean square over clients.

    The variance over the groups of one client, without that of chance, is unbiased; its mean over clients has an
    interval by Student's t over clients. Only clients with several groups count; NaN: there is none.
    """
    several = (total > 0).sum(1) > 1
    values = scores_of(sums)[0].values(sums, total)[several]
    variances = sampling_variances(sums, total)[several]
    if variances.isnan().all():
        return _unknown(len(values))
    corrected = variance_beyond_chance(values, variances)
    observed = variance_beyond_chance(values, variances * 0)
    found = mean_difference(corrected.tolist(), confidence)
    estimate, low, high = map(_root, (found.mean, found.low, found.high))
    chance = _root((observed - corrected).mean())
    return TrueSpread(
        _root(observed.mean()), chance, estimate, estimate, low, high, float(values.nanmean()), len(values)
    )


def spread_of_differences(
    differences: Tensor, variances: Tensor, samples: Tensor, confidence: float = CONFIDENCE
) -> TrueSpread:
    """The spread over clients of the true difference between two methods: whether some gain more than others.

    Args:
        differences: of every client, (clients,), the mean over its samples
        variances: of these due to the samples, (clients,)
        samples: their number, (clients,)
        confidence: of the interval
    """
    return _spread(_normal(differences, variances, samples), differences, variances, confidence)


def fairness_difference(
    ours: Tensor, theirs: Tensor, total: Tensor, confidence: float = CONFIDENCE
) -> PairedDifference:
    """The difference of the variances of true scores over clients, ours − theirs: below 0, ours are fairer.

    The variance without chance is a mean over clients of (score − mean)² · N / (N − 1) less the variance of the score,
    so the difference between two methods on the same clients is a mean of paired terms, with Student's t over clients.
    NaN, without an interval: unknown.
    """
    terms = []
    for sums in (ours, theirs):
        values = client_scores(sums, total)
        squares = (values - values.mean()).square() * len(values) / max(1, len(values) - 1)
        terms.append(squares - client_variances(sums, total))
    differences = terms[0] - terms[1]
    if differences.isnan().any():
        return PairedDifference(math.nan, -math.inf, math.inf, 1.0, math.nan, len(differences))
    return mean_difference(differences.tolist(), confidence)


def client_estimates(sums: Tensor, total: Tensor, confidence: float = CONFIDENCE) -> ClientEstimates:
    """The true score of every client by empirical Bayes, with an interval.

    >>> found = client_estimates(torch.tensor([[0], [55], [80], [70]]), torch.tensor([[3], [60], [100], [80]]))
    >>> found.worst(higher_is_better=True) is None  # 0 of 3 is not beyond chance
    True
    """
    scale = 100.0 if scores_of(sums)[0] is ACCURACY else 1.0
    found = torch.full((3, len(total)), math.nan, dtype=torch.float64)
    if (model := _model(sums, total, doubt=0.5)) is not None:
        found[:, total.sum(1) > 0] = scale * torch.from_numpy(_posterior(model, confidence))
    estimate, low, high = found
    return ClientEstimates(estimate, low, high, float(estimate.nanmean()))


def knows_variances(sums: Tensor, total: Tensor) -> bool:
    """Whether the variances of the clients' scores are known; otherwise, results are NaN."""
    return _model(sums, total) is not None


def _unknown(clients: int) -> TrueSpread:
    nan = math.nan
    return TrueSpread(nan, nan, nan, nan, nan, nan, nan, clients)


def _root(variance: Tensor | float) -> float:
    value = float(variance)
    return value if math.isnan(value) else math.sqrt(max(0.0, value))


# -- likelihoods of the spread ----------------------------------------------------------------------------------------


def _summation(length: int, steps: Array) -> tuple[Array, Array]:
    """Places j and weights, so that the sum over them is that over all j < length.

    Summed is a logarithm of j times a number that changes at `steps`. Of more than `_LARGE`, those from `_EXACT` on are
    integrated between steps and powers of two by Gauss and Legendre's rule, whose cost hardly grows with the samples.

    >>> j, weights = _summation(3, np.array([2]))
    >>> j.tolist(), weights.tolist()
    ([0.0, 1.0, 2.0], [1.0, 1.0, 1.0])
    """
    if length <= _LARGE:
        return np.arange(length, dtype=float), np.ones(length)
    exact = np.arange(_EXACT, dtype=float)
    powers = _EXACT * 2.0 ** np.arange(64)
    edges = np.unique(np.concatenate([[_EXACT, length], powers, steps]))
    edges = edges[(edges >= _EXACT) & (edges <= length)] - 0.5  # the sum over j is an integral from j − ½ to j + ½
    nodes, weights = np.polynomial.legendre.leggauss(8)
    half = np.diff(edges)[:, None] / 2
    places = edges[:-1, None] + half * (1 + nodes)
    return np.append(exact, places), np.append(np.ones(len(exact)), half * weights)


class _BetaBinomial:
    """True accuracies are drawn from a beta distribution."""

    scale, largest = 100.0, 0.4999  # of values in units of the score; the largest possible spread

    def __init__(self, correct: Array, samples: Array, doubt: float = 0.0) -> None:
        self.clients, self._doubt = len(samples), doubt  # right and wrong predictions that are added to all clients'
        self._x, self._n = correct.astype(float), samples.astype(float)
        counts = [np.sort(found) for found in (correct, samples - correct, samples)]
        self._j, weights = _summation(int(samples.max()), np.concatenate(counts))
        # how many clients have more than j correct, wrong and all samples
        self._more = [weights * (len(samples) - np.searchsorted(found, self._j + 0.5)) for found in counts]
        self._more[0][0] += doubt
        self._more[1][0] += doubt
        self.profile = cache(self._profile)

    def _log_likelihood(self, mean: Array, ratio: Array) -> Array:
        """Of means and ratios t = 1 / (alpha + beta), (values,)."""
        right, wrong, all_ = self._more
        steps = ratio[..., None] * self._j
        found = np.log(mean[..., None] + steps) @ right + np.log(1 - mean[..., None] + steps) @ wrong
        return np.asarray(found - np.log1p(steps) @ all_)

    def _profile(self, spread: float) -> tuple[float, float]:
        """The log-likelihood of a spread, maximised over the mean, and that mean."""
        if spread == 0:
            mean = float((self._x.sum() + self._doubt) / (self._n.sum() + 2 * self._doubt))
            inside = np.clip(mean, 1e-300, 1 - 1e-16)  # 0 · log(0) is 0
            return float(self._log_likelihood(np.array(inside), np.array(0.0))), mean
        half = math.sqrt(0.25 - spread**2)  # the mean of a beta distribution is within ½ ± this

        def log_likelihood(position: Array) -> Array:
            # m (1 − m) = spread² + half² (1 − position²)
            return self._log_likelihood(0.5 + half * position, spread**2 / (half**2 * (1 - position**2)))

        position, found = _maximise(log_likelihood, np.linspace(_SMALLEST - 1, 1 - _SMALLEST, 11))
        return found, 0.5 + half * position

    def posterior(self, spread: float, mean: float) -> tuple[Array, Array]:
        """Mean and variance of every true value, (clients,), given the spread; the mean is uncertain."""
        share = min(spread**2 / (mean * (1 - mean)), 1 - _SMALLEST)
        # if all predictions are right, clients that are either perfect or useless would be likely, and all be perfect
        ratio = min(share / (1 - share), min(mean, 1 - mean) / _LEAST_BETA)
        weight = ratio * self._n / (1 + ratio * self._n)  # of a client's own samples
        found = mean + weight * (self._x / self._n - mean)
        of_mean = mean * (1 - mean) / (self._n * (1 + ratio) / (1 + self._n * ratio)).sum()
        return found, found * (1 - found) * ratio / (1 + (self._n + 1) * ratio) + (1 - weight) ** 2 * of_mean

    def quantile(self, level: float, mean: Array, variance: Array) -> Array:
        """A quantile of true values with these means and variances."""
        from scipy.special import betaincinv

        size = mean * (1 - mean) / variance - 1
        return np.asarray(betaincinv(mean * size, (1 - mean) * size, level))


class _Normal:
    """True values are normal around a mean, and so are the means of samples around them, with known variances."""

    scale = 1.0

    def __init__(self, values: Array, variances: Array) -> None:
        self.clients, self._values, self._variances = len(values), values, variances
        self.largest = 20 * float(np.ptp(values)) + _SMALLEST

    def profile(self, spread: float) -> tuple[float, float]:
        variances = self._variances + spread**2
        mean = float((self._values / variances).sum() / (1 / variances).sum())
        squares = ((self._values - mean) ** 2 / variances).sum()
        return -0.5 * float(np.log(variances).sum() + math.log((1 / variances).sum()) + squares), mean

    def posterior(self, spread: float, mean: float) -> tuple[Array, Array]:
        weight = spread**2 / (self._variances + spread**2)
        of_mean = 1 / (1 / (self._variances + spread**2)).sum()
        found = mean + weight * (self._values - mean)
        return found, weight * self._variances + (1 - weight) ** 2 * of_mean

    def quantile(self, level: float, mean: Array, variance: Array) -> Array:
        from scipy.special import ndtri

        return np.asarray(mean + float(ndtri(level)) * np.sqrt(variance))


_Model = _BetaBinomial | _Normal


def _model(sums: Tensor, total: Tensor, doubt: float = 0.0) -> _Model | None:
    """What is known of the clients that have test data; None: the variances of their scores are unknown."""
    samples = total.sum(1)
    present = samples > 0
    if scores_of(sums)[0] is ACCURACY:
        return _beta_binomial(tuple(sums.sum(1)[present].tolist()), tuple(samples[present].tolist()), doubt)
    variances = client_variances(sums, total)
    return None if variances.isnan().any() else _normal(client_scores(sums, total), variances, samples[present])


@lru_cache(maxsize=128)  # a page and a terminal show the same clients
def _beta_binomial(correct: tuple[int, ...], samples: tuple[int, ...], doubt: float) -> _BetaBinomial:
    return _BetaBinomial(np.array(correct, dtype=np.int64), np.array(samples, dtype=np.int64), doubt)


def _normal(values: Tensor, variances: Tensor, samples: Tensor) -> _Normal:
    # a variance from few samples is itself uncertain: it is moved towards that of all clients
    n = samples.double()
    of_one = variances * n
    pooled = (of_one * (n - 1)).sum() / (n - 1).sum()
    moved = (of_one * (n - 1) + pooled * _PRIOR_SAMPLES) / (n - 1 + _PRIOR_SAMPLES) / n
    return _Normal(values.numpy(), moved.clamp(min=_SMALLEST).numpy())


def _spread(model: _Model, values: Tensor, variances: Tensor, confidence: float) -> TrueSpread:
    from scipy.special import fdtri

    observed = _root(variance_beyond_chance(values, variances * 0))
    chance = _root((1 - 1 / model.clients) * variances.mean())
    moments = _root(variance_beyond_chance(values, variances))
    estimate, most = _maximum(model)
    drop = float(fdtri(1, max(1, model.clients - 1), confidence)) / 2

    def above(spread: float) -> float:
        return model.profile(spread)[0] - (most - drop)

    low = _crossing(above, 0.0, estimate) if above(0.0) < 0 else 0.0
    high = _crossing(above, estimate, model.largest) if above(model.largest) < 0 else model.largest
    mean = model.profile(estimate)[1]
    estimate, low, high, mean = (model.scale * value for value in (estimate, low, high, mean))
    return TrueSpread(observed, chance, moments, estimate, low, high, mean, model.clients)


def _maximum(model: _Model) -> tuple[float, float]:
    """The most likely spread, and its log-likelihood."""

    def profile(spreads: Array) -> Array:
        return np.array([model.profile(float(spread))[0] for spread in np.atleast_1d(spreads)])

    spread, found = _maximise(profile, model.largest * np.linspace(0, 1, _GRID) ** 2)
    at_zero = model.profile(0.0)[0]
    return (0.0, at_zero) if at_zero >= found else (spread, found)


def _maximise(function: Callable[[Array], Array], grid: Array) -> tuple[float, float]:
    """Where a function is largest between the ends of a grid, and its value there."""
    from scipy.optimize import minimize_scalar

    best = int(function(grid).argmax())
    ends = float(grid[max(0, best - 1)]), float(grid[min(len(grid) - 1, best + 1)])
    tolerance = 1e-5 * (ends[1] - ends[0])
    found = minimize_scalar(lambda x: -float(function(np.array(x)).item()), bounds=ends, options={"xatol": tolerance})
    return float(found.x), -float(found.fun)


def _crossing(function: Callable[[float], float], low: float, high: float) -> float:
    from scipy.optimize import brentq

    return float(brentq(function, low, high, rtol=1e-5))


def _posterior(model: _Model, confidence: float) -> Array:
    """Estimates of all true values and both ends of their intervals, (3, clients).

    Posteriors are averaged over the spread, each with the weight of its profile likelihood.
    """
    spread, most = _maximum(model)
    largest = model.largest
    if model.profile(largest)[0] < most - _UNLIKELY:
        largest = _crossing(lambda x: model.profile(x)[0] - most + _UNLIKELY, spread, largest)
    spreads = [float(value) for value in np.linspace(0, largest, _GRID)]
    profiles = [model.profile(value) for value in spreads]
    # flat over variances: flat over standard deviations, the intervals of few clients are too narrow
    weights = np.array(spreads) * np.exp(np.array([found for found, _ in profiles]) - most)
    parts = [model.posterior(value, mean) for value, (_, mean) in zip(spreads, profiles, strict=True)]
    means, variances = (np.stack(found) for found in zip(*parts, strict=True))  # (spreads, clients)
    estimate = np.average(means, 0, weights)
    variance = np.average(variances + (means - estimate) ** 2, 0, weights)
    low, high = (model.quantile((1 + side * confidence) / 2, estimate, variance) for side in (-1, 1))
    return np.stack([estimate, np.minimum(low, estimate), np.maximum(high, estimate)])
