"""Methods side by side: mean and standard deviation over seeds, what is best, and what ties with it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fedtilt.evaluation.metrics import Metrics, client_accuracy
from fedtilt.evaluation.results import Summary
from fedtilt.report.run_reader import Part, Run


@dataclass(frozen=True)
class Metric:
    """A column of the comparison."""

    key: str  # as in `Metrics.by_name`
    title: str
    meaning: str
    higher_is_better: bool  # whether more is better

    def of(self, metrics: Metrics) -> float:
        """Its value."""
        return metrics.by_name()[self.key]


METRICS = (
    Metric("accuracy", "accuracy", "mean over clients, %", True),
    Metric("client_fairness", "client fairness", "std over clients, points", False),
    Metric(
        "client_data_fairness_mean", "class fairness", "std over a client’s classes, mean over clients, points", False
    ),
    Metric("client_data_fairness_std", "class fairness, std", "the same, std over clients, points", False),
    Metric("worst", "worst 10 %", "mean accuracy of the worst tenth of the clients, %", True),
    Metric("best", "best 10 %", "mean accuracy of the best tenth of the clients, %", True),
    Metric("minimum", "minimum", "accuracy of the worst client, %", True),
)
ACCURACY, CLIENT_FAIRNESS, CLASS_FAIRNESS = METRICS[:3]

VIEWS: dict[str, tuple[str, Callable[[Summary], Metrics | None]]] = {
    "evaluated": ("Models in use", lambda s: s.evaluated),
    "shared": ("Shared models", lambda s: s.shared),
    "personal": ("Personal models", lambda s: s.personal),
    "ever_selected": (
        "Clients that took part",
        lambda s: s.ever_selected or (None if s.never_selected else s.personal),
    ),
    "clean": ("Clean clients", lambda s: s.clean),
}
MEANINGS = {
    "evaluated": "A method with personal models is judged on them, any other on its shared model; all clients.",
    "shared": "The one model that the server keeps, on every client’s own test data.",
    "personal": "Every client’s own model; a client that never took part is judged on the shared one.",
    "ever_selected": "Personal models, without the clients that never took part.",
    "clean": "The models in use, over the clients whose data carries no outliers.",
}


class SeedValues(NamedTuple):
    """One metric of one method."""

    values: tuple[float, ...]  # one per seed

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return sum(self.values) / len(self.values)

    @property
    def std(self) -> float | None:
        """Sample standard deviation over seeds; None for one seed.

        >>> SeedValues((1.0, 3.0)).std
        1.4142135623730951
        """
        n = len(self.values)
        return math.sqrt(sum((v - self.mean) ** 2 for v in self.values) / (n - 1)) if n > 1 else None

    @property
    def error(self) -> float:
        """Standard error of the mean; 0 for one seed, which has none."""
        return (self.std or 0.0) / math.sqrt(len(self.values))


Row = dict[str, SeedValues]  # by metric
_ROUNDING = 1e-9  # two equal figures, computed in two ways
_SHOWN = 0.005  # less than this, two decimals do not show


def rows(run: Run, view: str) -> dict[str, Row]:
    """Method → its metrics, for the methods to which the view applies."""
    of = VIEWS[view][1]
    table = {}
    for method in run.methods:
        found = [metrics for part in run.compared if (metrics := of(part.last(method))) is not None]
        if found:
            table[method] = {m.key: SeedValues(tuple(m.of(metrics) for metrics in found)) for m in METRICS}
    return table


def views(run: Run) -> dict[str, dict[str, Row]]:
    """Every view that has something to say, the judged one first."""
    absent = any(part.last(method).ever_selected for part in run.compared for method in run.methods)
    return {view: table for view in VIEWS if (table := rows(run, view)) and (absent or view != "ever_selected")}


def leading(run: Run, limit: int) -> tuple[str, ...]:
    """The most accurate methods, no more than `limit`, in the order of the run."""
    table = rows(run, "evaluated")
    ranked = sorted(run.methods, key=lambda method: -table[method]["accuracy"].mean)[:limit]
    return tuple(method for method in run.methods if method in ranked)


def best_and_tied(table: Mapping[str, Row], metric: Metric) -> list[str]:
    """The best method, and after it those that tie with it.

    Seeds are shared by the methods (the same clients, batches and outliers), so differences are taken seed by seed: a
    tie is a mean difference of at most one standard error, or one that two decimals do not show.
    """
    cells = {method: row[metric.key] for method, row in table.items()}
    first = (max if metric.higher_is_better else min)(cells, key=lambda method: cells[method].mean)
    return [first] + [m for m in cells if m != first and _ties(cells[first], cells[m])]


def _ties(a: SeedValues, b: SeedValues) -> bool:
    if abs(a.mean - b.mean) < _SHOWN:
        return True
    if len(a.values) != len(b.values) or len(a.values) < 2:
        return False
    return sign_beyond_error(SeedValues(tuple(x - y for x, y in zip(a.values, b.values, strict=True)))) == 0


def sign_beyond_error(differences: SeedValues, by: float = 0.0) -> int:
    """1 or −1 where a mean difference is more than one standard error from 0, and from `by`; else 0.

    >>> [sign_beyond_error(SeedValues(values)) for values in ((1.0, 2.0), (-1.0, 2.0))]
    [1, 0]
    >>> sign_beyond_error(SeedValues((1.0, 2.0)), by=3.0)
    0
    """
    if abs(differences.mean) < _SHOWN or abs(differences.mean) - by <= differences.error + _ROUNDING:
        return 0
    return 1 if differences.mean > 0 else -1


class Served(NamedTuple):
    """How every method serves one client."""

    part: Part
    client: int
    samples: int
    accuracy: dict[str, float]  # by method


def worst_clients(run: Run, methods: Sequence[str], limit: int = 12) -> list[Served]:
    """The clients that any method serves worst, each method having its turn, the lowest accuracy first."""
    queues = []
    for method in methods:
        entries = []
        for i, part in enumerate(run.compared):
            held = (part.total.sum(1) > 0).nonzero().flatten().tolist()
            accuracy = client_accuracy(part.correct(method), part.total).tolist()
            entries += [(a, i, client) for client, a in zip(held, accuracy, strict=True)]
        queues.append(sorted(entries)[:limit])
    turns = [(i, client) for turn in zip(*queues, strict=True) for _, i, client in turn]
    served = [_served(methods, run.compared[i], client) for i, client in list(dict.fromkeys(turns))[:limit]]
    return sorted(served, key=lambda s: min(s.accuracy.values()))


def _served(methods: Sequence[str], part: Part, client: int) -> Served:
    samples = int(part.total[client].sum())
    accuracy = {m: 100 * int(part.correct(m)[client].sum()) / samples for m in methods}
    return Served(part, client, samples, accuracy)
