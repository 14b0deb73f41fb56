"""Objectives and constraints by name."""

import pytest
import torch

from fedtilt.errors import InputError
from fedtilt.evaluation.metrics import GroupCounts
from fedtilt.runs.tuning.objectives import (
    OBJECTIVES,
    Scores,
    constraints_of,
    find_objective,
    front_objectives,
    parse_bounds,
)

TOTAL = torch.tensor([[10, 10], [10, 0]])
GROUPS = {"sex": GroupCounts(torch.tensor([[4, 5], [10, 0]]), torch.tensor([[5, 10], [10, 5]]))}
SCORES = Scores(torch.tensor([[9, 5], [10, 0]]), TOTAL, GROUPS)


def test_objectives_are_the_metrics_of_a_run() -> None:
    values = {name: objective.value(SCORES) for name, objective in OBJECTIVES.items()}
    assert values == {"accuracy": 85.0, "worst": 70.0, "client_fairness": 15.0, "class_fairness": 10.0}
    worst = find_objective("group:sex", ["sex"])
    assert worst.value(SCORES) == pytest.approx(100 * 5 / 15)
    assert worst.higher_is_better
    assert [o.name for o in front_objectives(worst)] == ["group:sex", "accuracy", "client_fairness", "class_fairness"]


@pytest.mark.parametrize(
    ("name", "groups", "task", "message"),
    [
        ("f1", [], "classification", "there is no objective 'f1' for classification; choose one of accuracy, worst"),
        ("group:sex", [], "classification", "group:COLUMN (name the column in data.group)"),
        ("group:age", ["sex"], "classification", "group:sex"),
        ("accuracy", [], "regression", "there is no objective 'accuracy' for regression"),
    ],
)
def test_an_objective_that_does_not_exist_is_refused(name: str, groups: list, task: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        find_objective(name, groups, task)
    assert message in str(error.value)


def test_bounds_of_accuracies_may_be_shares() -> None:
    def find(name: str):
        return find_objective(name, ["sex"])

    found = constraints_of({"accuracy": 0.9, "group:sex": 80}, {"client_fairness": 1}, find)
    assert [str(c) for c in found] == ["accuracy ≥ 90 %", "worst sex ≥ 80 %", "client fairness ≤ 1 points"]
    assert [c.violation(value) for c, value in zip(found, (85.0, 90.0, 3.0), strict=True)] == [5.0, 0.0, 2.0]
    with pytest.raises(InputError, match="at least accuracy = 101 is out of range"):
        constraints_of({"accuracy": 101}, {}, find)


def test_bounds_are_parsed_or_refused() -> None:
    assert parse_bounds(["accuracy=0.9"], "--at-least") == {"accuracy": 0.9}
    for text in ("accuracy", "accuracy=high", "=1", "accuracy=nan"):
        with pytest.raises(InputError, match="is not NAME=NUMBER"):
            parse_bounds([text], "--at-least")
