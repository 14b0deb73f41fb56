"""The chapter on real-world federations: ranks of all methods, differences of pairs, and the values behind them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np
import torch

from fedtilt.evaluation.true_spread import true_spread
from fedtilt.evaluation.verdicts import LEVEL, Verdict, best_of, holm, of_units
from fedtilt.report.summary import format_interval
from fedtilt.text_tables import join_words
from reproduction.chapter import Chapter, Part, Table
from reproduction.experiment import Experiment, Results
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
    ("Ditto", "FedAvg"), ("fine-tuning", "FedAvg"), ("pFedMe", "FedAvg"), ("mixed-effects logistic", "FedAvg"),
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


def compare_over(cells: Sequence[Values], pairs: Sequence[tuple[str, str]], column: str = "accuracy") -> list[Verdict]:
    """By how much the first of each pair is better; the federations are a sample, and their seeds are averaged."""
    rows = {method: np.array([cell[method][column] for cell in cells]) for pair in pairs for method in pair}
    terms = np.stack([COLUMNS[column] * (rows[ours] - rows[theirs]) for ours, theirs in pairs])
    return of_units(np.round(terms, 6))  # equal values may differ by rounding


def best_sentence(cells: Sequence[Values]) -> str:
    """The method with the highest mean accuracy, and which others are told apart from it."""
    means = {method: fmean(cell[method]["accuracy"] for cell in cells) for method in _common(cells)}
    best = best_of(means, lambda pairs: compare_over(cells, pairs), higher_is_better=True, digits=1)
    worse = [method for method in best.against_first if method not in best.names]
    if not worse:
        return f"{best.first} has the highest mean accuracy; no other method is told apart from it."
    if len(best.names) == 1:
        return f"{best.first} has the highest mean accuracy, and is told apart from all others."
    return (
        f"{best.first} has the highest mean accuracy; worse beyond chance are {join_words(worse)}, and the other "
        f"{len(best.names) - 1} are not told apart from it."
    )


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
    return Table(
        caption=f"Mean ranks, {_words(name)}",
        columns=["method", *TITLES.values(), "mean accuracy, %"],
        rows=[
            [method, *(f"{ranks[column][method]:.1f}" for column in COLUMNS),
             f"{fmean(cell[method]['accuracy'] for cell in cells):.1f}"]
            for method in order
        ],
        notes=f"Over {len(cells)} federations, {splits} split{'s' * (splits > 1)} of each; 1 is best. "
        + best_sentence(cells),
    )  # fmt: skip


def _pairs_table(blocks: Mapping[str, Mapping[str, Values]]) -> Table:
    """Differences of accuracy between pairs of methods over federations."""
    rows, verdicts = [], []
    for (ours, theirs), (name, cells) in ((pair, block) for pair in PAIRS for block in blocks.items()):
        both = [cell for cell in cells.values() if ours in cell and theirs in cell]
        if not both:
            continue
        differences = [cell[ours]["accuracy"] - cell[theirs]["accuracy"] for cell in both]
        better, worse = sum(d > 1e-6 for d in differences), sum(d < -1e-6 for d in differences)
        verdicts += compare_over(both, [(ours, theirs)])
        rows.append([f"{ours} − {theirs}", _words(name), format_interval(verdicts[-1]), f"{better}–{worse}"])
    adjusted = holm([verdict.p_value for verdict in verdicts])
    for row, verdict, p_value in zip(rows, verdicts, adjusted, strict=True):
        row[2] = f"**{row[2]}**" if p_value <= LEVEL else row[2]
        row += [f"{verdict.p_value:.2g}", f"{p_value:.2g}"]
    return Table(
        caption="Pairs of methods: mean difference of accuracy over federations",
        columns=["pair", "condition, model", "points", "better–worse", "p", "p, Holm"],
        rows=rows,
        notes="Federations are the sample, each with the mean over its splits; 95 % interval. Holm’s correction is "
        "over all rows; bold where the difference remains.",
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
