"""The methods of a comparison on one data set: results by seed, validated settings, paired outcomes."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedtilt.evaluation.results import SeedValues
from fedtilt.report.compare import METRICS, Metric
from reproduction.experiment import Experiment, by_seed
from reproduction.records import BySeed, Difference, Outcome, best_rows, difference, methods_of, metrics_of, outcome
from reproduction.training import ditto, evaluated, fedtilt

PAPER_METRICS = METRICS[:4]
COMPARED_METRICS = METRICS[:5]  # the fifth, the accuracy of the worst tenth of the clients, is ours
TITLES = {
    "accuracy": "accuracy",
    "client_fairness": "client fairness",
    "client_data_fairness_mean": "client data fairness, mean",
    "client_data_fairness_std": "client data fairness, std",
    "worst": "accuracy of the worst 10 %",
}
ROWS = ("fedavg", "ditto", "ditto-validated", "fedtilt", "fedtilt-validated")


@dataclass(frozen=True, kw_only=True)
class DatasetComparison:
    """All methods on one data set under one condition."""

    data: str
    condition: str  # clean, or the kind of outliers
    titles: Mapping[str, str]  # row → its title
    clients: int  # with test data
    rows: dict[str, dict[int, Mapping[str, Any]]] = field(default_factory=dict)  # row → seed → the method's result
    choices: dict[str, Counter[str]] = field(default_factory=dict)  # validated row → setting → how many seeds chose it
    settings: dict[str, dict[int, Mapping[str, Any]]] = field(default_factory=dict)  # FedTilt setting → seed → result
    rounds: list[int] = field(default_factory=list)  # of the learning curves
    diverged: dict[str, str] = field(default_factory=dict)  # setting → error

    @property
    def seeds(self) -> list[int]:
        """The seeds with results."""
        return sorted({seed for row in self.rows.values() for seed in row})

    def values(self, row: str, metric: str, view: str = "evaluated") -> SeedValues | None:
        """A metric of one row over its seeds; None where the view has no models."""
        by_seed = [metrics_of(result, view) for _, result in sorted(self.rows.get(row, {}).items())]
        values = tuple(metrics[metric] for metrics in by_seed if metrics is not None)
        return SeedValues(values) if values else None

    def compare(self, row: str, rival: str, metric: Metric, margin: float = 0.0, view: str = "evaluated") -> Outcome:
        """Outcome of a row against a rival, by more points than the margin."""
        return outcome(self.difference(row, rival, metric, view), margin)

    def difference(self, row: str, rival: str, metric: Metric, view: str = "evaluated") -> Difference | None:
        """By how much a row is better than a rival; None: not measured."""
        return difference(self.rows.get(row, {}), self.rows.get(rival, {}), metric, self.clients, view)

    def best(self, rows: Iterable[str], metric: Metric) -> list[str]:
        """The best of these rows and those that are not told apart from it; empty: nothing can be said."""
        return best_rows({row: self.rows[row] for row in rows}, metric, self.clients)


def clients_of(settings: Mapping[str, Any], data: str) -> int:
    """The clients of a data set; all have test data."""
    return int(settings[data].get("count", settings["clients"].get("count")))


def condition_name(outliers: str) -> str:
    """Name of the condition with this kind of outliers.

    >>> condition_name("none"), condition_name("flips")
    ('clean', 'flips')
    """
    return "clean" if outliers == "none" else outliers


def row_titles(experiment: Experiment) -> dict[str, str]:
    """Row → its title in this experiment."""
    tilts = "paper’s tilts" if experiment.published else "ours, from earlier trials"
    mu = f"{experiment.settings['mu']:g}"
    names = ("FedAvg", f"Ditto (mu {mu})", "Ditto (validated)", f"FedTilt ({tilts})", "FedTilt (validated)")
    return dict(zip(ROWS, names, strict=True))


def compare_datasets(experiment: Experiment, results: Mapping[str, Mapping[str, Any]]) -> dict[str, DatasetComparison]:
    """Data set → its comparison, from the cases that have results; empty for a data set without any."""
    return {
        data: _compare_dataset(experiment, data, by_seed(results, data)) for data in experiment.settings["data"]
    }  # fmt: skip


def _compare_dataset(experiment: Experiment, data: str, runs: BySeed) -> DatasetComparison:
    settings = experiment.settings
    paper = settings[data]["paper"]
    fixed = {
        "fedavg": "fedavg",
        "ditto": ditto(settings["mu"])[0],
        "fedtilt": fedtilt(paper["tau"], paper["lam"], settings["mu"])[0],
    }
    comparison = DatasetComparison(
        data=data, condition=condition_name(settings["outliers"]), titles=row_titles(experiment),
        clients=clients_of(settings, data),
    )  # fmt: skip
    for seed, result in runs.items():
        comparison.rounds[:] = result["rounds"]
        comparison.diverged.update(result["diverged"])
        names, methods = dict(fixed), methods_of(result)
        for preset in ("ditto", "fedtilt"):
            candidates = {
                name: evaluated(method, "validation")
                for name, method in methods.items()
                if result["settings"][name]["preset"] == preset
            }
            if candidates:
                row = f"{preset}-validated"
                names[row] = _most_accurate(candidates)
                comparison.choices.setdefault(row, Counter())[names[row]] += 1
        for row in ROWS:
            if names.get(row) in methods:
                comparison.rows.setdefault(row, {})[seed] = methods[names[row]]
        for name, method in methods.items():
            if result["settings"][name]["preset"] == "fedtilt":
                comparison.settings.setdefault(name, {})[seed] = method
    return comparison


def _most_accurate(candidates: Mapping[str, Mapping[str, float]]) -> str:
    """The candidate with the highest accuracy (mean over clients); among equals, the one with the best client fairness.

    Accuracy comes first: a model that predicts one class per client is perfectly fair, and would win on fairness alone.

    >>> _most_accurate({
    ...     "good": {"accuracy": 97.0, "client_fairness": 3.0},
    ...     "fairer": {"accuracy": 97.0, "client_fairness": 2.0},
    ...     "collapsed": {"accuracy": 50.0, "client_fairness": 0.0},
    ... })
    'fairer'
    """
    return min(candidates, key=lambda name: (-candidates[name]["accuracy"], candidates[name]["client_fairness"]))
