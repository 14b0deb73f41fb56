"""Models of the true scores of clients, which few test samples show with noise: their likelihood and estimates.

A client with n test samples and true accuracy p has X ~ Binomial(n, p) correct predictions.

* **Accuracies.** With p ~ Beta, X is beta-binomial (J. G. Skellam, A probability distribution derived from the binomial
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

scipy is slow to import, so functions import it themselves.
"""

import math
from collections.abc import Callable
from functools import cache, lru_cache

import numpy as np
from torch import Tensor

from fedtilt.evaluation.scores import ACCURACY, client_scores, client_variances, scores_of
from fedtilt.evaluation.weighted_predictions import Array

_PRIOR_SAMPLES = 10  # how much the mean variance of all clients counts in the variance of one
_GRID = 15  # values of the spread at which its likelihood is computed
_UNLIKELY = 10.0  # this far below its maximum, the log-likelihood is neglected
_LEAST_BETA = 0.1  # parameter of the beta distribution of true accuracies, for estimates of single clients
_SMALLEST = 1e-9
_EXACT = 2000  # terms of the likelihood that are summed one by one, of more than `_LARGE`
_LARGE = 20_000


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


class BetaBinomial:
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


class Normal:
    """True values are normal around a mean, and so are the means of samples around them, with known variances."""

    scale = 1.0

    def __init__(self, values: Array, variances: Array) -> None:
        self.clients, self._values, self._variances = len(values), values, variances
        self.largest = 20 * float(np.ptp(values)) + _SMALLEST

    def profile(self, spread: float) -> tuple[float, float]:
        """The restricted log-likelihood of a spread, and the most likely mean."""
        variances = self._variances + spread**2
        mean = float((self._values / variances).sum() / (1 / variances).sum())
        squares = ((self._values - mean) ** 2 / variances).sum()
        return -0.5 * float(np.log(variances).sum() + math.log((1 / variances).sum()) + squares), mean

    def posterior(self, spread: float, mean: float) -> tuple[Array, Array]:
        """As of `BetaBinomial`."""
        weight = spread**2 / (self._variances + spread**2)
        of_mean = 1 / (1 / (self._variances + spread**2)).sum()
        found = mean + weight * (self._values - mean)
        return found, weight * self._variances + (1 - weight) ** 2 * of_mean

    def quantile(self, level: float, mean: Array, variance: Array) -> Array:
        """A quantile of true values with these means and variances."""
        from scipy.special import ndtri

        return np.asarray(mean + float(ndtri(level)) * np.sqrt(variance))


SpreadModel = BetaBinomial | Normal


def model_of(sums: Tensor, total: Tensor, doubt: float = 0.0) -> SpreadModel | None:
    """What is known of the clients that have test data; None: the variances of their scores are unknown."""
    samples = total.sum(1)
    present = samples > 0
    if scores_of(sums)[0] is ACCURACY:
        return _beta_binomial(tuple(sums.sum(1)[present].tolist()), tuple(samples[present].tolist()), doubt)
    variances = client_variances(sums, total)
    return None if variances.isnan().any() else normal_model(client_scores(sums, total), variances, samples[present])


@lru_cache(maxsize=128)  # a page and a terminal show the same clients
def _beta_binomial(correct: tuple[int, ...], samples: tuple[int, ...], doubt: float) -> BetaBinomial:
    return BetaBinomial(np.array(correct, dtype=np.int64), np.array(samples, dtype=np.int64), doubt)


def normal_model(values: Tensor, variances: Tensor, samples: Tensor) -> Normal:
    """The model of means of this number of samples, with the variances that the samples have."""
    # a variance from few samples is itself uncertain: it is moved towards that of all clients
    n = samples.double()
    of_one = variances * n
    pooled = (of_one * (n - 1)).sum() / (n - 1).sum()
    moved = (of_one * (n - 1) + pooled * _PRIOR_SAMPLES) / (n - 1 + _PRIOR_SAMPLES) / n
    return Normal(values.numpy(), moved.clamp(min=_SMALLEST).numpy())


def most_likely(model: SpreadModel) -> tuple[float, float]:
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


def crossing(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function is 0 between two values, at which it has different signs."""
    from scipy.optimize import brentq

    return float(brentq(function, low, high, rtol=1e-5))


def true_values(model: SpreadModel, confidence: float) -> Array:
    """Estimates of all true values and both ends of their intervals, (3, clients).

    Posteriors are averaged over the spread, each with the weight of its profile likelihood.
    """
    spread, most = most_likely(model)
    largest = model.largest
    if model.profile(largest)[0] < most - _UNLIKELY:
        largest = crossing(lambda x: model.profile(x)[0] - most + _UNLIKELY, spread, largest)
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
