"""Compare methods: mean and standard deviation over seeds, the best method, and its ties."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import NamedTuple

from fedtilt.evaluation.metrics import Metrics, client_scores
from fedtilt.evaluation.statistics import paired_difference
from fedtilt.evaluation.summary import Summary
from fedtilt.report.run_reader import Run, SeedRun


@dataclass(frozen=True)
class Metric:
    """A column of the comparison."""

    key: str  # as in `Metrics.by_name`
    title: str
    description: str
    higher_is_better: bool

    @property
    def unit(self) -> str:
        """Accuracies are in percent, spreads in percentage points."""
        return "%" if self.higher_is_better else "points"

    def value(self, metrics: Metrics) -> float:
        """The value of this metric."""
        return metrics.by_name()[self.key]


METRICS = (
    Metric("accuracy", "accuracy", "mean over clients, %", True),
    Metric("client_fairness", "client fairness", "std over clients, points", False),
    Metric(
        "client_data_fairness_mean",
        "client data fairness",
        "std over a client’s classes, mean over clients, points",
        False,
    ),
    Metric("client_data_fairness_std", "client data fairness, std", "the same, std over clients, points", False),
    Metric("worst", "worst 10 %", "mean accuracy of the worst tenth of the clients, %", True),
    Metric("best", "best 10 %", "mean accuracy of the best tenth of the clients, %", True),
    Metric("minimum", "minimum", "accuracy of the worst client, %", True),
)
ACCURACY, CLIENT_FAIRNESS, CLIENT_DATA_FAIRNESS = METRICS[:3]


class View(NamedTuple):
    """Which models and clients a comparison covers."""

    title: str
    description: str
    metrics: Callable[[Summary], Metrics | None]  # None: the view does not apply to the method


VIEWS = {
    "evaluated": View(
        "Evaluated models",
        "Methods with personal models are evaluated on them, other methods on the shared model; all clients.",
        lambda summary: summary.evaluated,
    ),
    "shared": View(
        "Shared models",
        "The shared model on the test data of every client.",
        lambda summary: summary.shared,
    ),
    "personal": View(
        "Personal models",
        "The personal model of every client; a client that was never selected is evaluated on the shared model.",
        lambda summary: summary.personal,
    ),
    "ever_selected": View(
        "Selected clients",
        "Personal models, without the clients that were never selected.",
        lambda summary: summary.ever_selected or (None if summary.never_selected else summary.personal),
    ),
    "clean": View(
        "Clean clients",
        "The evaluated models, over the clients without outliers.",
        lambda summary: summary.clean,
    ),
}


class SeedValues(NamedTuple):
    """One metric of one method, one value per seed."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return fmean(self.values)

    @property
    def std(self) -> float | None:
        """Sample standard deviation over seeds; None for one seed.

        >>> SeedValues((1.0, 3.0)).std
        1.4142135623730951
        """
        return stdev(self.values) if len(self.values) > 1 else None


Row = dict[str, SeedValues]  # by metric
_VISIBLE = 0.005  # a smaller difference disappears in two decimals


def comparison_table(run: Run, view: str) -> dict[str, Row]:
    """Method → its metrics, for the methods to which the view applies."""
    table = {}
    for method in run.methods:
        per_seed = [VIEWS[view].metrics(seed_run.last(method)) for seed_run in run.compared]
        metrics = [m for m in per_seed if m is not None]
        if metrics:
            table[method] = {metric.key: SeedValues(tuple(metric.value(m) for m in metrics)) for metric in METRICS}
    return table


def comparison_tables(run: Run) -> dict[str, dict[str, Row]]:
    """The table of every view that applies to some method."""
    some_never_selected = any(s.last(method).ever_selected for s in run.compared for method in run.methods)
    views = [view for view in VIEWS if some_never_selected or view != "ever_selected"]
    return {view: table for view in views if (table := comparison_table(run, view))}


def most_accurate(run: Run, limit: int) -> tuple[str, ...]:
    """The most accurate methods, at most `limit`, in the order of the run."""
    table = comparison_table(run, "evaluated")
    ranked = sorted(run.methods, key=lambda method: -table[method]["accuracy"].mean)[:limit]
    return tuple(method for method in run.methods if method in ranked)


def best_and_tied(table: Mapping[str, Row], metric: Metric) -> list[str]:
    """The best method, then those that tie with it.

    All methods of a seed share clients, batches and outliers, so differences are paired by seed. A method ties if the
    95 % interval of its mean difference to the best contains 0, or if the difference disappears in two decimals. One
    seed has no interval; there, only the latter is a tie.
    """
    values = {method: row[metric.key] for method, row in table.items()}
    first = (max if metric.higher_is_better else min)(values, key=lambda method: values[method].mean)
    return [first] + [m for m in values if m != first and _is_tie(values[first], values[m])]


def _is_tie(a: SeedValues, b: SeedValues) -> bool:
    if abs(a.mean - b.mean) < _VISIBLE:
        return True
    if len(a.values) != len(b.values) or len(a.values) < 2:
        return False
    return paired_difference(a.values, b.values).sign() == 0


class ClientAccuracy(NamedTuple):
    """The accuracy of every method on one client."""

    seed_run: SeedRun
    client: int
    samples: int
    accuracy: dict[str, float]  # by method


def worst_clients(run: Run, methods: Sequence[str], limit: int = 12) -> list[ClientAccuracy]:
    """The clients with the lowest accuracy under any method, lowest first; methods contribute clients in turn."""
    queues = []
    for method in methods:
        entries = []
        for i, seed_run in enumerate(run.compared):
            clients = (seed_run.total.sum(1) > 0).nonzero().flatten().tolist()
            accuracy = client_scores(seed_run.sums(method), seed_run.total).tolist()
            entries += [(a, i, client) for client, a in zip(clients, accuracy, strict=True)]
        queues.append(sorted(entries)[:limit])
    turns = [(i, client) for turn in zip(*queues, strict=True) for _, i, client in turn]
    worst = [_client_accuracy(methods, run.compared[i], client) for i, client in list(dict.fromkeys(turns))[:limit]]
    return sorted(worst, key=lambda entry: min(entry.accuracy.values()))


def _client_accuracy(methods: Sequence[str], seed_run: SeedRun, client: int) -> ClientAccuracy:
    samples = int(seed_run.total[client].sum())
    accuracy = {m: 100 * int(seed_run.sums(m)[client].sum()) / samples for m in methods}
    return ClientAccuracy(seed_run, client, samples, accuracy)
