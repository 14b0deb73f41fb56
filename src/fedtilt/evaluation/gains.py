"""Who gains: the difference of every client's score to that of another model, with an interval from its test samples.

Both models predict the same samples, so the difference is paired. With b samples that only ours predicts correctly, c
that only theirs does, and n samples, the interval of a difference of accuracies is that of D. G. Bonett and R. M. Price
(Adjusted Wald confidence interval for a difference of binomial proportions based on paired data, Journal of Educational
and Behavioral Statistics 37, 2012), which adds one sample to b and one to c, with Student's t of n degrees of freedom
and a correction for continuity:

    p = (b + 1) / (n + 2),   r = (c + 1) / (n + 2),   p − r ± (t √((p + r − (p − r)²) / (n + 2)) + 1 / (n + 2))

Summed exactly over all outcomes, it covers the true difference in 95 % or more and is beside 0 in at most 5 % of equal
models, with 2 to 200 samples; without the correction in 91 % and up to 9 %. Errors and losses have Student's t over the
differences of samples, if there are five or more that are not all equal.

A client ties if its interval contains 0. Of many clients, some lose by chance: see `verdicts.worse_clients`.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from fedtilt.evaluation.client_differences import row_scores
from fedtilt.evaluation.intervals import CONFIDENCE, student_interval
from fedtilt.evaluation.predictions import CLIENT, Predictions
from fedtilt.evaluation.scores import ACCURACY, scores_of
from fedtilt.evaluation.verdicts import worse_clients
from fedtilt.evaluation.weighted_predictions import Array
from fedtilt.imports import import_extra
from fedtilt.text_tables import join_words

OUTCOMES = ("gains", "ties", "loses")
MIN_DIFFERENCES = 5  # of errors or losses: Student's t of fewer covers less where most differences are equal


class ClientGain(NamedTuple):
    """The difference of a client: points of accuracy, or a lower error or loss; above 0, ours is better."""

    client: str
    samples: int
    difference: float
    low: float
    high: float

    @property
    def outcome(self) -> str:
        """Whether the client gains, ties or loses."""
        return OUTCOMES[1 - (self.low > 0) + (self.high < 0)]


class Gains(NamedTuple):
    """What every client with test samples has from one model rather than from another."""

    against: str
    clients: tuple[ClientGain, ...]
    stay_out: tuple[str, ...]  # clients that lose beyond chance, after correction for their number
    confidence: float

    def count(self, outcome: str) -> int:
        """How many clients have this outcome."""
        return sum(client.outcome == outcome for client in self.clients)

    @property
    def counts(self) -> list[str]:
        """How many clients gain, tie and lose, in words: "3 gain", "1 ties", "0 lose"."""
        counted = [(self.count(outcome), outcome) for outcome in OUTCOMES]
        return [f"{count} {outcome if count == 1 else outcome[:-1]}" for count, outcome in counted]

    def share(self, outcome: str) -> float:
        """The share of clients with this outcome."""
        return self.count(outcome) / len(self.clients)

    def in_words(self, against: str = "") -> str:
        """The shares of clients, and who would stay out; `against` is what it is compared with, in words."""
        named = f"better off with it: {join_words(self.stay_out)}" if self.stay_out else "nobody is better off with it"
        return (
            f"against {against or self.against}, {join_words(self.counts)} of {len(self.clients):,} clients "
            f"({100 * self.confidence:g} % intervals of their own rows); beyond chance, {named}"
        )

    def to_pandas(self) -> Any:
        """A table with one row per client."""
        pandas = import_extra("pandas", "to_pandas()", "report")
        rows = [(*client, client.outcome) for client in self.clients]
        return pandas.DataFrame(rows, columns=[*ClientGain._fields, "outcome"])


def paired_interval(wins: int, losses: int, samples: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The interval of a difference of two accuracies on the same samples, in points.

    >>> low, high = paired_interval(9, 2, 40)
    >>> round(low, 2), round(high, 2)
    (-2.27, 35.6)

    `wins` are the samples that only ours predicts correctly, `losses` those that only theirs does.
    """
    from scipy.special import stdtrit

    only_ours, only_theirs = (wins + 1) / (samples + 2), (losses + 1) / (samples + 2)
    difference = only_ours - only_theirs
    error = math.sqrt((only_ours + only_theirs - difference**2) / (samples + 2))
    margin = float(stdtrit(samples, (1 + confidence) / 2)) * error + 1 / (samples + 2)
    return 100 * max(-1.0, difference - margin), 100 * min(1.0, difference + margin)


def client_gains(ours: Predictions, theirs: Predictions, against: str, confidence: float = CONFIDENCE) -> Gains:
    """What every client has from our models rather than from theirs, on the same test samples."""
    is_accuracy = scores_of(ours.sums())[0] is ACCURACY
    found, by_client = [], differences_by_client(ours, theirs)
    for name, of_client in by_client.items():
        if is_accuracy:
            wins, losses = int((of_client > 0).sum()), int((of_client < 0).sum())
            low, high = paired_interval(wins, losses, len(of_client), confidence)
        elif len(of_client) < MIN_DIFFERENCES or not of_client.max() > of_client.min():
            low, high = -math.inf, math.inf
        else:
            low, high = student_interval(of_client, confidence)
        found.append(ClientGain(name, len(of_client), float(of_client.mean()), low, high))
    return Gains(against, tuple(found), tuple(worse_clients([by_client], 1 - confidence)), confidence)


def differences_by_client(ours: Predictions, theirs: Predictions) -> dict[str, Array]:
    """The differences of the rows of every client that has some, above 0 where ours is better."""
    differences, clients = (row_scores(ours) - row_scores(theirs)).numpy(), ours.groupings[CLIENT]
    codes = clients.codes.numpy()
    ends = np.bincount(codes, minlength=len(clients.names)).cumsum()[:-1]
    parts = np.split(differences[np.argsort(codes, kind="stable")], ends)
    return {name: found for name, found in zip(clients.names, parts, strict=True) if len(found)}
