"""Where the methods stand on one data set: rows over seeds, what validation chose, and who is better than whom."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fedtilt.report.compare import METRICS as REPORTED
from fedtilt.report.compare import Cell as Values
from fedtilt.report.compare import Metric, sign
from fedtilt.reproduction.experiment import Experiment
from fedtilt.reproduction.train_grid import ditto, evaluated, fedtilt
from fedtilt.runs.tune import choose

METRICS = REPORTED[:4]
TITLES = {
    "accuracy": "accuracy",
    "client_fairness": "client fairness",
    "client_data_fairness_mean": "client data fairness, mean",
    "client_data_fairness_std": "client data fairness, std",
}
ROWS = ("fedavg", "ditto", "ditto-validated", "fedtilt", "fedtilt-validated")
PRINTED = {"fedavg": "fedavg", "ditto": "ditto", "fedtilt": "fedtilt"}  # rows that stand beside the paper's

Outcome = Literal["better", "tied", "worse", "ahead", "not ahead", "not measured"]  # ahead: on one seed


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One data set under one condition."""

    data: str
    titles: Mapping[str, str]  # row → what it is called
    rows: dict[str, dict[int, Mapping[str, Any]]] = field(default_factory=dict)  # row → seed → the method's result
    picks: dict[str, Counter[str]] = field(default_factory=dict)  # validated row → setting → how many seeds chose it
    settings: dict[str, dict[int, Mapping[str, Any]]] = field(default_factory=dict)  # FedTilt setting → seed → result
    rounds: list[int] = field(default_factory=list)  # of the learning curves
    diverged: dict[str, str] = field(default_factory=dict)

    @property
    def seeds(self) -> list[int]:
        """The seeds that were run."""
        return sorted({seed for row in self.rows.values() for seed in row})

    def values(self, row: str, metric: str, view: str = "evaluated") -> Values | None:
        """A metric of one row over its seeds; None where the view has none."""
        found = [_view(result, view) for _, result in sorted(self.rows.get(row, {}).items())]
        kept = tuple(metrics[metric] for metrics in found if metrics is not None)
        return Values(kept) if kept else None

    def compare(self, row: str, rival: str, metric: Metric, by: float = 0.0, view: str = "evaluated") -> Outcome:
        """Whether a row is better than a rival beyond one standard error, seed by seed, and by more than `by`."""
        return paired(self.rows.get(row, {}), self.rows.get(rival, {}), metric, by, view)


def _view(result: Mapping[str, Any], view: str) -> Mapping[str, float] | None:
    return evaluated(result) if view == "evaluated" else result["test"][view]


def paired(
    ours: Mapping[int, Mapping[str, Any]], theirs: Mapping[int, Mapping[str, Any]], metric: Metric, by: float = 0.0,
    view: str = "evaluated",
) -> Outcome:  # fmt: skip
    """Compare two settings over the seeds both have: the same clients, batches and outliers, so differences pair up.

    A difference of at most one standard error is a tie; one seed has no error: there, a setting is ahead or not.
    """
    return outcome(differences(ours, theirs, metric, view), by)


def outcome(ahead: Values | None, by: float = 0.0) -> Outcome:
    """What differences over seeds come to."""
    if ahead is None:
        return "not measured"
    if len(ahead.values) == 1:
        return "ahead" if ahead.mean > by else "not ahead"
    outcomes: dict[int, Outcome] = {1: "better", 0: "tied", -1: "worse"}
    return outcomes[sign(ahead, by)]


def differences(
    ours: Mapping[int, Mapping[str, Any]], theirs: Mapping[int, Mapping[str, Any]], metric: Metric,
    view: str = "evaluated",
) -> Values | None:  # fmt: skip
    """By how much ours are better, for every seed that both have; None where there is none."""
    up = 1 if metric.more else -1
    pairs = [(_view(ours[s], view), _view(theirs[s], view)) for s in sorted(set(ours) & set(theirs))]
    found = tuple(up * (a[metric.key] - b[metric.key]) for a, b in pairs if a and b)
    return Values(found) if found else None


def titles(experiment: Experiment) -> dict[str, str]:
    """What the rows are called in this experiment."""
    fixed = "paper’s tilts" if experiment.published else "ours, from earlier trials"
    mu = f"{experiment.settings['mu']:g}"
    names = ("FedAvg", f"Ditto (mu {mu})", "Ditto (validated)", f"FedTilt ({fixed})", "FedTilt (validated)")
    return dict(zip(ROWS, names, strict=True))


def standings(experiment: Experiment, results: Mapping[str, Mapping[str, Any]]) -> dict[str, Standing]:
    """Every data set of a comparison, from what is there of its cells; without any, its standing is empty."""
    return {
        data: _standing(experiment, data, _by_seed(data, results)) for data in experiment.settings["data"]
    }  # fmt: skip


def _by_seed(data: str, results: Mapping[str, Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    found = {}
    for cell, result in results.items():
        name, _, seed = cell.rpartition("-seed-")
        if name == data:
            found[int(seed)] = result
    return dict(sorted(found.items()))


def _standing(experiment: Experiment, data: str, by_seed: Mapping[int, Mapping[str, Any]]) -> Standing:
    settings = experiment.settings
    paper = settings[data]["paper"]
    fixed = {
        "fedavg": "fedavg",
        "ditto": ditto(settings["mu"])[0],
        "fedtilt": fedtilt(paper["tau"], paper["lam"], settings["mu"])[0],
    }
    standing = Standing(data=data, titles=titles(experiment))
    for seed, result in by_seed.items():
        standing.rounds[:] = result["rounds"]
        standing.diverged.update(result["diverged"])
        names = dict(fixed)
        for preset in ("ditto", "fedtilt"):
            candidates = {
                name: evaluated(method, "validation")
                for name, method in result["methods"].items()
                if result["settings"][name]["preset"] == preset
            }
            if candidates:
                row = f"{preset}-validated"
                names[row] = choose(candidates)
                standing.picks.setdefault(row, Counter())[names[row]] += 1
        for row in ROWS:
            if names.get(row) in result["methods"]:
                standing.rows.setdefault(row, {})[seed] = result["methods"][names[row]]
        for name, method in result["methods"].items():
            if result["settings"][name]["preset"] == "fedtilt":
                standing.settings.setdefault(name, {})[seed] = method
    return standing


def score(all_standings: list[Standing], rival: str, metric: Metric, view: str = "evaluated") -> Counter[Outcome]:
    """In how many cells (a data set under a condition) FedTilt (validated) is better than a rival, tied, or worse."""
    return Counter(standing.compare("fedtilt-validated", rival, metric, view=view) for standing in all_standings)
