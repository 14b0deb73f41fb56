"""A certificate: how low the accuracy of any client, and of any class of a client, can be, with a given confidence.

A client with n test samples has X ~ Binomial(n, p) correct predictions. From X = x follows the exact lower bound of
Clopper and Pearson, the p at which x or more correct predictions have probability a:

    bound(x, n, a) = the a-quantile of Beta(x, n − x + 1), and 0 for x = 0

* **No client is below L**, the smallest bound(x_i, n_i, a) over all clients, each at the full level a: if j is the
  client with the lowest p, then L ≤ bound_j, and bound_j ≤ p_j with probability 1 − a. (An intersection-union test:
  R. L. Berger, Multiparameter hypothesis testing and acceptance sampling, Technometrics 24, 1982.)
* **And no class of a client is below M.** The same over the cells (client, class). The two statements hold together
  with probability 1 − alpha, because each has a = alpha / 2.
* **Each client by itself.** The bounds of all clients hold together at a = 1 − (1 − alpha)^(1/N), as clients are
  independent. (Z. Šidák, Rectangular confidence regions for the means of multivariate normal distributions, 1967.)
* **A client not yet seen.** If clients are exchangeable, the bound of a further client is below the k-th smallest of N
  with probability k / (N + 1) at most, and it is wrong with probability a. So a further client is below the k-th
  smallest bound with probability alpha at most if k / (N + 1) + a = alpha; k is the largest with k / (N + 1) ≤
  alpha / 2, at least 1. (S. S. Wilks, Determination of sample sizes for setting tolerance limits, 1941; V. Vovk,
  A. Gammerman and G. Shafer, Algorithmic learning in a random world, 2005.) This takes N > 1 / alpha − 1 clients.

Of tokens and several labels, a sample is right by a share in [0, 1], its right tokens or labels, and the mean of n
independent shares takes the place of x / n. Its lower bound is the p at which the divergence from the observed mean
m is log(1 / a) / n, and 0 for m = 0:

    m · log(m / p) + (1 − m) · log((1 − m) / (1 − p)) = log(1 / a) / n,  p < m

(W. Hoeffding, Probability inequalities for sums of bounded random variables, JASA 58, 1963, Theorem 1.) Tokens of a
sample need not be independent, samples do.

The statements are about new samples of the same clients, for models that were not chosen on this test data.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import torch
from torch import Tensor

from fedtilt import checks
from fedtilt.data.groups import CLASS, in_words
from fedtilt.errors import InputError
from fedtilt.evaluation.scores import shares_of

_ROUNDING = 1e-9  # 1 − 0.95 is a little more than 0.05


class LowestBound(NamedTuple):
    """The lowest bound over clients, or over the groups of clients, in percent."""

    bound: float
    observed: float  # the lowest accuracy on the test data
    fewest_samples: int
    ceiling: float  # the bound that perfect predictions on the fewest samples would have


@dataclass(frozen=True, eq=False, repr=False)
class Certificate:
    """Lower bounds of accuracy in percent, from counts of correct predictions; `str` is the statement.

    `clients` and `groups` hold together with the confidence; `client_bounds`, `group_bounds` and `unseen_client` are
    each a statement of their own with that confidence.

    >>> print(Certificate(torch.tensor([[45, 48], [49, 47]]), torch.tensor([[50, 50], [50, 50]])))
    with 95 % confidence, no client's accuracy is below 86 %, and none of its classes below 78 %

    Args:
        correct: correct predictions, (clients, groups); with one group, there is no statement about groups; float64:
            the sums of what samples are right by, shares in [0, 1]
        total: test samples, (clients, groups); about a client without any, there is no statement
        confidence: the probability that a statement holds
        group: "class", or the column of the groups
        absent: how many of the clients attack or have left; they have no test data, and no note counts them
    """

    correct: Tensor
    total: Tensor
    confidence: float = 0.95
    group: str = CLASS
    absent: int = 0
    title: str = "accuracy"

    @classmethod
    def of(cls, sums: Tensor, total: Tensor, confidence: float = 0.95, group: str = CLASS, absent: int = 0) -> Self:
        """The certificate of the first score of these sums (see `metrics`) that is a mean of shares."""
        found = shares_of(sums)
        if found is None:
            why = "errors of numbers have no bound without an assumption about their distribution"
            remedy = "use the intervals of metrics_frame"
            raise InputError(f"a certificate is about shares of right predictions; {why}: {remedy}")
        return cls(found[1], total, confidence, group, absent, found[0].title)

    def __post_init__(self) -> None:
        checks.probability(self.confidence, "confidence", 0.95)
        if not self.total.any():
            raise InputError("no client has any test data to certify")

    def __str__(self) -> str:
        clients, groups = floor_percent(self.clients.bound), floor_percent(self.groups.bound)
        text = f"with {100 * self.confidence:.6g} % confidence, no client's {self.title} is below {clients}"
        if self._has_groups:
            text += f", and none of its {in_words(self.group)} below {groups}"
        return text + (f" ({'; '.join(self.notes)})" if self.notes else "")

    def __repr__(self) -> str:
        return f"Certificate({self})"

    @property
    def notes(self) -> list[str]:
        """Where the number of samples limits the statements."""
        notes = [
            f"{lowest.fewest_samples} sample{'s' * (lowest.fewest_samples != 1)} of a {name}: no statement above "
            f"{floor_percent(lowest.ceiling)}"
            for name, lowest in (("client", self.clients), (self._one_group, self.groups))[: 1 + self._has_groups]
            if lowest.ceiling < lowest.observed
        ]
        if without_data := int((self._samples == 0).sum()) - self.absent:
            notes.append(f"{without_data} without test data: no statement")
        return notes

    @cached_property
    def clients(self) -> LowestBound:
        """The lowest bound over clients."""
        return _lowest(self.correct.sum(1), self._samples, self._alpha / 2)

    @cached_property
    def groups(self) -> LowestBound:
        """The lowest bound over the groups of all clients."""
        return _lowest(self.correct.flatten(), self.total.flatten(), self._alpha / 2)

    @property
    def client_bounds(self) -> Tensor:
        """A bound for each client, (N,), which hold together; NaN: no test data."""
        return _simultaneous(self.correct.sum(1), self._samples, self._alpha)

    @property
    def group_bounds(self) -> Tensor:
        """A bound for each group of each client, (N, K), which hold together; NaN: no test data."""
        return _simultaneous(self.correct, self.total, self._alpha)

    @property
    def unseen_client(self) -> float:
        """The bound of a client not yet seen, if clients are exchangeable; NaN: fewer than `clients_needed`."""
        present = self._samples > 0
        clients = int(present.sum())
        rank = max(1, math.floor(self._alpha / 2 * (clients + 1)))
        level = self._alpha - rank / (clients + 1)
        if level <= _ROUNDING:
            return math.nan
        bounds = lower_bound(self.correct.sum(1)[present], self._samples[present], level)
        return 100 * bounds.kthvalue(rank).values.item()

    @property
    def about_unseen(self) -> str:
        """The statement about a client not yet seen, or how many clients it takes."""
        if math.isnan(self.unseen_client):
            return f"{self.clients_needed} clients are needed for a statement about a client not yet seen"
        return f"a client not yet seen, if it is like these: not below {floor_percent(self.unseen_client)}"

    @property
    def clients_needed(self) -> int:
        """The number of clients that a statement about a client not yet seen takes: N > 1 / alpha − 1."""
        return math.floor(1 / self._alpha - 1 + _ROUNDING) + 1

    @property
    def _has_groups(self) -> bool:  # not if a site withholds the counts by class
        return self.total.shape[1] > 1

    @property
    def _one_group(self) -> str:
        return CLASS if self.group == CLASS else f"group by {self.group}"

    @property
    def _alpha(self) -> float:
        return 1 - self.confidence

    @property
    def _samples(self) -> Tensor:
        return self.total.sum(1)


def lower_bound(correct: Tensor, total: Tensor, level: float) -> Tensor:
    """The exact lower bound of a proportion, wrong with probability `level` at most; NaN where `total` is 0.

    (C. J. Clopper and E. S. Pearson, The use of confidence or fiducial limits, Biometrika 26, 1934.)

    >>> lower_bound(torch.tensor([12, 0]), torch.tensor([12, 12]), 0.05)  # 0.05 ** (1 / 12), and 0
    tensor([0.7791, 0.0000], dtype=torch.float64)
    """
    from scipy.special import betaincinv

    x, n = correct.double(), total.double()
    if correct.is_floating_point():
        return _hoeffding_bound(x / n.clamp(min=1), n, level).where(n > 0, math.nan)
    bound = torch.from_numpy(betaincinv(x.clamp(min=1).numpy(), (n - x + 1).numpy(), level))
    return bound.where(x > 0, 0.0).where(n > 0, math.nan)


def _hoeffding_bound(mean: Tensor, n: Tensor, level: float) -> Tensor:
    """The lower bound of the mean of shares in [0, 1], by bisection."""
    allowed = -math.log(level) / n.clamp(min=1)
    low, high = torch.zeros_like(mean), mean.clone()
    for _ in range(60):  # halvings: below the rounding of a double
        middle = (low + high) / 2
        divergence = torch.xlogy(mean, mean / middle) + torch.xlogy(1 - mean, (1 - mean) / (1 - middle))
        too_low = divergence > allowed
        low, high = torch.where(too_low, middle, low), torch.where(too_low, high, middle)
    return low.where(mean > 0, 0.0)


def floor_percent(value: float) -> str:
    """A bound in whole percent, never above the bound.

    >>> floor_percent(81.9)
    '81 %'
    """
    return f"{math.floor(value)} %"


def _lowest(correct: Tensor, total: Tensor, level: float) -> LowestBound:
    present = total > 0
    x, n = correct[present], total[present]
    fewest = int(n.min())
    return LowestBound(
        bound=100 * lower_bound(x, n, level).min().item(), observed=100 * (x.double() / n.double()).min().item(),
        fewest_samples=fewest, ceiling=100 * level ** (1 / fewest),
    )  # fmt: skip


def _simultaneous(correct: Tensor, total: Tensor, alpha: float) -> Tensor:
    count = int((total > 0).sum())
    return 100 * lower_bound(correct, total, -math.expm1(math.log1p(-alpha) / count))


def describe(certificates: Mapping[str, Certificate], *, unseen: bool) -> str:
    """The certificates of several methods, which have the same clients, in one sentence without a full stop.

    `unseen` adds the statement about a client not yet seen: not for several seeds, whose clients share their data.
    """
    first = next(iter(certificates.values()))
    unseen = unseen and not math.isnan(first.unseen_client)
    if len(certificates) == 1:
        return f"{first}; {first.about_unseen}" if unseen else str(first)
    bounds = [
        floor_percent(c.clients.bound) + f" ({floor_percent(c.groups.bound)})" * c._has_groups + f" with {name}"
        for name, c in certificates.items()
    ]
    whose = f"no client{f' ({first._one_group} of one)' * first._has_groups} is below {', '.join(bounds)}"
    whose += f" in {first.title}" * (first.title != "accuracy")
    parts = [f"with {100 * first.confidence:.6g} % confidence, {whose}", *first.notes]
    if unseen:
        others = ", ".join(floor_percent(c.unseen_client) for c in certificates.values())
        parts.append(f"a client not yet seen, if it is like these: not below {others}")
    return "; ".join(parts)
