"""Fairness beyond chance: how far the true scores of clients are apart, and what is known about each of them.

A client with n test samples and true accuracy p has X ~ Binomial(n, p) correct predictions. The standard deviation of
X / n over clients, the client fairness of the paper, grows with the chance in every X / n. Without it:

* **Method of moments.** E[var(X / n)] = var(p) + (1 − 1/N) · mean of p (1 − p) / n, with population variances over N
  clients. An unbiased estimate of p (1 − p) / n is x/n · (1 − x/n) / (n − 1), so the difference is unbiased for var(p),
  the variance of these N clients. (J. C. Kleinman, Proportions with extraneous variance, JASA 68, 1973.) The square
  root is taken of at least 0, and is therefore not unbiased itself. One sample says nothing about p (1 − p): a client
  with one has the mean of the others.
* **Likelihood.** `spread_models` has the distribution of true scores; the estimate of its standard deviation and the
  interval come from its profile likelihood, and so do estimates for every client.

All of it needs the variance of samples, which `sampling_variances` has for accuracy and mean absolute error. For other
scores, and for errors of clients with one sample each, results are NaN.
"""

import math
from typing import NamedTuple

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
from fedtilt.evaluation.spread_models import SpreadModel, crossing, model_of, most_likely, normal_model, true_values
from fedtilt.evaluation.statistics import CONFIDENCE, mean_difference


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
    model, values = model_of(sums, total), client_scores(sums, total)
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
    return _spread(normal_model(differences, variances, samples), differences, variances, confidence)


def client_estimates(sums: Tensor, total: Tensor, confidence: float = CONFIDENCE) -> ClientEstimates:
    """The true score of every client by empirical Bayes, with an interval.

    >>> found = client_estimates(torch.tensor([[0], [55], [80], [70]]), torch.tensor([[3], [60], [100], [80]]))
    >>> found.worst(higher_is_better=True) is None  # 0 of 3 is not beyond chance
    True
    """
    scale = 100.0 if scores_of(sums)[0] is ACCURACY else 1.0
    found = torch.full((3, len(total)), math.nan, dtype=torch.float64)
    if (model := model_of(sums, total, doubt=0.5)) is not None:
        found[:, total.sum(1) > 0] = scale * torch.from_numpy(true_values(model, confidence))
    estimate, low, high = found
    return ClientEstimates(estimate, low, high, float(estimate.nanmean()))


def knows_variances(sums: Tensor, total: Tensor) -> bool:
    """Whether the variances of the clients' scores are known; otherwise, results are NaN."""
    return model_of(sums, total) is not None


def _spread(model: SpreadModel, values: Tensor, variances: Tensor, confidence: float) -> TrueSpread:
    from scipy.special import fdtri

    observed = _root(variance_beyond_chance(values, variances * 0))
    chance = _root((1 - 1 / model.clients) * variances.mean())
    moments = _root(variance_beyond_chance(values, variances))
    estimate, most = most_likely(model)
    drop = float(fdtri(1, max(1, model.clients - 1), confidence)) / 2

    def above(spread: float) -> float:
        return model.profile(spread)[0] - (most - drop)

    low = crossing(above, 0.0, estimate) if above(0.0) < 0 else 0.0
    high = crossing(above, estimate, model.largest) if above(model.largest) < 0 else model.largest
    mean = model.profile(estimate)[1]
    estimate, low, high, mean = (model.scale * value for value in (estimate, low, high, mean))
    return TrueSpread(observed, chance, moments, estimate, low, high, mean, model.clients)


def _unknown(clients: int) -> TrueSpread:
    nan = math.nan
    return TrueSpread(nan, nan, nan, nan, nan, nan, nan, clients)


def _root(variance: Tensor | float) -> float:
    value = float(variance)
    return value if math.isnan(value) else math.sqrt(max(0.0, value))
