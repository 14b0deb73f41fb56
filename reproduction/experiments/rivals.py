"""All methods × conditions, each method with the same number of trials: a ranking, and FedTilt against every rival."""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from statistics import fmean
from types import MappingProxyType
from typing import Any, NamedTuple

from fedtilt.evaluation.verdicts import LEVEL, holm
from fedtilt.report.compare import METRICS
from fedtilt.report.summary import format_interval
from reproduction.chapter import Chapter, Table, Text
from reproduction.experiment import Case, Experiment, OnProgress, Options, Results, by_seed
from reproduction.experiments.paired import clients_of
from reproduction.records import HOW_COMPARED, Difference, difference, methods_of
from reproduction.training import Setting, evaluated, federation_settings, grid_case, train_grid

OURS = "FedTilt"
RANKED = {"accuracy": 1, "worst": 1, "client_fairness": -1}  # metric → 1 if more is better, else −1


class Cell(NamedTuple):
    """The methods on one data set under one condition."""

    data: str
    condition: str
    values: dict[str, dict[str, dict[int, float]]]  # metric → method → seed → its value on test data
    attack_success: dict[str, dict[int, float]]  # method → seed → success of a backdoor; empty: no backdoor
    clients: int = 0  # with test data: attackers have none
    chosen: Mapping[str, dict[int, Mapping[str, Any]]] = MappingProxyType({})  # method → seed → its chosen trial

    @property
    def accuracy(self) -> dict[str, dict[int, float]]:
        """Method → seed → test accuracy of its chosen trial."""
        return self.values["accuracy"]

    @property
    def seeds(self) -> list[int]:
        """The seeds in which a method has a result."""
        return sorted({seed for of_method in self.accuracy.values() for seed in of_method})

    def mean(self, method: str, metric: str = "accuracy") -> float | None:
        """The mean of a metric of a method over its seeds; None: no trial converged."""
        found = self.values[metric][method]
        return fmean(found.values()) if found else None

    def success(self, method: str) -> float | None:
        """The mean success of the backdoor."""
        found = self.attack_success.get(method)
        return fmean(found.values()) if found else None


class CellScore(NamedTuple):
    """FedTilt against one rival in one cell."""

    data: str
    condition: str
    rival: str
    difference: Difference  # positive where FedTilt is better
    adjusted: float = 1.0  # the p-value after Holm's correction

    @property
    def survives(self) -> bool:
        """Whether the difference is significant after Holm's correction."""
        return self.adjusted <= LEVEL


def cells_of(experiment: Experiment, results: Results, trials: Mapping[str, Mapping[str, Setting]]) -> list[Cell]:
    """The measured cells, in the order of the experiment; of a cell, the seeds whose cases are all measured."""
    cells = []
    for data in experiment.settings["data"]:
        for condition in experiment.settings["conditions"]:
            cell = f"{data}-{condition}"
            names = [cell, *(f"{cell}-{loss}" for loss in experiment.settings["losses"])]
            measured = [by_seed(results, name) for name in names]
            together = {
                seed: {name: found for of_loss in measured for name, found in methods_of(of_loss[seed]).items()}
                for seed in measured[0]
                if all(seed in of_loss for of_loss in measured)
            }
            if together:
                attack = experiment.settings["conditions"][condition].get("attack", {"share": 0.0})
                honest = round(clients_of(experiment.settings, data) * (1 - attack["share"]))
                cells.append(_cell(data, condition, together, trials, honest))
    return cells


def _cell(
    data: str, condition: str, by_seed: Mapping[int, Mapping[str, Any]], trials: Mapping[str, Mapping[str, Setting]],
    clients: int,
) -> Cell:  # fmt: skip
    values: dict[str, dict[str, dict[int, float]]] = {metric: {method: {} for method in trials} for metric in RANKED}
    success: dict[str, dict[int, float]] = {}
    records: dict[str, dict[int, Mapping[str, Any]]] = {method: {} for method in trials}
    for seed, measured in by_seed.items():
        for method, of_method in trials.items():
            chosen = choose(seed, by_seed, list(of_method))
            if chosen is None or chosen not in measured:
                continue
            records[method][seed] = measured[chosen]
            for metric, by_method in values.items():
                by_method[method][seed] = evaluated(measured[chosen])[metric]
            if "attack_success" in measured[chosen]["test"]:
                success.setdefault(method, {})[seed] = measured[chosen]["test"]["attack_success"]
    return Cell(data, condition, values, success, clients, records)


def choose(seed: int, by_seed: Mapping[int, Mapping[str, Any]], names: Sequence[str]) -> str | None:
    """The trial with the highest mean accuracy on the validation data of the other seeds; with one seed, of that one.

    A trial that diverged in a seed is not chosen; None if all did.
    """
    others = [measured for other, measured in by_seed.items() if other != seed] or [by_seed[seed]]
    scores = {
        name: fmean(evaluated(measured[name], "validation")["accuracy"] for measured in others)
        for name in names
        if all(name in measured for measured in others)
    }
    return max(scores, key=lambda name: scores[name]) if scores else None


def mean_ranks(cells: Sequence[Cell], metric: str = "accuracy") -> dict[str, float]:
    """Method → its mean rank over the cells; ties share the mean of their ranks, and no result is the last rank."""
    from scipy.stats import rankdata  # slow to import

    ranks: dict[str, list[float]] = {}
    for cell in cells:
        means = {name: cell.mean(name, metric) for name in cell.accuracy}
        values = {name: -math.inf if mean is None else RANKED[metric] * mean for name, mean in means.items()}
        for name, rank in zip(values, rankdata([-value for value in values.values()]), strict=True):
            ranks.setdefault(name, []).append(float(rank))
    return {name: fmean(of_method) for name, of_method in ranks.items()}


def score_all(cells: Sequence[Cell]) -> list[CellScore]:
    """FedTilt against every rival in every cell, corrected together; rivals without common seeds are skipped."""
    scores = []
    for cell in cells:
        for rival, theirs in cell.chosen.items():
            found = difference(cell.chosen[OURS], theirs, METRICS[0], cell.clients) if rival != OURS else None
            if found is not None:
                scores.append(CellScore(cell.data, cell.condition, rival, found))
    adjusted = holm([score.difference.verdict.p_value for score in scores])
    return [score._replace(adjusted=p) for score, p in zip(scores, adjusted, strict=True)]


def losing_sentence(scores: Sequence[CellScore]) -> str:
    """How often FedTilt is better and worse, with and without the correction, and the rivals that it loses against."""
    better, worse = ([s for s in scores if s.difference.verdict.sign() == sign] for sign in (1, -1))
    corrected = [sum(s.survives for s in side) for side in (better, worse)]
    text = (
        f"By 95 % intervals, {OURS} is more accurate in {len(better)} of {len(scores)} comparisons and less accurate "
        f"in {len(worse)}; after the correction, in {corrected[0]} and {corrected[1]}. The others are undecided."
    )
    if not worse:
        return text
    by_rival: dict[str, list[str]] = {}
    for s in sorted(worse, key=lambda s: s.difference.verdict.difference):
        by_rival.setdefault(s.rival, []).append(f"{s.data}, {s.condition} ({s.difference.verdict.difference:.2f})")
    rivals = "; ".join(f"{rival} on {', '.join(cells)}" for rival, cells in by_rival.items())
    return f"{text} It loses against {rivals}.".replace("(-", "(−")


def trials(settings: Mapping[str, Any]) -> dict[str, dict[str, Setting]]:
    """Method → name of a trial → its setting; every method has the same number of trials."""
    return {
        method: {f"{method} {number}": setting for number, setting in enumerate(of_method, start=1)}
        for method, of_method in settings["methods"].items()
    }


def cases(experiment: Experiment, options: Options) -> list[Case]:
    """One case per data set, condition, loss and seed; it trains all trials of all methods with that loss together."""
    settings, result = experiment.settings, []
    by_loss: dict[str, dict[str, Setting]] = {}
    for method, of_method in trials(settings).items():
        by_loss.setdefault(method if method in settings["losses"] else "", {}).update(of_method)
    for data, condition, loss in product(settings["data"], settings["conditions"], by_loss):
        given = settings["conditions"][condition]
        federation = federation_settings(
            {**settings, "conditions": {}}, data, "none", **settings["losses"].get(loss, {})
        )
        federation["outliers"] = given.get("outliers", "none")
        if "attack" in given:
            federation["attack"] = given["attack"]
        for seed in range(options.seeds or settings["seeds"]):
            words = [data, condition, *([loss] if loss else [])]
            result.append(grid_case("-".join(words), federation, seed, by_loss[loss], what=", ".join(words)))
    return result


def measure(case: Case, options: Options, on_progress: OnProgress) -> dict[str, Any]:
    """Train all trials of one case."""
    return train_grid(case.settings, options, on_progress, curves=False)


def chapter(experiment: Experiment, results: Results) -> Chapter:
    """The ranking, where FedTilt loses, and its difference to every rival."""
    cells = cells_of(experiment, results, trials(experiment.settings))
    parts: list[Text | Table] = []
    if cells:
        scores = score_all(cells)
        parts += [_rank_table(cells), *(_accuracy_table(cells, data) for data in {cell.data: None for cell in cells})]
        parts += [Text(markdown=losing_sentence(scores)), _against(scores), *_backdoor(cells)]
    planned = {(data, name) for data in experiment.settings["data"] for name in experiment.settings["conditions"]}
    missing = sorted(planned - {(cell.data, cell.condition) for cell in cells})
    if missing:
        parts.append(Text(markdown="Not measured yet: " + "; ".join(f"{d}, {c}" for d, c in missing) + "."))
    budget = len(next(iter(experiment.settings["methods"].values())))
    lead = f"{experiment.about.strip()} Trials of each method: {budget}."
    return Chapter(title=experiment.title, lead=lead, parts=parts)


def _rank_table(cells: list[Cell]) -> Table:
    """The mean rank of every method over all cells, by accuracy, for the worst clients, and by client fairness."""
    ranks = {metric: mean_ranks(cells, metric) for metric in RANKED}
    methods = sorted(ranks["accuracy"], key=lambda name: (ranks["accuracy"][name], name))
    return Table(
        caption="All methods, ranked",
        columns=["method", "accuracy", "worst 10 %", "client fairness"],
        rows=[[method, *(f"{of_metric[method]:.1f}" for of_metric in ranks.values())] for method in methods],
        notes="Mean rank over all data sets and conditions, on the test data of honest clients; equal values share a "
        "rank, and a method without result is last. Worst 10 %: the accuracy of the worst 10 % of the clients; client "
        "fairness: the spread of accuracy over clients, which says nothing without accuracy: a method that fails all "
        "clients alike has none. The setting of a method in one seed is the trial with the highest accuracy on the "
        "validation data of the other seeds.",
    )


def _accuracy_table(cells: list[Cell], data: str) -> Table:
    """Accuracy under every condition of a data set; methods in the order of their mean rank."""
    ranks, of_data = mean_ranks(cells), [cell for cell in cells if cell.data == data]
    rows: list[list[str | float]] = []
    for method in sorted(ranks, key=lambda name: (ranks[name], name)):
        row: list[str | float] = [method]
        for cell in of_data:
            accuracy = cell.mean(method)
            row.append("—" if accuracy is None else f"{accuracy:.2f}")
        rows.append(row)
    seeds = sorted({len(cell.seeds) for cell in of_data})
    number_of_seeds = " to ".join(str(count) for count in dict.fromkeys((seeds[0], seeds[-1])))
    return Table(
        caption=f"All methods: accuracy on {data}",
        columns=["method", *(cell.condition for cell in of_data)],
        rows=rows,
        notes=f"On the test data of honest clients, mean over {number_of_seeds} seeds, in %; — if no trial converged.",
    )


def _against(scores: list[CellScore]) -> Table:
    rows: list[list[str | float]] = []
    for score in scores:
        verdict, seeds = score.difference
        text = format_interval(verdict)
        rows.append(
            [f"{score.data}, {score.condition}", score.rival, f"**{text}**" if score.survives else text, str(seeds),
             f"{verdict.p_value:.4f}", f"{score.adjusted:.4f}"]
        )  # fmt: skip
    return Table(
        caption=f"{OURS} against every rival: differences of accuracy",
        columns=["cell", "against", "difference", "seeds", "p", "p, Holm"],
        rows=rows,
        notes=f"Mean difference in points, positive where {OURS} is better, and its 95 % interval; bold where it "
        f"remains after Holm’s correction over all {len(scores)} comparisons. {HOW_COMPARED}",
        folded=True,
    )


def _backdoor(cells: list[Cell]) -> list[Table]:
    measured = [cell for cell in cells if cell.attack_success]
    if not measured:
        return []
    methods = list(measured[0].accuracy)
    rows: list[list[str | float]] = [
        [method, *(f"{cell.success(method):.1f}" if cell.success(method) is not None else "—" for cell in measured)]
        for method in methods
    ]
    return [
        Table(
            caption="Success of the backdoor",
            columns=["method", *(f"{cell.data}, {cell.condition}" for cell in measured)],
            rows=rows,
            notes="% of honest clients’ test images with the trigger that become the target class; lower is better.",
        )
    ]
