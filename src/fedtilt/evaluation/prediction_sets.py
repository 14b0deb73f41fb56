"""Prediction sets: the classes, or the interval, that contain the truth with a given probability, for every client.

Split conformal prediction on validation data; docs/mathematics.md derives the coverage. The score of a class is 1 − its
probability, that of a number its distance from the prediction in deviations of the target. Scores are rounded up to
the end of a bin, on validation and on new data alike: counts by bin are all that calibration needs, and all that a site
sends. The bins have the same width in log(s / (1 − s)) of classes and in log(s) of numbers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtilt import checks
from fedtilt.errors import InputError
from fedtilt.imports import import_extra

BINS = 12800
_LOW, _WIDTH = -34.0, 1 / 256  # the first bin ends at exp(−34), the last but one at exp(16)
_EXPORTED = 1000  # validation samples of an exported model
_ROUNDING = 1e-9  # 0.9 · 10 is a little more than 9
_FALSE_ALARM = 0.01  # share of the misses that the coverage allows: the probability that an honest client is dropped
_NAMED = 3  # clients in a sentence


def class_bins(probabilities: Tensor) -> Tensor:
    """The bin of the score of every class, (…, K) int64, from probabilities (…, K)."""
    p = probabilities.double()
    others = 1 - p
    top = p.argmax(-1, keepdim=True)  # 1 − p of a probable class would lose its digits
    others.scatter_(-1, top, p.scatter(-1, top, 0.0).sum(-1, keepdim=True))
    return _bins(others.log() - p.log())


def number_bins(predictions: Tensor, targets: Tensor, deviation: float) -> Tensor:
    """The bin of the score of every target, (S,) int64."""
    return _bins(((predictions.double() - targets.double()).abs() / deviation).log())


def _bins(position: Tensor) -> Tensor:
    return ((position - _LOW) / _WIDTH).ceil().nan_to_num(nan=BINS).clamp(0, BINS - 1).long()


def half_width(bin: int, deviation: float) -> float:
    """The half width of the interval of the numbers whose bin is at most this one."""
    return math.inf if bin >= BINS - 1 else math.exp(_LOW + bin * _WIDTH) * deviation


class SetRule(NamedTuple):
    """A set contains what has this bin or a lower one."""

    bin: int  # the last: everything
    samples: int  # of validation data
    clients: int  # that have these samples
    lowest: float  # the least expected coverage of honest clients, whatever the bad ones report
    highest: float  # the largest, apart from ties


def set_rule(counts: Tensor, coverage: float, clients: int = 1, bad: int = 0, error: float = 0.0) -> SetRule:
    """The smallest sets with this coverage.

    Of n scores, b of them of bad clients, the k-th smallest is at least the (k − b)-th smallest of the honest ones and
    at most their k-th. A new score is at most the j-th smallest of n − b with probability j / (n − b + 1).

    >>> set_rule(torch.ones(99, dtype=torch.long), 0.9)
    SetRule(bin=89, samples=99, clients=1, lowest=0.9, highest=0.9)

    `counts` are validation samples by bin, at most `bad` of them of bad clients; with the probability `error`, samples
    of honest clients are missing from them.
    """
    samples = int(counts.sum())
    honest = samples - bad + 1
    rank = math.ceil((checks.probability(coverage, "coverage", 0.9) + error) * honest - _ROUNDING)
    if honest < 2 or rank >= honest:
        needed = enough_samples(coverage)
        raise InputError(
            f"prediction sets with coverage {coverage:g} need {needed:,} validation samples, and there are "
            f"{max(0, samples - bad):,}; use a larger clients.validation (validation= in Python), or a lower coverage"
        )
    bin = int(torch.searchsorted(counts.cumsum(0), rank + bad)) if rank + bad <= samples else BINS - 1
    return SetRule(bin, samples, clients, rank / honest - error, min(1.0, (rank + bad) / honest + error))


def counts_of(bins: Tensor) -> dict[str, int]:
    """Samples by bin, as JSON values.

    >>> counts_of(torch.tensor([7, 3, 7]))
    {'3': 1, '7': 2}
    """
    found, counts = bins.unique(return_counts=True)
    return dict(zip(map(str, found.tolist()), counts.tolist(), strict=True))


def bins_of(counts: Mapping[str, int]) -> Tensor:
    """The inverse of `counts_of`, ascending."""
    bins, samples = torch.tensor(list(map(int, counts)), dtype=torch.long), list(counts.values())
    if any(type(n) is not int or n < 0 for n in samples) or (len(bins) and not 0 <= bins.min() <= bins.max() < BINS):
        raise ValueError(f"counts of scores must be whole numbers of bins 0 to {BINS - 1}")
    return bins.repeat_interleave(torch.tensor(samples, dtype=torch.long)).sort().values


def enough_samples(coverage: float) -> int:
    """The validation samples with which a client needs no others: the largest score then covers the promise.

    >>> enough_samples(0.9), enough_samples(0.99)
    (9, 99)
    """
    return math.ceil(1 / (1 - checks.probability(coverage, "coverage", 0.9)) - _ROUNDING) - 1


@dataclass(frozen=True, eq=False)
class ConformityScores:
    """The bins of the scores of one method's evaluated models on validation data, by client."""

    validation: Sequence[Tensor]  # of each client, (samples,) int64
    deviation: float | None = None  # of the target, if it is a number

    @cached_property
    def present(self) -> list[int]:
        """The clients with validation data."""
        return [n for n, bins in enumerate(self.validation) if len(bins)]

    def pool(self, client: int | None, samples: int) -> list[int]:
        """The client itself if it has this number of samples, else all that have about as many; None: all clients.

        How good a model is, most of all a personal one, depends on how much data a client has, so those within a factor
        of two are pooled, or of four, and so on until there are enough samples. To choose by the shares of classes
        would cover the average of the clients in fewer cases: unusual clients take usual ones, but not the reverse.
        """
        if client is None or len(self.validation[client]) >= samples:
            return self.present if client is None else [client]
        own = len(self.validation[client]).bit_length()
        distance = {n: abs(len(self.validation[n]).bit_length() - own) for n in self.present}
        found = list[int]()
        for most in sorted(set(distance.values())):
            found = [n for n in self.present if distance[n] <= most]
            if sum(len(self.validation[n]) for n in found) >= samples:
                break
        return sorted({client, *found}, key=lambda n: (n != client, distance.get(n, 0), n))

    def counts(self, clients: Sequence[int]) -> Tensor:
        """Validation samples of these clients by bin."""
        return torch.cat([self.validation[n] for n in clients]).bincount(minlength=BINS)

    def rule(self, client: int | None, coverage: float, bad_share: float = 0.0) -> SetRule:
        """The sets of a client; with `bad_share`, this share of all clients may report anything.

        A client with enough samples depends on nobody. Another one then uses all clients, because the bad ones could
        be those that are pooled, except those that are bad beyond doubt; docs/mathematics.md has the proof.
        """
        clients = self.pool(client, enough_samples(coverage))
        if bad_share == 0 or clients == [client]:
            return set_rule(self.counts(clients), coverage, len(clients))
        everyone, error = self.present, _FALSE_ALARM * (1 - coverage)
        most = math.floor(bad_share * len(everyone) + _ROUNDING)
        doubt = math.log(2 * (len(everyone) + 1) / error) / 2
        dropped = self._surely_bad(most, doubt) - {client}
        clients = [n for n in everyone if n not in dropped]
        sizes = sorted((len(self.validation[n]) for n in clients if n != client), reverse=True)
        bad = sizes[: most - len(dropped)]  # the most that they can have
        rule = set_rule(self.counts(clients), coverage, len(clients), sum(bad), error)
        # a bad client that was not dropped is near an honest one: of those that it is near, the largest has this margin
        margins = sorted((math.sqrt(doubt / len(self.validation[n])) for n in everyone), reverse=True)
        margin = margins[len(everyone) - 2 * most - 1]
        excess = sum(math.sqrt(n * doubt) for n in (rule.samples - sum(bad), *bad)) + 2 * margin * sum(bad)
        rank = (rule.lowest + error) * (rule.samples - sum(bad) + 1) + sum(bad)
        return rule._replace(highest=min(rule.highest, (rank + excess) / rule.samples + error))

    def _surely_bad(self, most: int, doubt: float) -> set[int]:
        """The clients whose scores differ, beyond doubt, from those of more clients than may be bad.

        The distribution of n scores is within √(doubt / n) of that of all. If more clients differ than may be bad,
        honest clients are not alike, and none is dropped.
        """
        clients = self.present
        margins = torch.tensor([math.sqrt(doubt / len(self.validation[n])) for n in clients])
        differ = self._distances > margins[:, None] + margins
        found = {n for n, others in zip(clients, differ.sum(1).tolist(), strict=True) if others > most}
        return found if len(found) <= most else set()

    @cached_property
    def _distances(self) -> Tensor:
        """The largest difference between the distributions of the scores of two clients, (C, C)."""
        found = [self.validation[n].sort().values for n in self.present]
        ends = torch.cat(found).unique()
        shares = torch.stack([torch.searchsorted(bins, ends, right=True) / len(bins) for bins in found])
        return torch.stack([(shares - share).abs().amax(1) for share in shares])

    def to_json(self, client: int | None) -> list[dict[str, int]]:
        """Counts by bin, as an exported model has them: of the client, then of its pool; None: of all."""
        found = [self.validation[n] for n in self.pool(client, _EXPORTED)]
        return [counts_of(bins) for bins in (found if client is not None else [torch.cat(found)])]

    @classmethod
    def from_json(cls, values: Sequence[Mapping[str, int]], deviation: float | None) -> "ConformityScores":
        """The inverse of `to_json`; the sets of the exported model are those of client 0."""
        return cls([bins_of(counts) for counts in values], deviation)


@dataclass(frozen=True, eq=False, repr=False)
class PredictionSets:
    """Sets with a coverage for every client, and how often they contain the truth on test data; `print` shows it."""

    scores: ConformityScores  # of the method on validation data
    test: Sequence[Tensor]  # the bins of the scores of each client's test samples
    client_names: Sequence[str]
    coverage: float = 0.9  # the least probability that a set contains the truth
    bad_share: float = 0.0  # of clients that may report anything
    outputs: Tensor | None = None  # on test data, ordered by client; None: they are elsewhere, and so are the sets

    def __post_init__(self) -> None:
        checks.probability(self.coverage, "coverage", 0.9)
        if not 0 <= checks.number(self.bad_share, "bad_share") < 0.5:
            raise InputError(f"bad_share = {self.bad_share:g} is not in [0, 0.5): most clients must be honest")

    @cached_property
    def rules(self) -> dict[int, SetRule]:
        """The sets of each client with test data, by number."""
        tested = (n for n, bins in enumerate(self.test) if len(bins))
        return {n: self.scores.rule(n, self.coverage, self.bad_share) for n in tested}

    @cached_property
    def covered(self) -> dict[int, int]:
        """How many test samples of each client have the truth in their set."""
        return {n: int((self.test[n] <= rule.bin).sum()) for n, rule in self.rules.items()}

    @cached_property
    def shares(self) -> dict[int, float]:
        """The share of each client's test samples with the truth in their set, in percent."""
        return {n: 100 * count / len(self.test[n]) for n, count in self.covered.items()}

    @property
    def mean(self) -> float:
        """The mean share over clients, in percent."""
        return math.fsum(self.shares.values()) / len(self.shares)

    @cached_property
    def sizes(self) -> dict[int, float]:
        """The mean number of classes in a set, or the width of the interval, by client; empty: no outputs here."""
        if self.outputs is None:
            return {}
        if self.scores.deviation is not None:
            return {n: 2 * half_width(rule.bin, self.scores.deviation) for n, rule in self.rules.items()}
        by_client = class_bins(self.outputs).split([len(bins) for bins in self.test])
        return {n: float((by_client[n] <= rule.bin).sum(1).double().mean()) for n, rule in self.rules.items()}

    def __str__(self) -> str:
        own = sum(rule.clients == 1 for rule in self.rules.values())
        lowest = sorted(self.shares, key=lambda n: self.shares[n])[:_NAMED]
        named = ", ".join(f"{self.client_names[n]} {self.shares[n]:.1f} %" for n in lowest)
        sizes = bound = ""
        if self.sizes:
            what = "classes in a set" if self.scores.deviation is None else "is the width of an interval"
            sizes = f"; {math.fsum(self.sizes.values()) / len(self.sizes):.3g} {what}, mean over clients"
        if self.bad_share:
            least, most = min(r.lowest for r in self.rules.values()), max(r.highest for r in self.rules.values())
            who = f"whatever {100 * self.bad_share:.3g} % of the clients report"
            bound = f"; {who}, the expected coverage is {100 * least:.1f} to {100 * most:.1f} %"
        return (
            f"sets for {100 * self.coverage:.6g} % contain the truth in {self.mean:.1f} % of the test samples, mean "
            f"over clients (lowest: {named}){sizes}; {own} of {len(self.rules)} clients by their own validation "
            f"samples{bound}"
        )

    def __repr__(self) -> str:
        return f"PredictionSets({self})"

    def to_pandas(self) -> Any:
        """A row per client: its coverage on test data, the size of its sets, and what calibrates them."""
        pandas = import_extra("pandas", "to_pandas()", "report")
        rows: list[Mapping[str, object]] = [
            {"client": self.client_names[n], "coverage": self.shares[n], "test_samples": len(self.test[n])}
            | ({"size": self.sizes[n]} if self.sizes else {})
            | {"validation_samples": rule.samples, "of_clients": rule.clients}
            | {"lowest": 100 * rule.lowest, "highest": 100 * rule.highest}
            for n, rule in self.rules.items()
        ]
        return pandas.DataFrame(rows).set_index("client")
