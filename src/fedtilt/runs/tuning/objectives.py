"""What a search compares: objectives by name, their direction, the tasks they exist for, and constraints on them."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from fedtilt.checks import number
from fedtilt.errors import InputError
from fedtilt.evaluation.groups import measure_groups
from fedtilt.evaluation.metrics import GroupCounts, measure

GROUP = "group:"  # before the name of a column of groups
CLASSIFICATION = "classification"


class Scores(NamedTuple):
    """Correct predictions of one setting's evaluated models and samples, (clients, classes), on one seed."""

    correct: Tensor
    total: Tensor
    groups: Mapping[str, GroupCounts]  # the same by column of groups

    def of_clients(self, rows: Tensor) -> "Scores":
        """The scores of some clients, in this order; a client may occur several times."""
        groups = {name: GroupCounts(found.correct[rows], found.total[rows]) for name, found in self.groups.items()}
        return Scores(self.correct[rows], self.total[rows], groups)


@dataclass(frozen=True)
class Objective:
    """A number that settings are compared by."""

    name: str
    title: str
    unit: str  # "%" or "points"
    higher_is_better: bool
    value: Callable[[Scores], float]
    tasks: tuple[str, ...] = (CLASSIFICATION,)

    def better(self, value: float, other: float) -> float:
        """How much better a value is than another one; negative: worse."""
        return value - other if self.higher_is_better else other - value

    def format(self, value: float) -> str:
        """A value with its unit."""
        return f"{value:.2f} {self.unit}"


OBJECTIVES = {
    objective.name: objective
    for objective in (
        Objective("accuracy", "accuracy", "%", True, lambda s: measure(s.correct, s.total).accuracy),
        Objective("worst", "worst 10 %", "%", True, lambda s: measure(s.correct, s.total).worst),
        Objective(
            "client_fairness", "client fairness", "points", False,
            lambda s: measure(s.correct, s.total).client_fairness,
        ),
        Objective(
            "class_fairness", "client data fairness", "points", False,
            lambda s: measure(s.correct, s.total).client_data_fairness[0],
        ),
    )
}  # fmt: skip


def find_objective(name: str, groups: Iterable[str], task: str = CLASSIFICATION) -> Objective:
    """The objective of this name, if it exists for the task.

    `group:NAME` is the accuracy of the group of this column that has the lowest, over all clients.

    Args:
        name: a name of `OBJECTIVES`, or group:NAME
        groups: the columns of groups that the data names
        task: what the models learn
    """
    known = [objective.name for objective in OBJECTIVES.values() if task in objective.tasks]
    known += [f"{GROUP}{column}" for column in groups]
    if name not in known:
        hint = ", group:COLUMN (name the column in data.group)" if not list(groups) else ""
        raise InputError(f"there is no objective {name!r} for {task}; choose one of {', '.join(known)}{hint}")
    if name in OBJECTIVES:
        return OBJECTIVES[name]
    column = name.removeprefix(GROUP)
    return Objective(name, f"worst {column}", "%", True, lambda scores: _worst_group(scores.groups[column]))


def _worst_group(counts: GroupCounts) -> float:
    names = tuple(map(str, range(counts.total.shape[1])))
    return measure_groups(counts, names).worst[1]


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
        return f"{self.objective.title} {'≥' if self.at_least else '≤'} {self.bound:g} {self.objective.unit}"


def constraints_of(
    at_least: Mapping[str, float], at_most: Mapping[str, float], find: Callable[[str], Objective]
) -> tuple[Constraint, ...]:
    """Checked constraints; a bound of an accuracy up to 1 is a share: 0.9 is 90 %."""
    found = []
    for bounds, is_least in ((at_least, True), (at_most, False)):
        for name, value in bounds.items():
            objective, bound = find(name), number(value, f"the bound of {name}")
            if objective.unit == "%" and 0 <= bound <= 1:
                bound *= 100
            if not 0 <= bound <= 100:
                raise InputError(
                    f"{'at least' if is_least else 'at most'} {name} = {value} is out of range; give a share such as "
                    "0.9, or points up to 100"
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


def front_objectives(by: Objective) -> list[Objective]:
    """The objectives of the Pareto front: the one that is asked for, accuracy, and both fairnesses."""
    others = [objective for name, objective in OBJECTIVES.items() if name not in (by.name, "worst")]
    return [by, *others]


def values_of(scores: Mapping[int, Scores], objectives: Iterable[Objective]) -> dict[str, float]:
    """The mean over seeds of every objective, by name."""
    found: dict[str, Any] = {}
    for objective in objectives:
        by_seed = [objective.value(table) for table in scores.values()]
        found[objective.name] = sum(by_seed) / len(by_seed)
    return found
