"""The plan of a search: what is varied and compared, and the stages of successive halving.

All settings train for a few rounds, the best quarter for four times as many, and so on (Jamieson and Talwalkar,
Non-stochastic Best Arm Identification and Hyperparameter Optimization, AISTATS 2016, arXiv 1502.07943).
Optuna's pruners cannot do it: they judge one trial at a time, in the order of arrival, and only with one objective.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedtilt.tuning.axes import Axis, grid_size
from fedtilt.tuning.objectives import Constraint, Objective

REDUCTION = 4  # a quarter of the settings continues
FINALISTS = 2  # settings that are trained to the end, beside the current one


class Plan(NamedTuple):
    """What a search is about."""

    axes: Mapping[str, Axis]  # what is varied
    objectives: Mapping[str, Objective]  # of the task and the data, by name; the main one first
    by: Objective
    constraints: Sequence[Constraint]  # bounds that a recommended setting keeps
    trials: int  # the most settings; a larger grid is sampled
    halving: bool  # whether weak settings are stopped early
    budget: float | None  # seconds after which the search stops with what it has; None: no limit

    @property
    def main(self) -> Objective:
        """The objective that a collapsed model is known by: with a rare class, accuracy is not."""
        return self.by if self.by.needs_outputs else next(iter(self.objectives.values()))

    @property
    def needs_outputs(self) -> bool:
        """Whether an objective needs probabilities."""
        return any(objective.needs_outputs for objective in (self.by, *(c.objective for c in self.constraints)))

    @property
    def front(self) -> list[Objective]:
        """The objectives of the Pareto front: the one that is asked for, the main one, and both fairnesses."""
        names = next(iter(self.objectives)), "client_fairness", "class_fairness"
        return [self.by, *(o for o in map(self.objectives.get, names) if o is not None and o.name != self.by.name)]

    @property
    def sampled(self) -> bool:
        """Whether settings are sampled by Optuna; otherwise they are a grid."""
        return grid_size(self.axes) > self.trials


class Rung(NamedTuple):
    """A planned stage of the search."""

    settings: int  # how many train, without the current one
    rounds: int  # until which round


def rungs(settings: int, rounds: int, *, halving: bool = True) -> list[Rung]:
    """The stages of a search over this number of settings, besides the current one, which is in all of them.

    >>> rungs(64, 50)
    [Rung(settings=64, rounds=1), Rung(settings=16, rounds=3), Rung(settings=4, rounds=12), Rung(settings=2, rounds=50)]
    >>> rungs(2, 50), rungs(16, 3)
    ([Rung(settings=2, rounds=50)], [Rung(settings=16, rounds=1), Rung(settings=2, rounds=3)])
    """
    sizes = [settings]
    while halving and sizes[-1] > FINALISTS:
        sizes.append(max(FINALISTS, math.ceil(sizes[-1] / REDUCTION)))
    found: list[Rung] = []
    for i, size in enumerate(sizes):
        until = max(1, round(rounds / REDUCTION ** (len(sizes) - 1 - i)))
        if not found or until > found[-1].rounds:  # a run of few rounds has fewer stages
            found.append(Rung(size, until))
    return found


def cost(stages: Sequence[tuple[int, int]]) -> int:
    """Rounds of single settings in all stages, each with a number of settings and its last round.

    >>> cost([(64, 1), (16, 3)])
    96
    """
    starts = [0, *(rounds for _, rounds in stages)]
    return sum(settings * (rounds - start) for (settings, rounds), start in zip(stages, starts, strict=False))
