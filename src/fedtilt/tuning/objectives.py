"""What a search compares: objectives by name, their direction, the tasks they exist for, and constraints on them."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtilt.checks import number
from fedtilt.data import Federation
from fedtilt.errors import InputError
from fedtilt.evaluation.client_differences import Draw, Rows
from fedtilt.evaluation.decision_metrics import METRICS
from fedtilt.evaluation.evaluator import group_names
from fedtilt.evaluation.metrics import GroupCounts, Metrics, compute_group_metrics, compute_metrics
from fedtilt.evaluation.scores import TASK_SCORES, Score
from fedtilt.evaluation.weighted_predictions import PredictedClasses, Weighted

GROUP = "group:"  # before the name of a grouping
CLASSIFICATION, REGRESSION = "classification", "regression"


class ClientOutputs(NamedTuple):
    """Probabilities of samples, ordered by client."""

    probabilities: Tensor  # (S, K)
    labels: Tensor  # (S,)
    clients: Tensor  # (S,) the row of the client in the tables of sums, ascending
    rarer: Tensor  # of two classes, the one with fewer samples; −1: there are not two

    def of_clients(self, rows: Tensor) -> "ClientOutputs":
        """The samples of some clients, in this order; a client may occur several times."""
        sizes = self.clients.bincount(minlength=int(rows.max()) + 1)
        starts, chosen = (sizes.cumsum(0) - sizes)[rows], sizes[rows]
        clients = torch.arange(len(rows)).repeat_interleave(chosen)
        first = (chosen.cumsum(0) - chosen).repeat_interleave(chosen)
        samples = torch.arange(len(clients)) - first + starts.repeat_interleave(chosen)
        return ClientOutputs(self.probabilities[samples], self.labels[samples], clients, self.rarer)

    @property
    def samples(self) -> PredictedClasses:
        """As metrics take them, of two classes about the rarer one."""
        positive = int(self.rarer) if self.rarer >= 0 else None
        return PredictedClasses(self.labels.numpy(), self.probabilities.double().numpy(), positive)

    def metric(self, name: str) -> float:
        """A metric; NaN: not defined."""
        samples = self.samples
        return float(METRICS[name].values(Weighted(samples, np.ones((1, len(samples.labels)))))[0])


class ScoreTable(NamedTuple):
    """Sums of one setting's evaluated models and samples, by client and class (or other group), on one seed."""

    sums: Tensor
    total: Tensor
    groups: Mapping[str, GroupCounts]  # the same by grouping, if the data names groups
    outputs: ClientOutputs | None = None  # None: no objective needs them

    @property
    def metrics(self) -> Metrics:
        """The metrics of the clients."""
        return compute_metrics(self.sums, self.total)

    def of_clients(self, rows: Tensor) -> "ScoreTable":
        """The scores of some clients, in this order; a client may occur several times."""
        groups = {name: GroupCounts(sums[rows], total[rows]) for name, (sums, total) in self.groups.items()}
        outputs = None if self.outputs is None else self.outputs.of_clients(rows)
        return ScoreTable(self.sums[rows], self.total[rows], groups, outputs)

    def rows(self) -> Rows | None:
        """The rows as verdicts take them; None: only sums are known."""
        if self.outputs is None:
            return None
        right = self.outputs.probabilities.argmax(1) == self.outputs.labels
        return Rows(self.outputs.clients.numpy(), 100 * right.double().numpy(), self.outputs.samples)


SeedScores = Mapping[int, ScoreTable]  # seed → the scores of one setting


@dataclass(frozen=True)
class Objective:
    """A number that settings are compared by."""

    name: str
    title: str
    unit: str  # "%" or "points"; empty: that of the target, or in [0, 1]
    higher_is_better: bool
    value: Callable[[ScoreTable], float]
    needs_outputs: bool = False  # probabilities, beside the sums
    of_group: str = ""  # the grouping that it is about

    @property
    def compared(self) -> str:
        """The key by which settings are compared, see `client_differences`."""
        if self.of_group:
            return "worst group"
        return "client_data_fairness_mean" if self.name == "class_fairness" else self.name

    def text(self, value: float) -> str:
        """A value in words, without its unit."""
        return f"{value:.2f}" if self.unit else f"{value:.3f}" if self.needs_outputs else f"{value:.4g}"

    @property
    def largest(self) -> float:
        """The largest possible value."""
        return 100 if self.unit else 1 if self.needs_outputs else math.inf

    def better(self, value: float, other: float) -> float:
        """How much better a value is than another one; negative: worse."""
        return value - other if self.higher_is_better else other - value


def _objectives(scores: Sequence[Score]) -> dict[str, Objective]:
    """By name: the scores, and the worst clients and both fairnesses by the first of them."""
    main, spread = scores[0], scores[0].spread_unit
    found = [Objective(s.name, s.title, s.unit, s.higher_is_better, partial(_mean, s.name)) for s in scores]
    found += [
        Objective("worst", "worst 10 %", main.unit, main.higher_is_better, lambda s: s.metrics.worst),
        Objective("client_fairness", "client fairness", spread, False, lambda s: s.metrics.client_fairness),
        Objective("class_fairness", "client data fairness", spread, False, _class_fairness),
    ]
    return {objective.name: objective for objective in found}


def _class_fairness(table: ScoreTable) -> float:
    fairness = table.metrics.client_data_fairness
    assert fairness is not None  # see `objectives_of`
    return fairness[0]


def _mean(score: str, table: ScoreTable) -> float:
    return table.metrics.value(score)


OBJECTIVES = {task: _objectives(scores) for task, scores in TASK_SCORES.items()}  # the main one first


def _of_outputs(metric: str, table: ScoreTable) -> float:
    assert table.outputs is not None  # see `Objective.needs_outputs`
    return table.outputs.metric(metric)


OUTPUT_OBJECTIVES = {  # of classes: metrics of the probabilities on all samples, of two classes about the rarer one
    name: Objective(name, METRICS[name].title, "", True, partial(_of_outputs, name), True)
    for name in ("auroc", "auprc", "f1", "balanced_accuracy")
}


def objectives_of(federation: Federation) -> dict[str, Objective]:
    """The scores and fairnesses of a task by name; where samples have neither classes nor groups, of clients alone."""
    objectives = OBJECTIVES[federation.dataset.task]
    has_groups = len(group_names(federation)[federation.group]) > 1
    return objectives if has_groups else {name: o for name, o in objectives.items() if name != "class_fairness"}


def find_objective(name: str, federation: Federation) -> Objective:
    """The objective of this name, if it exists for the task and the data.

    `group:NAME` is the score of the worst group of a grouping, over the samples of all clients.
    """
    task, groups = federation.dataset.task, group_names(federation)
    groups = groups if len(groups) > 1 else {}  # the classes alone are not groups that the data names
    own = objectives_of(federation)
    by_name = own | (OUTPUT_OBJECTIVES if task == CLASSIFICATION else {})
    known = [*by_name, *(f"{GROUP}{column}" for column in groups)]
    if name not in known:
        hint = "" if groups else ", group:COLUMN (name the column in data.group)"
        raise InputError(f"there is no objective {name!r} for {task}; choose one of {', '.join(known)}{hint}")
    if name in OUTPUT_OBJECTIVES and len(federation.evaluation("validation")[1].unique()) < 2:
        raise InputError(f"by = {name!r} needs validation samples of two classes or more; raise clients.validation")
    if name in by_name:
        return by_name[name]
    column, main = name.removeprefix(GROUP), next(iter(own.values()))
    return Objective(
        name, f"worst {column}", main.unit, main.higher_is_better,
        lambda scores: compute_group_metrics(scores.groups[column], groups[column]).worst[1], of_group=column,
    )  # fmt: skip


@dataclass(frozen=True)
class Constraint:
    """A bound of an objective on validation data."""

    objective: Objective
    bound: float
    at_least: bool

    def violation(self, value: float) -> float:
        """By how much a value misses the bound; 0 if it keeps it."""
        return max(0.0, self.bound - value if self.at_least else value - self.bound)

    def __str__(self) -> str:
        return f"{self.objective.title} {'≥' if self.at_least else '≤'} {self.bound:g} {self.objective.unit}".rstrip()


def constraints_of(
    at_least: Mapping[str, float], at_most: Mapping[str, float], federation: Federation
) -> tuple[Constraint, ...]:
    """Checked constraints; a bound of an accuracy up to 1 is a share: 0.9 is 90 %."""
    found = []
    for bounds, is_least in ((at_least, True), (at_most, False)):
        for name, value in bounds.items():
            objective, bound = find_objective(name, federation), number(value, f"the bound of {name}")
            if objective.unit == "%" and 0 <= bound <= 1:
                bound *= 100
            if not 0 <= bound <= objective.largest:
                upper = " from 0 to 1" if objective.needs_outputs else " ≥ 0"
                remedy = "a share such as 0.9, or up to 100" if objective.unit else f"a number{upper}"
                raise InputError(
                    f"{'at least' if is_least else 'at most'} {name} = {value} is not possible; give {remedy}"
                )
            found.append(Constraint(objective, bound, is_least))
    return tuple(found)


def parse_bounds(texts: Iterable[str], option: str) -> dict[str, float]:
    """Bounds from texts of the command line.

    >>> parse_bounds(["accuracy=0.9", "group:sex=80"], "--at-least")
    {'accuracy': 0.9, 'group:sex': 80.0}
    """
    bounds: dict[str, float] = {}
    for text in texts:
        name, _, value = (part.strip() for part in text.rpartition("="))
        try:
            bounds[name] = float(value)
        except ValueError:
            raise InputError(f"{option} {text!r} is not NAME=NUMBER; write for example {option} accuracy=0.9") from None
        if not name or math.isnan(bounds[name]):
            raise InputError(f"{option} {text!r} is not NAME=NUMBER; write for example {option} accuracy=0.9")
    return bounds


def draw_of(tables: Mapping[str, ScoreTable], by: Objective) -> Draw:
    """The scores of several settings on the same validation rows, as verdicts take them."""
    counts = {n: t.groups[by.of_group] if by.of_group else GroupCounts(t.sums, t.total) for n, t in tables.items()}
    total = next(iter(counts.values())).total
    return Draw(sums={n: found.sums for n, found in counts.items()}, total=total, rows=lambda n: tables[n].rows())


def values_of(scores: SeedScores, objectives: Sequence[Objective]) -> dict[str, float]:
    """The mean over seeds of every objective, by name."""
    by_seed = {o.name: [o.value(table) for table in scores.values()] for o in objectives}
    return {name: sum(values) / len(values) for name, values in by_seed.items()}
