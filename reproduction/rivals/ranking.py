"""Choose the setting of every method by seed, rank the methods, and compare FedTilt with each of them."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from fedtilt.evaluation.statistics import CONFIDENCE, PairedDifference, paired_difference
from reproduction.experiment import Experiment, Results
from reproduction.holm import holm
from reproduction.train_grid import Setting, evaluated

OURS = "FedTilt"
RANKED = {"accuracy": 1, "worst": 1, "client_fairness": -1}  # metric → 1 if more is better, else −1


class Cell(NamedTuple):
    """The methods on one data set under one condition."""

    data: str
    condition: str
    values: dict[str, dict[str, dict[int, float]]]  # metric → method → seed → its value on test data
    attack_success: dict[str, dict[int, float]]  # method → seed → success of a backdoor; empty: no backdoor

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


class Score(NamedTuple):
    """FedTilt against one rival in one cell."""

    data: str
    condition: str
    rival: str
    difference: PairedDifference  # positive where FedTilt is better
    adjusted: float = 1.0  # the p-value after Holm's correction

    @property
    def survives(self) -> bool:
        """Whether the difference is significant after Holm's correction."""
        return self.adjusted < 1 - CONFIDENCE


def cells_of(experiment: Experiment, results: Results, trials: Mapping[str, Mapping[str, Setting]]) -> list[Cell]:
    """The measured cells, in the order of the experiment; of a cell, the seeds whose cases are all measured."""
    cells = []
    for data in experiment.settings["data"]:
        for condition in experiment.settings["conditions"]:
            cell = f"{data}-{condition}"
            measured = [
                {
                    int(name.removeprefix(prefix)): result["methods"]
                    for name, result in sorted(results.items())
                    if name.startswith(prefix) and name.removeprefix(prefix).isdecimal()
                }
                for prefix in [f"{cell}-seed-", *(f"{cell}-{loss}-seed-" for loss in experiment.settings["losses"])]
            ]
            by_seed = {
                seed: {name: found for of_loss in measured for name, found in of_loss[seed].items()}
                for seed in measured[0]
                if all(seed in of_loss for of_loss in measured)
            }
            if by_seed:
                cells.append(_cell(data, condition, by_seed, trials))
    return cells


def _cell(
    data: str, condition: str, by_seed: Mapping[int, Mapping[str, Any]], trials: Mapping[str, Mapping[str, Setting]]
) -> Cell:
    values: dict[str, dict[str, dict[int, float]]] = {metric: {method: {} for method in trials} for metric in RANKED}
    success: dict[str, dict[int, float]] = {}
    for seed, measured in by_seed.items():
        for method, of_method in trials.items():
            chosen = choose(seed, by_seed, list(of_method))
            if chosen is None or chosen not in measured:
                continue
            for metric, by_method in values.items():
                by_method[method][seed] = evaluated(measured[chosen])[metric]
            if "attack_success" in measured[chosen]["test"]:
                success.setdefault(method, {})[seed] = measured[chosen]["test"]["attack_success"]
    return Cell(data, condition, values, success)


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
    ranks: dict[str, list[float]] = {}
    for cell in cells:
        means = {name: cell.mean(name, metric) for name in cell.accuracy}
        values = {name: -math.inf if mean is None else RANKED[metric] * mean for name, mean in means.items()}
        for name, value in values.items():
            better = sum(other > value for other in values.values())
            equal = sum(other == value for other in values.values())
            ranks.setdefault(name, []).append(better + (equal + 1) / 2)
    return {name: fmean(of_method) for name, of_method in ranks.items()}


def score_all(cells: Sequence[Cell]) -> list[Score]:
    """FedTilt against every rival in every cell, corrected together; rivals without common seeds are left out."""
    scores = []
    for cell in cells:
        ours = cell.accuracy[OURS]
        for rival, theirs in cell.accuracy.items():
            common = sorted(set(ours) & set(theirs))
            if rival == OURS or not common:
                continue
            difference = paired_difference([ours[s] for s in common], [theirs[s] for s in common])
            scores.append(Score(cell.data, cell.condition, rival, difference))
    adjusted = holm([score.difference.p_value for score in scores])
    return [score._replace(adjusted=p) for score, p in zip(scores, adjusted, strict=True)]


def losing_sentence(scores: Sequence[Score]) -> str:
    """How often FedTilt is better and worse, with and without the correction, and the rivals that it loses against."""
    better, worse = ([s for s in scores if s.difference.sign() == sign] for sign in (1, -1))
    corrected = [sum(s.survives for s in side) for side in (better, worse)]
    text = (
        f"By 95 % intervals, {OURS} is more accurate in {len(better)} of {len(scores)} comparisons and less accurate "
        f"in {len(worse)}; after the correction, in {corrected[0]} and {corrected[1]}. The others are undecided."
    )
    if not worse:
        return text
    by_rival: dict[str, list[str]] = {}
    for s in sorted(worse, key=lambda s: s.difference.mean):
        by_rival.setdefault(s.rival, []).append(f"{s.data}, {s.condition} ({s.difference.mean:.2f})")
    rivals = "; ".join(f"{rival} on {', '.join(cells)}" for rival, cells in by_rival.items())
    return f"{text} It loses against {rivals}.".replace("(-", "(−")
