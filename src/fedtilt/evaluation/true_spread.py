"""Fairness beyond chance: how far the true scores of clients are apart, and what is known about each of them.

The score a_i of a client with n_i test rows has the variance V_i(t) over clients and rows, where t is the variance of
the true scores and S² the variance of one row over all clients, m (1 − m) of a pooled accuracy m:

    V_i(t) = t + (S² − t) / n_i            rows drawn at random
    V_i(t) = t + Σ_k n_ik S_k² / n_i²      shares of classes fixed: chance is within them

* **Interval.** Q(t) = Σ (a_i − ā)² / V_i(t), with ā weighted by 1 / V_i(t), is about χ² with N − 1 degrees of freedom
  at the true t, so the interval is all t in [0, S²] with Q(t) between its quantiles. (R. C. Paule and J. Mandel, J.
  Res. Natl. Bur. Stand. 87, 1982; W. Viechtbauer, Statistics in Medicine 26, 2007.) Variances are pooled, because
  those of single clients go with their scores. Errors have clients with other variances and long tails: there, Q is χ²
  times a number, with the degrees of freedom that the variances of clients leave (F. E. Satterthwaite, 1946).
* **Estimate.** The variance of the a_i less (1 − 1/N) · the mean of unbiased variances by chance: a_i (1 − a_i) /
  (n_i − 1) for random rows, the same by client and class where shares are fixed. It is unbiased for these N clients (J.
  C. Kleinman, JASA 68, 1973); the root is of at least 0.
* **Clients.** Shrunk by w = t / V_i(t) towards ā (empirical Bayes; C. N. Morris, JASA 78, 1983), averaged over t by the
  restricted likelihood of V_i(t), with the uncertainty of ā. A client's random rows have the variance p (1 − p) of its
  own accuracy; ends are quantiles of a beta distribution (accuracy) or Student's t with these moments. Where shares are
  fixed, t is averaged evenly over the interval, and the variance of an interval is wider by 2 w (1 − w).

NaN is unknown, and `reason` says why.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtilt.evaluation import scores
from fedtilt.evaluation.intervals import CONFIDENCE, student_interval
from fedtilt.evaluation.scores import ACCURACY, client_scores, client_variances, scores_of, variance_beyond_chance
from fedtilt.evaluation.weighted_predictions import Array

_HALVINGS = 50  # of the range in which Q crosses a quantile
_NODES = 24  # values of t whose likelihood is weighed for estimates of single clients
_POSSIBLE = np.array([0.0005, 0.9995])  # quantiles of Q between which they are
_LIKELY = np.array([0.025, 0.975])  # the same where shares are fixed
_LEAST_BETA = 0.1  # parameter of a beta distribution of true accuracies: clients are not just perfect or useless


class TrueSpread(NamedTuple):
    """How far the true scores of clients (or groups) are apart, in points or the unit of the target; NaN: unknown."""

    observed: float  # population std of the scores on the test data: the client fairness of the paper
    chance: float  # the std that would remain if all were equally good
    estimate: float  # std of the true scores; 0: chance explains all of it
    low: float  # of the interval
    high: float
    clients: int
    reason: str = ""  # why there is no interval

    @property
    def is_beyond_chance(self) -> bool:
        """Whether chance alone does not explain the observed spread: the interval does not contain 0."""
        return self.low > 0


class ClientEstimates(NamedTuple):
    """The true score of every client, shrunk towards the mean, with an interval; NaN: no test data, or unknown."""

    estimate: Tensor  # (N,)
    low: Tensor
    high: Tensor
    doubt: Tensor  # the probability that the true score is on the other side of the mean than the estimate
    mean: float  # of the clients' true scores

    def below(self, error: float = 0.05) -> Tensor:
        """Which clients are below the mean, (N,) bool; any is named wrongly with at most this probability.

        The interval of one client in sixty excludes the mean by chance, so the error is divided by their number.
        """
        return (self.estimate < self.mean) & self._certain(error)

    def above(self, error: float = 0.05) -> Tensor:
        """Which clients are above the mean, as `below`."""
        return (self.estimate > self.mean) & self._certain(error)

    def _certain(self, error: float) -> Tensor:
        return self.doubt <= error / max(1, int((~self.doubt.isnan()).sum()))

    def worst(self, higher_is_better: bool, error: float = 0.05) -> int | None:
        """The client with the worst estimate, of those that are worse than the mean as `below` says; None: nobody."""
        worse = self.below(error) if higher_is_better else self.above(error)
        if not worse.any():
            return None
        sign = 1 if higher_is_better else -1
        return int((sign * self.estimate).where(worse, math.inf).argmin())


class _Chance(NamedTuple):
    """The scores of the clients with rows, and V_i(t) = `base` + `slope` · t."""

    values: Array  # (N,)
    rows: Array
    base: Array
    slope: Array
    most: float  # the variance of one row, which t does not exceed
    freedom: float  # degrees of freedom of Q, which is χ² times (N − 1) / freedom

    def q(self, t: Array) -> tuple[Array, Array, Array]:
        """Q(t), ā and the variances of the clients' scores, (values of t, N)."""
        variances = self.base + self.slope * t[:, None]
        mean = (self.values / variances).sum(1) / (1 / variances).sum(1)
        return ((self.values - mean[:, None]) ** 2 / variances).sum(1), mean, variances

    def at_quantiles(self, levels: Array) -> Array:
        """The t at which Q is at these quantiles of its distribution; 0: Q(0) is below."""
        from scipy.special import chdtri  # slow to import

        quantiles = chdtri(self.freedom, 1 - levels) * (len(self.values) - 1) / self.freedom
        low, high = np.zeros_like(quantiles), np.full_like(quantiles, self.most)
        for _ in range(_HALVINGS):  # Q falls in t
            middle = (low + high) / 2
            is_above = self.q(middle)[0] > quantiles
            low, high = np.where(is_above, middle, low), np.where(is_above, high, middle)
        return np.where(low > 0, high, 0.0)


def true_spread(
    sums: Tensor, total: Tensor, confidence: float = CONFIDENCE, *, fixed_shares: bool = False
) -> TrueSpread:
    """The spread of the true accuracy, or mean absolute error, over clients.

    For groups over the samples of all clients, pass `sums.sum(0)[:, None]` and `total.sum(0)[:, None]`.

    >>> spread = true_spread(torch.tensor([[45], [60], [30], [52]]), torch.tensor([[60], [62], [59], [61]]))
    >>> [round(value, 1) for value in (spread.observed, spread.chance, spread.estimate, spread.low, spread.high)]
    [16.9, 4.4, 16.4, 9.7, 41.9]

    `sums` and `total` are those of `scores`; or differences of two methods on the same rows and their squares: whether
    some clients gain more. With `fixed_shares` of classes in each client's rows, the groups must be the classes.
    """
    values, variances = client_scores(sums, total), client_variances(sums, total, fixed_shares)[total.sum(1) > 0]
    observed, variance = _root(values.var(correction=0)), variance_beyond_chance(values, variances)
    by_chance, estimate = _root((1 - 1 / len(values)) * variances.mean()), _root(variance)
    chance = _chance(sums, total, fixed_shares)
    if isinstance(chance, str):
        return TrueSpread(observed, by_chance, estimate, math.nan, math.nan, len(values), chance)
    high, low = np.sqrt(chance.at_quantiles((1 + np.array([-1, 1]) * confidence) / 2)).tolist()
    return TrueSpread(observed, by_chance, estimate, low, high, len(values))


def true_spread_in_clients(sums: Tensor, total: Tensor, confidence: float = CONFIDENCE) -> TrueSpread:
    """The spread of the true score over the classes or groups of a client, root mean square over clients.

    The variance over the groups of one client, without that of chance, is unbiased; its mean over clients has an
    interval by Student's t over clients. Only clients with several groups count; NaN: there is none.
    """
    several = (total > 0).sum(1) > 1
    values = scores_of(sums)[0].values(sums, total)[several]
    variances = scores.sampling_variances(sums, total)[several]
    if variances.isnan().all():
        nan = math.nan
        return TrueSpread(nan, nan, nan, nan, nan, len(values), "the variance of a row is not known")
    corrected = variance_beyond_chance(values, variances)
    observed = variance_beyond_chance(values, variances * 0)
    low, high = map(_root, student_interval(corrected.numpy(), confidence))
    by_chance = _root((observed - corrected).mean())
    return TrueSpread(_root(observed.mean()), by_chance, _root(corrected.mean()), low, high, len(values))


def client_estimates(
    sums: Tensor, total: Tensor, confidence: float = CONFIDENCE, *, fixed_shares: bool = False
) -> ClientEstimates:
    """The true score of every client by empirical Bayes, with an interval; arguments as of `true_spread`.

    >>> found = client_estimates(torch.tensor([[0], [55], [80], [70]]), torch.tensor([[3], [60], [100], [80]]))
    >>> found.worst(higher_is_better=True) is None  # 0 of 3 is not beyond chance
    True
    """
    found = torch.full((4, len(total)), math.nan, dtype=torch.float64)
    chance = _chance(sums, total, fixed_shares) if knows_variances(sums, total, fixed_shares=fixed_shares) else ""
    if not isinstance(chance, str):
        bounded = scores_of(sums)[0] is ACCURACY
        found[:, total.sum(1) > 0] = torch.from_numpy(_true_values(chance, confidence, bounded, fixed_shares))
    estimate, low, high, doubt = found
    return ClientEstimates(estimate, low, high, doubt, float(estimate.nanmean()))


def _true_values(chance: _Chance, confidence: float, is_accuracy: bool, fixed_shares: bool) -> Array:
    """Estimates of all clients, both ends of their intervals, and doubts, (4, N)."""
    from scipy.special import betainc, betaincinv, stdtr, stdtrit  # slow to import

    rarer = min(chance.values.mean(), 100 - chance.values.mean()) / 100  # of right and wrong predictions
    most = chance.most / (1 + _LEAST_BETA / rarer) if is_accuracy else chance.most
    first, last = np.minimum(chance.at_quantiles(_LIKELY if fixed_shares else _POSSIBLE), most)
    t = np.linspace(first, last, _NODES)
    q, mean, variances = chance.q(t)
    log_likelihood = -(q + np.log(variances).sum(1) + np.log((1 / variances).sum(1))) / 2
    likelihood = np.exp(log_likelihood - log_likelihood.max())
    if fixed_shares:  # clients of one class are alike, which the likelihood takes for all clients
        likelihood = np.ones(_NODES)
    weight = t[:, None] / variances  # of a client's own rows
    means = mean[:, None] + weight * (chance.values - mean[:, None])
    of_rows = variances - t[:, None]
    if is_accuracy and not fixed_shares:  # of the client's own accuracy, with one right and one wrong row more
        share = (chance.rows * means / 100 + 1) / (chance.rows + 2)
        of_rows = 1e4 * share * (1 - share) / chance.rows
    of_mean = (1 - weight) ** 2 / (1 / variances).sum(1, keepdims=True)
    found = np.average(means, 0, likelihood)
    variance = np.average(weight * of_rows + of_mean + (means - found) ** 2, 0, likelihood)
    centre, levels = found.mean(), (1 + np.array([[-1], [1]]) * confidence) / 2
    # clients of one class are no normal sample, and shrunk too far: their intervals are wider
    wider = 1 + 2 * np.average(weight * (1 - weight), 0, likelihood) if fixed_shares else 1.0
    if is_accuracy:
        ends = 100 * betaincinv(*_beta(found / 100, wider * variance / 1e4), levels)
        below = betainc(*_beta(found / 100, variance / 1e4), centre / 100)
        doubt = np.where(found < centre, 1 - below, below)
    else:
        std = np.sqrt(variance)
        ends = found + stdtrit(chance.freedom, levels) * std
        doubt = stdtr(chance.freedom, -np.abs(found - centre) / std)
    return np.stack([found, np.minimum(ends[0], found), np.maximum(ends[1], found), doubt])


def _beta(share: Array, variance: Array) -> tuple[Array, Array]:
    """The parameters of beta distributions with these moments, without a peak at 0 or 1 beside the other."""
    variance = np.minimum(variance, 1 / 12)
    share = share.clip(np.sqrt(variance / 2), 1 - np.sqrt(variance / 2))
    size = share * (1 - share) / variance - 1
    return share * size, (1 - share) * size


def knows_variances(sums: Tensor, total: Tensor, *, fixed_shares: bool = False) -> bool:
    """Whether the variances of the clients' scores are known; otherwise, results are NaN."""
    return not bool(client_variances(sums, total, fixed_shares)[total.sum(1) > 0].isnan().any())


def _chance(sums: Tensor, total: Tensor, fixed_shares: bool) -> _Chance | str:
    """What is known of chance, or why there is no interval."""
    present = total.sum(1) > 0
    n, clients = total.sum(1)[present].double(), int(present.sum())
    own = client_variances(sums, total, fixed_shares)[present]
    most = float(scores.row_variances(sums.sum((0, 1)), total.sum()))
    if clients < 2:
        return "there is one client"
    if n.max() == 1:
        return "every client has one row"
    if own.isnan().any():
        is_known = not client_variances(sums, total)[present].isnan().any()
        return "shares are fixed, and counts not by class" if is_known else "the variance of a row is not known"
    if most <= 0:
        return "all rows have the same score"
    if not fixed_shares:
        base, slope = most / n, 1 - 1 / n
    elif 2 * total[:, (total > 0).sum(0) == 1].sum() > total.sum():
        return "most rows are of classes that one client alone has"
    else:
        base, slope = total[present].double() @ scores.class_variances(sums, total) / n.square(), torch.ones_like(n)
    freedom, ratio = clients - 1.0, own / base
    if sums.is_floating_point() and ratio.any():
        freedom *= float(ratio.mean().square() / ratio.square().mean())
    return _Chance(client_scores(sums, total).numpy(), n.numpy(), base.numpy(), slope.numpy(), most, freedom)


def _root(variance: Tensor | float) -> float:
    value = float(variance)
    return value if math.isnan(value) else math.sqrt(max(0.0, value))
