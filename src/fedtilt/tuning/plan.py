"""The plan of a search."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedtilt.tuning.axes import Axis, grid_size
from fedtilt.tuning.objectives import Constraint, Objective, front_objectives, main_objective


class Plan(NamedTuple):
    """What a search is about.

    Args:
        axes: what is varied
        task: what the models learn
        by: the objective
        constraints: bounds that a recommended setting keeps
        trials: the most settings; a larger grid is sampled
        halving: whether weak settings are stopped early
        budget: seconds after which the search stops with what it has; None: no limit
    """

    axes: Mapping[str, Axis]
    task: str
    by: Objective
    constraints: Sequence[Constraint]
    trials: int
    halving: bool
    budget: float | None

    @property
    def main(self) -> Objective:
        """The objective that a collapsed model is known by."""
        return main_objective(self.task)

    @property
    def front(self) -> list[Objective]:
        """The objectives of the Pareto front."""
        return front_objectives(self.by, self.task)

    @property
    def sampled(self) -> bool:
        """Whether settings are sampled by Optuna; otherwise they are a grid."""
        return grid_size(self.axes) > self.trials
