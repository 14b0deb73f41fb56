"""The chapter on real-world federations: ranks of all methods with their tests, and the values behind them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np
import torch

from fedtilt.evaluation.true_spread import true_spread
from reproduction.chapter import Chapter, Part, Table
from reproduction.experiment import Experiment, Results
from reproduction.statistics import holm
from reproduction.submitted import submissions
from reproduction.training import trial_name

BASELINES = "baselines"
TITLES = {
    "accuracy": "accuracy", "worst": "worst 10 %", "client_fairness": "client fairness",
    "beyond_chance": "beyond chance", "gap": "group gap", "calibration": "calibration error",
}  # fmt: skip
COLUMNS = {column: 1 if column in ("accuracy", "worst") else -1 for column in TITLES}  # 1: more is better
PAIRS = (  # the first is compared with the second
    ("FedTilt", "Ditto"), ("FedTilt", "fine-tuning"), ("FedTilt", "FedAvg"), ("FedTilt", "local"),
    ("FedTilt", "pooled logistic, client a column"), ("FedTilt", "mixed-effects logistic"), ("FedTilt, q", "FedTilt"),
)  # fmt: skip
Values = dict[str, dict[str, float]]  # method → column → its mean over the seeds


def cell_values(results: Results, data: str, condition: str, model: str, seeds: Sequence[int]) -> Values:
    """The values of the methods and baselines in one cell, means over the seeds in which the methods are measured."""
    found: dict[str, dict[str, list[float]]] = {}
    measured = [seed for seed in seeds if f"{data}-{condition}-{model}-seed-{seed}" in results]
    parts = [model, *(f"{model}-{method.name}" for method in submissions()), BASELINES]
    for seed, part in product(measured, parts):
        result = results.get(f"{data}-{condition}-{part}-seed-{seed}", {"methods": {}})
        for method, values in result["methods"].items():
            row = {
                **values, "gap": max(values["gaps"].values(), default=0.0),
                "beyond_chance": _beyond_chance(values["correct"], result["samples"]),
            }  # fmt: skip
            for column in COLUMNS:
                found.setdefault(method, {}).setdefault(column, []).append(row[column])
    return {method: {column: fmean(of) for column, of in columns.items()} for method, columns in found.items()}


def _beyond_chance(correct: Sequence[int], samples: Sequence[int]) -> float:
    """The standard deviation of the clients' true accuracies, in points; their rows were drawn at random."""
    return true_spread(torch.tensor(correct)[:, None], torch.tensor(samples)[:, None]).estimate


def mean_ranks(cells: Sequence[Values], column: str = "accuracy") -> dict[str, float]:
    """Method → its mean rank over the cells, of the methods that all cells have; equal values share a rank."""
    from scipy.stats import rankdata  # slow to import

    methods = _common(cells)
    ranks = np.mean([rankdata(-COLUMNS[column] * _row(cell, methods, column)) for cell in cells], axis=0)
    return dict(zip(methods, map(float, ranks), strict=True))


def _common(cells: Sequence[Values]) -> list[str]:
    return [method for method in cells[0] if all(method in cell for cell in cells)]


def _row(cell: Values, methods: Sequence[str], column: str) -> np.ndarray:
    return np.round([cell[m][column] for m in methods], 6)  # equal values may differ by rounding


def friedman_p(cells: Sequence[Values], column: str = "accuracy") -> float:
    """The p-value of Friedman's test that all methods are equally good; 1 if there are too few to test."""
    from scipy.stats import friedmanchisquare

    methods = _common(cells)
    if len(methods) < 3 or len(cells) < 2:
        return 1.0
    return float(friedmanchisquare(*np.array([_row(cell, methods, column) for cell in cells]).T).pvalue)


def critical_difference(methods: int, cells: int) -> float:
    """Two methods whose mean ranks differ by less are not significantly different, by Nemenyi's test at 5 %.

    (J. Demsar, Statistical comparisons of classifiers over multiple data sets, JMLR 7, 2006.)

    >>> round(critical_difference(4, 14), 2)
    1.25
    """
    from scipy.stats import studentized_range

    quantile = studentized_range.ppf(0.95, methods, np.inf) / np.sqrt(2)
    return float(quantile * np.sqrt(methods * (methods + 1) / (6 * cells)))


def wilcoxon_p(differences: Sequence[float]) -> float:
    """The two-sided p-value of Wilcoxon's signed-rank test over federations, exact with ties too; zeros are dropped.

    >>> wilcoxon_p([0.5, 1.0, 1.0, 2.0, 0.0])
    0.125
    """
    from scipy.stats import rankdata

    rounded = np.round(differences, 6)
    found = rounded[rounded != 0]
    ranks = rankdata(np.abs(found))
    sums = np.zeros(1)  # of the ranks with a positive sign, for all signs that the differences could have had
    for rank in ranks:
        sums = np.concatenate([sums, sums + rank])
    observed = ranks[found > 0].sum()
    return float(min(1.0, 2 * min(np.mean(sums <= observed), np.mean(sums >= observed))))


def chapter(experiment: Experiment, results: Results) -> Chapter:
    """Ranks under every condition and model, pairs of methods, chosen tilts, and the accuracy on every table."""
    settings = experiment.settings
    seeds = range(settings["seeds"])
    blocks: dict[str, dict[str, Values]] = {}  # condition-model → federation → values
    splits: dict[str, int] = {}
    for condition, given in settings["conditions"].items():
        for model in given["models"]:
            cells = {data: cell_values(results, data, condition, model, seeds) for data in settings["data"]}
            if any(cells.values()):
                name = f"{condition}-{model}"
                blocks[name] = {data: values for data, values in cells.items() if values}
                splits[name] = len(
                    [s for s in seeds if any(f"{d}-{condition}-{model}-seed-{s}" in results for d in cells)]
                )
    parts: list[Part] = [_rank_table(name, list(cells.values()), splits[name]) for name, cells in blocks.items()]
    if blocks:
        parts += [_pairs_table(blocks), _chosen_table(settings, results)]
    parts += [table for name, cells in blocks.items() for table in _accuracy_tables(name, cells)]
    return Chapter(title=experiment.title, lead=experiment.about.strip(), parts=parts)


def _words(block: str) -> str:
    """A condition and a model, of condition-model."""
    return ", ".join(block.rsplit("-", 1))


def _rank_table(name: str, cells: Sequence[Values], splits: int) -> Table:
    ranks = {column: mean_ranks(cells, column) for column in COLUMNS}
    order = sorted(ranks["accuracy"], key=lambda method: ranks["accuracy"][method])
    difference = critical_difference(len(order), len(cells))
    return Table(
        caption=f"Mean ranks, {_words(name)}",
        columns=["method", *TITLES.values(), "mean accuracy, %"],
        rows=[
            [method, *(f"{ranks[column][method]:.1f}" for column in COLUMNS),
             f"{fmean(cell[method]['accuracy'] for cell in cells):.1f}"]
            for method in order
        ],
        notes=f"Over {len(cells)} federations, {splits} split{'s' * (splits > 1)} of each; 1 is best. Friedman’s test "
        f"of equal accuracies: p = {friedman_p(cells):.1g}. Mean ranks that differ by less than {difference:.1f} are "
        "not significantly different (Nemenyi’s test at 5 %).",
    )  # fmt: skip


def _pairs_table(blocks: Mapping[str, Mapping[str, Values]]) -> Table:
    """Differences of accuracy between pairs of methods, with Wilcoxon's test over federations."""
    rows, p_values = [], []
    for (ours, theirs), (name, cells) in ((pair, block) for pair in PAIRS for block in blocks.items()):
        both = [cell for cell in cells.values() if ours in cell and theirs in cell]
        if not both:
            continue
        differences = [cell[ours]["accuracy"] - cell[theirs]["accuracy"] for cell in both]
        better, worse = sum(d > 1e-6 for d in differences), sum(d < -1e-6 for d in differences)
        p_values.append(wilcoxon_p(differences))
        rows.append(
            [f"{ours} − {theirs}", _words(name), f"{fmean(differences):+.2f}".replace("-", "−"), f"{better}–{worse}"]
        )
    adjusted = holm(p_values)
    return Table(
        caption="Pairs of methods: mean difference of accuracy over federations",
        columns=["pair", "condition, model", "points", "better–worse", "p", "p, Holm"],
        rows=[[*row, f"{p:.2g}", f"{a:.2g}"] for row, p, a in zip(rows, p_values, adjusted, strict=True)],
        notes="Wilcoxon’s signed-rank test over federations; Holm’s correction is over all rows.",
        folded=True,
    )


def _chosen_table(settings: Mapping[str, Any], results: Results) -> Table:
    """How often each setting of FedTilt was chosen on validation data."""
    chosen: Counter[tuple[str, str]] = Counter()
    for result in results.values():
        for method, name in result.get("chosen", {}).items():
            if method.startswith("FedTilt"):
                chosen[method, trial_name(settings["methods"][method][int(name.rpartition(" ")[2]) - 1])] += 1
    return Table(
        caption="Which settings of FedTilt were chosen on validation data",
        columns=["method", "setting", "cases"],
        rows=[[method, f"`{setting}`", str(count)] for (method, setting), count in sorted(chosen.items())],
        folded=True,
    )


def _accuracy_tables(name: str, cells: Mapping[str, Values]) -> list[Table]:
    """The accuracy of every method on every federation, in tables that fit a page."""
    ranks, federations = mean_ranks(list(cells.values())), list(cells)
    return [
        Table(
            caption=f"Accuracy and, in brackets, that of the worst 10 % of the clients, {_words(name)}: "
            f"{part[0]} to {part[-1]}",
            columns=["method", *part],
            rows=[
                [method, *(f"{cells[f][method]['accuracy']:.1f} ({cells[f][method]['worst']:.0f})" for f in part)]
                for method in sorted(ranks, key=lambda method: ranks[method])
            ],
            notes="In %, mean over the clients, then over the seeds.",
            folded=True,
        )
        for part in (federations[at : at + 7] for at in range(0, len(federations), 7))
    ]
