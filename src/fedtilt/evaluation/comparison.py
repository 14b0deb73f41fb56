"""Which of two sets of models is better on the same test samples: on average over clients, and for which clients."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

from fedtilt.evaluation.groups import Grouping
from fedtilt.evaluation.intervals import MIN_CLIENTS
from fedtilt.evaluation.metrics import GroupCounts, counts_of_chance
from fedtilt.evaluation.predictions import CLIENT, Predictions
from fedtilt.evaluation.scores import scores_of
from fedtilt.evaluation.statistics import PairedDifference, mean_difference
from fedtilt.evaluation.true_spread import TrueSpread, true_spread


class Comparison(NamedTuple):
    """Ours against theirs; above 0, ours are better: points of accuracy, or a lower error or loss."""

    difference: PairedDifference  # mean over clients
    clients: dict[str, float]  # the difference of every client that has test samples
    p_values: dict[str, float]  # of these, by an exact sign test
    spread: TrueSpread | None  # of the true differences of clients, in the first seed; None: of one client

    def worse(self, level: float = 0.05) -> list[str]:
        """The clients for which theirs are better beyond chance, with this probability of naming any wrongly.

        (S. Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6, 1979.)
        """
        named: list[str] = []
        ordered = sorted(self.p_values, key=self.p_values.__getitem__)
        for rank, client in enumerate(ordered):
            if self.p_values[client] > level / (len(ordered) - rank):
                break
            if self.clients[client] < 0:
                named.append(client)
        return named


def sample_scores(predictions: Predictions) -> Tensor:
    """The main score of every sample, (S,) float64: 100 for a correct prediction, else 0; minus an error or a loss."""
    sums = predictions.sums()
    score = scores_of(sums)[0]
    return (1 if score.higher_is_better else -1) * score.values(sums, torch.ones(len(sums)))


def values_by_group(values: Tensor, grouping: Grouping) -> dict[str, Tensor]:
    """The values (S,) of each group."""
    order, sizes = grouping.codes.argsort(stable=True), grouping.codes.bincount(minlength=len(grouping.names))
    return dict(zip(grouping.names, values[order].split(sizes.tolist()), strict=True))


def compare(
    pairs: Sequence[tuple[Predictions, Predictions]], confidence: float = 0.95, *, fixed_shares: bool = False
) -> Comparison:
    """Compare pairs of predictions, each on the same samples: one pair per seed.

    The difference of a client is its mean over seeds. The interval of the mean over clients is Student's t over
    clients; among fewer than `MIN_CLIENTS`, the clients are fixed, and the variance is that of their samples.

    For a client, the samples on which only one of the two is right (or nearer to the target) are heads and tails of a
    fair coin if both are equally good. (Q. McNemar, Note on the sampling error of the difference between correlated
    proportions, Psychometrika 12, 1947.) This is tested in the first seed, because the samples of several overlap.
    """
    gains: dict[str, list[float]] = {}  # by client, one per seed
    variances: dict[str, list[float]] = {}
    p_values: dict[str, float] = {}
    samples: dict[str, int] = {}  # in the first seed
    for ours, theirs in pairs:
        difference, grouping = sample_scores(ours) - sample_scores(theirs), ours.groupings[CLIENT]
        for name, of_client in values_by_group(difference, grouping).items():
            if len(of_client):
                gains.setdefault(name, []).append(float(of_client.mean()))
                variance = float(of_client.var(correction=0)) / max(1, len(of_client) - 1)
                variances.setdefault(name, []).append(variance)
                samples.setdefault(name, len(of_client))
                p_values.setdefault(name, _sign_test(int((of_client > 0).sum()), int((of_client < 0).sum())))
    clients = {name: fmean(values) for name, values in gains.items()}
    of_clients = [fmean(values) for values in variances.values()]
    over_clients = _mean_over_clients(list(clients.values()), of_clients, confidence)
    spread = None
    if len(clients) > 1 and max(samples.values()) > 1:
        ours, theirs = pairs[0]
        of_samples = sample_scores(ours) - sample_scores(theirs)
        by_class = GroupCounts(*ours.table(torch.stack([of_samples, of_samples.square()], 1)))
        spread = true_spread(*counts_of_chance({ours.label_group: by_class}, fixed_shares), fixed_shares=fixed_shares)
    return Comparison(over_clients, clients, p_values, spread)


def compare_clients(ours: Tensor, theirs: Tensor, variances: Tensor, confidence: float = 0.95) -> PairedDifference:
    """The mean difference of clients' values, (clients,), with the variance of each difference."""
    return _mean_over_clients((ours - theirs).tolist(), variances.tolist(), confidence)


def _mean_over_clients(differences: list[float], variances: list[float], confidence: float) -> PairedDifference:
    if len(differences) >= MIN_CLIENTS:
        return mean_difference(differences, confidence)
    from scipy.special import ndtr, ndtri

    count, mean = len(differences), math.fsum(differences) / len(differences)
    error = math.sqrt(math.fsum(variances)) / count
    margin = float(ndtri((1 + confidence) / 2)) * error
    p_value = 2 * float(ndtr(-abs(mean) / error)) if error else float(mean == 0)
    return PairedDifference(mean, mean - margin, mean + margin, p_value, mean / error if error else math.nan, count)


def _sign_test(wins: int, losses: int) -> float:
    """The two-sided p value of `wins` heads among wins + losses throws of a fair coin."""
    from scipy.special import bdtr  # the sum of binomial coefficients takes minutes for 30,000 samples

    return min(1.0, 2 * float(bdtr(min(wins, losses), wins + losses, 0.5))) if wins + losses else 1.0
