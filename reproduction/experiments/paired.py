"""The methods of a comparison on one data set: results by seed, validated settings, paired outcomes."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fedtilt.evaluation.over_seeds import SeedValues
from fedtilt.evaluation.statistics import PairedDifference, mean_difference
from fedtilt.report.compare import METRICS, Metric
from reproduction.experiment import Experiment, by_seed
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

Outcome = Literal["better", "tied", "worse", "ahead", "not ahead", "not measured"]  # (not) ahead: on one seed
BySeed = Mapping[int, Mapping[str, Any]]  # seed → a method's result


@dataclass(frozen=True, kw_only=True)
class DatasetComparison:
    """All methods on one data set under one condition."""

    data: str
    condition: str  # clean, or the kind of outliers
    titles: Mapping[str, str]  # row → its title
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
        by_seed = [_metrics(result, view) for _, result in sorted(self.rows.get(row, {}).items())]
        values = tuple(metrics[metric] for metrics in by_seed if metrics is not None)
        return SeedValues(values) if values else None

    def compare(self, row: str, rival: str, metric: Metric, margin: float = 0.0, view: str = "evaluated") -> Outcome:
        """Outcome of a row against a rival; see `compare_paired`."""
        return compare_paired(self.rows.get(row, {}), self.rows.get(rival, {}), metric, margin, view)

    def differences(self, row: str, rival: str, metric: Metric, view: str = "evaluated") -> SeedValues | None:
        """By how much a row is better than a rival, by seed; see `paired_differences`."""
        return paired_differences(self.rows.get(row, {}), self.rows.get(rival, {}), metric, view)


def _metrics(result: Mapping[str, Any], view: str) -> Mapping[str, float] | None:
    return evaluated(result) if view == "evaluated" else result["test"][view]


def compare_paired(
    ours: BySeed, theirs: BySeed, metric: Metric, margin: float = 0.0, view: str = "evaluated"
) -> Outcome:
    """Compare two settings over their common seeds, which share clients, batches and outliers.

    Better means that the whole 95 % interval of the mean difference is beyond the margin. One seed has no interval:
    there, a setting is ahead or not.

    Args:
        ours: Results of one setting by seed.
        theirs: Results of the other setting by seed.
        metric: What to compare.
        margin: Points by which ours must be better.
        view: "evaluated", "shared" or "personal" models.
    """
    return outcome(paired_differences(ours, theirs, metric, view), margin)


def outcome(differences: SeedValues | None, margin: float = 0.0) -> Outcome:
    """Outcome of paired differences, positive where ours is better."""
    if differences is None:
        return "not measured"
    if len(differences.values) == 1:
        return "ahead" if differences.mean > margin else "not ahead"
    return outcome_of(mean_difference(differences.values), margin)


def outcome_of(difference: PairedDifference, margin: float = 0.0) -> Outcome:
    """Outcome of a difference over several seeds, positive where ours is better."""
    outcomes: dict[int, Outcome] = {1: "better", 0: "tied", -1: "worse"}
    return outcomes[difference.sign(margin)]


def paired_differences(ours: BySeed, theirs: BySeed, metric: Metric, view: str = "evaluated") -> SeedValues | None:
    """By how much ours is better, for every common seed; None without any."""
    sign = 1 if metric.higher_is_better else -1
    pairs = [(_metrics(ours[s], view), _metrics(theirs[s], view)) for s in sorted(set(ours) & set(theirs))]
    differences = tuple(sign * (a[metric.key] - b[metric.key]) for a, b in pairs if a and b)
    return SeedValues(differences) if differences else None


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
        data=data, condition=condition_name(settings["outliers"]), titles=row_titles(experiment)
    )
    for seed, result in runs.items():
        comparison.rounds[:] = result["rounds"]
        comparison.diverged.update(result["diverged"])
        names = dict(fixed)
        for preset in ("ditto", "fedtilt"):
            candidates = {
                name: evaluated(method, "validation")
                for name, method in result["methods"].items()
                if result["settings"][name]["preset"] == preset
            }
            if candidates:
                row = f"{preset}-validated"
                names[row] = _most_accurate(candidates)
                comparison.choices.setdefault(row, Counter())[names[row]] += 1
        for row in ROWS:
            if names.get(row) in result["methods"]:
                comparison.rows.setdefault(row, {})[seed] = result["methods"][names[row]]
        for name, method in result["methods"].items():
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


def format_effect_size(difference: PairedDifference) -> str:
    """The effect size with its sign; empty for one pair.

    >>> from fedtilt.evaluation.statistics import mean_difference
    >>> [format_effect_size(mean_difference(values)) for values in ((1.0, 3.0), (-1.0, -1.0), (1.0,))]
    ['+1.4', '−∞', '']
    """
    if difference.pairs == 1:
        return ""
    return f"{difference.effect_size:+.1f}".replace("-", "−").replace("inf", "∞")
