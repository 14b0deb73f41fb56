"""From what was collected to one suspicion score per sample: the estimated probability that its label is wrong.

1. Evidence for each class, out of sample. The logarithm of the probability that the received models give it, averaged
   over the rounds of the client, of which the r-th counts r times because later models are better; plus the logarithm
   of the class's share in the client's labels: a federation of clients with few classes trains a shared model that does
   not know which ones a client has. To it is added what a ridge regression of the client's labels on these
   log-probabilities predicts for a sample without its own label: it corrects what the shared model gets wrong on this
   client in general. Its weight grows with the number of samples, and with its agreement with the shared model, so that
   a client with mostly wrong labels does not vouch for itself.

2. The margin of a label is its evidence minus the largest other one. This is the area under the margin (Pleiss et al.,
   NeurIPS 2020, arXiv 2001.10528), but of models that have not seen the label. It is divided by the mean lead of the
   class that the sample looks like, since a model is less sure of some classes, above all of those with many wrong
   labels: confident learning has a threshold per class for this (Northcutt, Jiang, Chuang, JAIR 2021, arXiv
   1911.00068).

3. Right and wrong labels are two normal distributions of the margin with one variance (a mixture as in DivideMix, Li et
   al., ICLR 2020, arXiv 2002.07394). The mean of the wrong ones is at most minus half that of the right ones: a wrong
   label is below the true class about as far as a right one is above the others. Without it, the mixture would split
   clean data in two. Each client has a share of wrong labels of its own, drawn to that of all. The score is the
   posterior probability sigmoid(slope · margin + intercept of the client).

Tests with planted flips compare it with the truth: see docs/audit.md.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedtilt.auditing.collect import margins

_RIDGE = 10.0  # strength of the regression, in samples
_HALF_WEIGHT = 100  # the regression counts half as much as the shared model at a client with this many samples
_LEAST_WRONG = 0.5  # the mean margin of wrong labels is at most minus so much of that of right ones
_PRIOR_SAMPLES = 10.0  # how strongly the share of a client, or the lead of a class, is drawn to that of all
_ITERATIONS = 200


def evidence(log_p: Tensor, y: Tensor) -> Tensor:
    """The evidence for each class of each sample of one client, (n, K): larger is more likely.

    Args:
        log_p: log-probabilities of models that were not trained on these labels, (n, K)
        y: labels (n,)
    """
    n, classes = log_p.shape
    share = torch.bincount(y, minlength=classes).double() + 0.01
    shared = log_p + (share / share.sum()).log()
    local = _leave_one_out(log_p, y)
    a, b = margins(shared, y), margins(local, y)
    scale = a.abs().mean() / b.abs().mean().clamp_min(1e-9)
    return shared + n / (n + _HALF_WEIGHT) * _correlation(a, b).clamp_min(0.0) * scale * local


def _leave_one_out(log_p: Tensor, y: Tensor) -> Tensor:
    """What a ridge regression of the labels on the log-probabilities, without a sample, predicts for it, (n, K)."""
    n = len(y)
    x = log_p - log_p.mean(0)
    x = torch.cat([x / x.std(unbiased=False).clamp_min(1e-9), torch.ones(n, 1, dtype=x.dtype)], 1)
    penalty = torch.full((x.shape[1],), _RIDGE, dtype=x.dtype)
    penalty[-1] = 1e-6  # the intercept
    solution = torch.linalg.solve(x.T @ x + penalty.diag(), x.T)  # (K + 1, n)
    leverage = (x * solution.T).sum(1).clamp(max=0.99)
    targets = torch.nn.functional.one_hot(y, log_p.shape[1]).to(x)
    residual = targets - x @ (solution @ targets)
    return targets - residual / (1 - leverage)[:, None]


def _correlation(a: Tensor, b: Tensor) -> Tensor:
    a, b = a - a.mean(), b - b.mean()
    return (a @ b) / (a.norm() * b.norm()).clamp_min(1e-12)


def _lead(evidence: Tensor) -> Tensor:
    """The mean lead of the best class over the second, of the samples that look like the same class, (n,)."""
    best = evidence.topk(2, 1)
    lead, like = best.values[:, 0] - best.values[:, 1], best.indices[:, 0]
    classes = evidence.shape[1]
    count = torch.bincount(like, minlength=classes) + _PRIOR_SAMPLES
    total = torch.zeros(classes, dtype=lead.dtype).index_add_(0, like, lead) + _PRIOR_SAMPLES * lead.mean()
    return (total / count).clamp_min(1e-9)[like]


class Mixture(NamedTuple):
    """Right and wrong labels as two normal distributions of the margin."""

    right: float  # mean margin of right labels
    wrong: float  # mean margin of wrong labels
    deviation: float
    shares: Tensor  # (clients,) share of wrong labels

    def score(self, margin: Tensor, client: Tensor) -> Tensor:
        """The probability that a label is wrong."""
        slope = (self.wrong - self.right) / self.deviation**2
        middle = (self.wrong + self.right) / 2
        return (slope * (margin - middle) + self.shares[client].logit()).sigmoid()


def fit_mixture(margin: Tensor, client: Tensor, clients: int) -> Mixture:
    """The mixture by expectation–maximisation.

    Args:
        margin: margins of the labels (n,), negative for labels that look wrong
        client: the number of the client of each sample (n,)
        clients: the number of clients
    """
    margin = margin.double()
    sizes = torch.bincount(client, minlength=clients).double()
    deviation = math.sqrt(float(margin.var(unbiased=False)) / 2 + 1e-6)
    least = 0.1 * deviation  # right labels are on the right side, so that the order by margin stays
    right = max(float(margin.median()), least)
    mixture = Mixture(right, -right, deviation, torch.full((clients,), 0.1, dtype=torch.float64))
    for _ in range(_ITERATIONS):
        p = mixture.score(margin, client)
        share = float(p.mean().clamp(1e-6, 1 - 1e-6))
        right = max(float(((1 - p) * margin).sum() / (1 - p).sum().clamp_min(1e-9)), least)
        wrong = min(float((p * margin).sum() / p.sum().clamp_min(1e-9)), -_LEAST_WRONG * right)
        variance = float(((1 - p) * (margin - right) ** 2 + p * (margin - wrong) ** 2).mean())
        by_client = torch.zeros(clients, dtype=torch.float64).index_add_(0, client, p)
        shares = (by_client + _PRIOR_SAMPLES * share) / (sizes + _PRIOR_SAMPLES)
        before = mixture
        mixture = Mixture(right, wrong, math.sqrt(variance + 1e-6), shares.clamp(1e-9, 1 - 1e-9))
        if float((mixture.shares - before.shares).abs().max()) + abs(mixture.wrong - before.wrong) < 1e-6:
            break
    return mixture


class Share(NamedTuple):
    """An estimated share of wrong labels, with a 95 % interval."""

    share: float
    low: float
    high: float


def wrong_label_share(scores: Tensor) -> Share:
    """The mean score, with Wilson's interval; it does not cover errors of the mixture itself.

    >>> wrong_label_share(torch.full((100,), 0.5)).share
    0.5
    """
    n, p, z = len(scores), float(scores.mean()), 1.959964
    if not n:
        return Share(math.nan, 0.0, 1.0)
    centre, spread = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Share(p, max(0.0, (centre - spread) / (1 + z * z / n)), min(1.0, (centre + spread) / (1 + z * z / n)))


def expected_precision(scores: Tensor) -> Tensor:
    """For every number of worst samples, the share of them that is expected to be wrong: the mean of their scores."""
    ordered = scores.sort(descending=True).values
    return ordered.cumsum(0) / torch.arange(1, len(ordered) + 1)


def score_clients(log_p: Sequence[Tensor], labels: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Score, margin and the class it looks like, of all samples of these clients, one client after the other."""
    classes = [evidence(p, y) for p, y in zip(log_p, labels, strict=True)]
    y, every = torch.cat(list(labels)), torch.cat(classes)
    client = torch.repeat_interleave(torch.arange(len(labels)), torch.tensor([len(y) for y in labels]))
    margin = margins(every, y) / _lead(every)
    return fit_mixture(margin, client, len(labels)).score(margin, client), margin, every.argmax(1)
