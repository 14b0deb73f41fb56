"""By how much one setting is better than another on the same seeds: the one way from records to a verdict.

Seeds divide the same published data again, so they are no sample (see `verdicts`): what is compared is the clients
within each seed. Records with counts of clients are compared client by client. Those without have, for every seed, the
mean and the standard deviation s of the N clients with test data, of accuracy and of the spread over classes. From
these follow standard errors that are at least the true ones wherever the clients of both settings are positively
correlated, because they share rows; small differences may go unnoticed:

| metric | squared error of one setting |
| --- | --- |
| mean over clients | s² / (N − 1) |
| standard deviation over clients | 1.25² max(R² − s², 2 s²) / (4 (N − 1)) |
| worst, best, minimum | unknown |

R is the furthest that a client is from the mean, in either setting: a fourth moment is at most R² s², and 2 s² is that
of a normal distribution. With 1.25, two settings of equal distributions are told apart in at most 2 % where 20 to 100
clients are skewed (beta, exponential, log-normal, or a few that fail), also if they are not correlated; in 47 % with
the normal error times 2.5. Of the spread over two classes, R is at most 50 and at most the error of the worst client.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtilt.evaluation.client_differences import Draw
from fedtilt.evaluation.verdicts import Verdict, best_of, compare, of_summaries
from fedtilt.report.compare import Metric
from reproduction.training import evaluated

BySeed = Mapping[int, Mapping[str, Any]]  # seed → a method's result
Outcome = Literal["better", "not told apart", "worse", "ahead", "not ahead", "not measured"]  # (not) ahead: on one seed
HOW_COMPARED = (
    "Seeds divide the same data again and are no sample: clients are compared within each seed, and p is twice the "
    "median over seeds. Without an interval, nothing can be said."
)
_MEANS = {"accuracy": "client_fairness", "client_data_fairness_mean": "client_data_fairness_std"}  # mean → std
_NOTHING = -math.inf, math.inf, 1.0  # interval and p where nothing can be said
_TAILS = 1.25  # what kurtosis adds beyond R


class Difference(NamedTuple):
    """The difference of two settings; above 0, the first is better."""

    verdict: Verdict
    seeds: int

    @property
    def is_known(self) -> bool:
        """Whether there is an interval."""
        return math.isfinite(self.verdict.low)


def outcome(found: Difference | None, margin: float = 0.0) -> Outcome:
    """Better: the whole interval is above the margin; one seed is ahead or not."""
    if found is None:
        return "not measured"
    gap, low, high, *_ = found.verdict
    if found.seeds == 1:
        return "ahead" if gap > margin else "not ahead"
    return _outcome((low > margin) - (high < -margin) if margin else found.verdict.sign())


def below(found: Difference | None, limit: float) -> Outcome:
    """Better: the whole interval is below the limit; worse: above it."""
    if found is None:
        return "not measured"
    gap, low, high, *_ = found.verdict
    if found.seeds == 1:
        return "ahead" if gap < limit else "not ahead"
    return _outcome((high < limit) - (low > limit))


def _outcome(sign: int) -> Outcome:
    outcomes: dict[int, Outcome] = {1: "better", 0: "not told apart", -1: "worse"}
    return outcomes[sign]


def methods_of(result: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Method → its part of a case's result, with the samples of the clients where they are recorded."""
    samples = {"samples": result["samples"]} if "samples" in result else {}
    return {name: {**method, **samples} for name, method in result["methods"].items()}


def metrics_of(method: Mapping[str, Any], view: str = "evaluated") -> Mapping[str, float] | None:
    """The metrics on test data of "evaluated", "shared" or "personal" models; None: there are none."""
    return evaluated(method) if view == "evaluated" else method["test"][view]


def difference(
    ours: BySeed, theirs: BySeed, metric: Metric, clients: int, view: str = "evaluated"
) -> Difference | None:
    """By how much ours is better over the common seeds, which share clients, batches and outliers; None without any.

    Args:
        ours: results of one setting by seed
        theirs: results of the other setting by seed
        metric: what to compare
        clients: those with test data
        view: "evaluated", "shared" or "personal" models
    """
    seeds = [s for s in _common(ours, theirs) if metrics_of(ours[s], view) and metrics_of(theirs[s], view)]
    if not seeds:
        return None
    draws = [_draw(ours[seed], theirs[seed], view) for seed in seeds]
    counted = [draw for draw in draws if draw is not None]
    if len(counted) == len(draws):
        key, pair = metric.compared or metric.key, [("ours", "theirs")]
        return _of_seeds(compare(counted, key, pair, higher_is_better=metric.higher_is_better)[0], len(seeds))
    return _summarised([_summary(ours[seed], theirs[seed], metric, clients, view) for seed in seeds], clients)


def interaction(
    gain: tuple[BySeed, BySeed], other: tuple[BySeed, BySeed], metric: Metric, clients: int
) -> Difference | None:
    """By how much one gain (ours, theirs) is larger than another one; their errors add up, correlated or not."""
    seeds = _common(*gain, *other)
    if not seeds or seeds != _common(*gain) or seeds != _common(*other):
        return None
    pairs = [[_summary(a[s], b[s], metric, clients, "evaluated") for a, b in (gain, other)] for s in seeds]
    return _summarised([(a - b, error + other_error) for (a, error), (b, other_error) in pairs], clients)


def best_rows(rows: Mapping[str, BySeed], metric: Metric, clients: int, view: str = "evaluated") -> list[str]:
    """The best row by the mean over seeds, then those that are not told apart from it; empty: nothing can be said."""
    means = {row: fmean(metrics_of(method, view)[metric.key] for method in by_seed.values())  # type: ignore[index]
             for row, by_seed in rows.items()}  # fmt: skip
    unknown = Verdict(0.0, *_NOTHING)

    def compared(pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        found = [difference(rows[a], rows[b], metric, clients, view) for a, b in pairs]
        return [unknown if each is None else each.verdict for each in found]

    best = best_of(means, compared, higher_is_better=metric.higher_is_better, digits=metric.digits)
    known = [verdict for verdict in best.against_first.values() if math.isfinite(verdict.low)]
    return list(best.names) if known or len(rows) == 1 else []


def standard_errors(settings: Sequence[Mapping[str, float]], key: str, clients: int) -> list[float]:
    """The standard error of a metric of each setting on one seed, by the table above."""
    if key in _MEANS:
        return [found[_MEANS[key]] / math.sqrt(clients - 1) for found in settings]
    if key not in _MEANS.values():
        return [math.inf] * len(settings)
    furthest = max(_furthest(found, key) for found in settings)
    fourths = [max(furthest**2 - found[key] ** 2, 2 * found[key] ** 2) for found in settings]
    return [_TAILS * math.sqrt(fourth / (4 * (clients - 1))) for fourth in fourths]


def _furthest(found: Mapping[str, float], key: str) -> float:
    """How far a client is from the mean at most; of both ends of accuracy, the best tenth stands for the best."""
    if key == "client_fairness":
        return max(found["accuracy"] - found["minimum"], found["best"] - found["accuracy"])
    return min(50.0, 100 - found["minimum"]) - found["client_data_fairness_mean"]


def _common(*settings: BySeed) -> list[int]:
    return sorted(set.intersection(*(set(by_seed) for by_seed in settings)))


def _summary(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], metric: Metric, clients: int, view: str
) -> tuple[float, float]:
    """The difference on one seed, and its standard error."""
    found = [metrics for method in (ours, theirs) if (metrics := metrics_of(method, view)) is not None]
    gap = found[0][metric.key] - found[1][metric.key]
    return gap if metric.higher_is_better else -gap, math.hypot(*standard_errors(found, metric.key, clients))


def _summarised(by_seed: Sequence[tuple[float, float]], clients: int) -> Difference:
    values, errors = np.array(by_seed).T
    return _of_seeds(of_summaries(values[:, None], errors[:, None], clients - 1)[0], len(by_seed))


def _of_seeds(verdict: Verdict, seeds: int) -> Difference:
    """One seed has no interval: clients are compared, but others may train otherwise."""
    return Difference(verdict if seeds > 1 else Verdict(verdict.difference, *_NOTHING, "one seed"), seeds)


def _draw(ours: Mapping[str, Any], theirs: Mapping[str, Any], view: str) -> Draw | None:
    """The counts of both; None unless both are recorded, of the same samples."""
    samples = ours.get("samples")
    if samples is None or samples != theirs.get("samples"):
        return None
    counts = {"ours": _counts(ours, view), "theirs": _counts(theirs, view)}
    sums = {name: found for name, found in counts.items() if found is not None}
    return Draw(sums=sums, total=_matrix(samples)) if len(sums) == 2 else None


def _counts(method: Mapping[str, Any], view: str) -> Tensor | None:
    correct = method["test"].get("correct", {})
    found = (correct.get("personal") or correct.get("shared")) if view == "evaluated" else correct.get(view)
    return None if found is None else _matrix(found)


def _matrix(rows: Sequence[Sequence[int]]) -> Tensor:
    """Counts of every client, one for each of its classes, padded with 0, which says that there are no samples."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
