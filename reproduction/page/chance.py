"""Which differences of client fairness survive chance, in the chapters on the paper's tables."""

import math
from collections.abc import Sequence

import numpy as np

from fedtilt.evaluation.verdicts import of_summaries
from reproduction.chapter import Table
from reproduction.experiment import Experiment, Results
from reproduction.experiments.paired import clients_of, compare_datasets
from reproduction.records import BySeed, Difference, Outcome, metrics_of, outcome, standard_errors

_TEST_SAMPLES = 10_000  # of MNIST, Fashion-MNIST and CIFAR-10
_ROWS = {"fedavg": "FedAvg", "ditto-validated": "Ditto", "fedtilt-validated": "FedTilt"}


def beyond_chance(accuracy: float, fairness: float, clients: int, samples: float) -> float:
    """The standard deviation of the clients' true accuracies, at least, in points, if all have this many test samples.

    Chance is taken by total, as the records have no counts by class. The partitions of the paper fix the shares of
    classes, and chance within classes is at most as large, so that the true standard deviation is at least this one.

    `variance_beyond_chance` needs the mean of p (1 − p) over clients, which is m (1 − m) − s² by their mean m and
    their standard deviation s; so the recorded metrics suffice where counts are not recorded.

    >>> round(beyond_chance(98.7, 1.5, 100, 100), 2)
    0.99
    """
    mean, variance = accuracy / 100, (fairness / 100) ** 2
    chance = (1 - 1 / clients) * (mean * (1 - mean) - variance) / (samples - 1)
    return 100 * math.sqrt(max(0.0, variance - chance))


def chance_table(chapters: Sequence[tuple[Experiment, Results]]) -> Table | None:
    """Client fairness, and without chance, of the comparisons; None without results."""
    rows: list[list[str | float]] = []
    fairer = [0, 0]  # comparisons in which FedTilt differs, as recorded and beyond chance
    for experiment, results in chapters:
        for data, comparison in compare_datasets(experiment, results).items():
            clients, found = clients_of(experiment.settings, data), [comparison.rows.get(row, {}) for row in _ROWS]
            if not all(found):
                continue
            cells = [_mean_pair(list(_spreads(by_seed, clients).values())) for by_seed in found]
            outcomes = []
            for rival in found[:-1]:
                both = _outcomes(found[-1], rival, clients)
                for kind in (0, 1):
                    fairer[kind] += both[kind] in ("better", "worse")
                outcomes.append(both[0] if both[0] == both[1] else f"{both[0]} → {both[1]}")
            rows.append([experiment.title, data, *cells, *outcomes])
    if not rows:
        return None
    return Table(
        caption=f"Client fairness and, in brackets, beyond chance: {fairer[0]} of {2 * len(rows)} differences between "
        f"FedTilt and a rival are significant as recorded, {fairer[1]} beyond chance",
        columns=["table", "data", *_ROWS.values(), "FedTilt against FedAvg", "against Ditto"],
        rows=rows,
        notes="Points, mean over seeds; validated settings. Better or worse: the 95 % interval of the difference "
        "does not contain 0; with an arrow, the outcome as recorded and beyond chance differ. The "
        "records of these tables hold no counts of single clients: what chance adds follows from their mean accuracy "
        "and their standard deviation, if every client has 100 test samples (MNIST: 92 to 109). It is by total, an "
        "upper bound: clients have fixed shares of the classes, and chance within classes is at most as large, so the "
        "spread beyond chance is at least the one in brackets.",
        folded=True,
    )


def _outcomes(ours: BySeed, theirs: BySeed, clients: int) -> list[Outcome]:
    """Of client fairness, and of that beyond chance, whose standard error is larger by the ratio of the two."""
    values, errors = [], []
    for seed in sorted(ours.keys() & theirs.keys()):
        pair = [_spreads(by_seed, clients)[seed] for by_seed in (ours, theirs)]
        metrics = [metrics_of(by_seed[seed]) or {} for by_seed in (ours, theirs)]
        error = np.array(standard_errors(metrics, "client_fairness", clients))
        ratio = np.array([recorded / beyond if beyond else math.inf for recorded, beyond in pair])
        values.append([pair[1][kind] - pair[0][kind] for kind in (0, 1)])
        errors.append([math.hypot(*error), math.hypot(*(error * ratio))])
    verdicts = of_summaries(np.array(values), np.array(errors), clients - 1)
    return [outcome(Difference(verdict, len(values))) for verdict in verdicts]


def _spreads(by_seed: BySeed, clients: int) -> dict[int, tuple[float, float]]:
    """Seed → client fairness, and beyond chance."""
    spreads = {}
    for seed, result in by_seed.items():
        metrics = metrics_of(result) or {}
        accuracy, fairness = metrics["accuracy"], metrics["client_fairness"]
        spreads[seed] = fairness, beyond_chance(accuracy, fairness, clients, _TEST_SAMPLES / clients)
    return spreads


def _mean_pair(pairs: Sequence[tuple[float, float]]) -> str:
    return "{:.2f} ({:.2f})".format(*(sum(values) / len(values) for values in zip(*pairs, strict=True)))
