"""Objectives and constraints by name."""

import functools

import numpy as np
import pytest
import torch

import fedtilt as ft
from fedtilt.errors import InputError
from fedtilt.evaluation.metrics import GroupCounts
from fedtilt.tuning.objectives import (
    CLASSIFICATION,
    OBJECTIVES,
    REGRESSION,
    ScoreTable,
    constraints_of,
    find_objective,
    objectives_of,
    parse_bounds,
)
from fedtilt.tuning.plan import Plan

pandas = pytest.importorskip("pandas")

TOTAL = torch.tensor([[10, 10], [10, 0]])
GROUPS = {"sex": GroupCounts(torch.tensor([[4, 5], [10, 0]]), torch.tensor([[5, 10], [10, 5]]))}
SCORES = ScoreTable(torch.tensor([[9, 5], [10, 0]]), TOTAL, GROUPS)


@functools.cache
def federation(task: str = CLASSIFICATION, group: str | None = "sex") -> ft.Federation:
    """Two hospitals with patients of two sexes."""
    x = np.arange(40.0)
    rows = pandas.DataFrame({"x": x, "hospital": ["a", "b"] * 20, "sex": ["f", "f", "m", "m"] * 10})
    rows["y"] = x**2 if task == REGRESSION else np.where(x % 3 < 1, "yes", "no")
    return ft.Federation.build(ft.data.table(rows, target="y", client="hospital", group=group, task=task))


def test_objectives_are_the_metrics_of_a_run() -> None:
    values = {name: objective.value(SCORES) for name, objective in OBJECTIVES[CLASSIFICATION].items()}
    assert values == {"accuracy": 85.0, "worst": 70.0, "client_fairness": 15.0, "class_fairness": 10.0}
    worst = find_objective("group:sex", federation())
    assert worst.value(SCORES) == pytest.approx(100 * 5 / 15)
    assert (worst.unit, worst.higher_is_better) == ("%", True)
    plan = Plan({}, objectives_of(federation()), worst, (), trials=1, halving=True, budget=None)
    assert [o.name for o in plan.front] == ["group:sex", "accuracy", "client_fairness", "class_fairness"]


def test_errors_are_better_where_they_are_smaller() -> None:
    errors = torch.tensor([[[10.0, 50.0]], [[30.0, 100.0]]], dtype=torch.float64)  # absolute and squared
    scores = ScoreTable(errors, torch.tensor([[10], [10]]), {})
    objectives = OBJECTIVES[REGRESSION]
    assert list(objectives) == ["mae", "rmse", "worst", "client_fairness", "class_fairness"]
    assert objectives["mae"].value(scores) == 2.0
    assert objectives["worst"].value(scores) == 3.0
    assert objectives["worst"].better(1.0, 3.0) == 2.0
    assert next(iter(objectives_of(federation(REGRESSION)))) == "mae"
    assert not find_objective("group:sex", federation(REGRESSION)).higher_is_better


@pytest.mark.parametrize(
    ("name", "task", "group", "message"),
    [
        ("f2", CLASSIFICATION, None, "there is no objective 'f2' for classification; choose one of accuracy, worst"),
        ("group:sex", CLASSIFICATION, None, "group:COLUMN (name the column in data.group)"),
        ("group:age", CLASSIFICATION, "sex", "group:sex"),
        ("accuracy", REGRESSION, None, "there is no objective 'accuracy' for regression; choose one of mae, rmse"),
        ("mae", CLASSIFICATION, None, "there is no objective 'mae' for classification"),
    ],
)
def test_an_objective_that_does_not_exist_is_rejected(name: str, task: str, group: str | None, message: str) -> None:
    with pytest.raises(InputError) as error:
        find_objective(name, federation(task, group))
    assert message in str(error.value)


def test_bounds_of_accuracies_may_be_shares() -> None:
    found = constraints_of({"accuracy": 0.9, "group:sex": 80}, {"client_fairness": 1}, federation())
    assert [str(c) for c in found] == ["accuracy ≥ 90 %", "worst sex ≥ 80 %", "client fairness ≤ 1 points"]
    assert [c.violation(value) for c, value in zip(found, (85.0, 90.0, 3.0), strict=True)] == [5.0, 0.0, 2.0]
    with pytest.raises(InputError, match="at least accuracy = 101 is not possible; give a share such as 0.9"):
        constraints_of({"accuracy": 101}, {}, federation())
    numbers = federation(REGRESSION)
    assert [str(c) for c in constraints_of({}, {"mae": 120.5}, numbers)] == ["MAE ≤ 120.5"]


def test_bounds_are_parsed_or_rejected() -> None:
    assert parse_bounds(["accuracy=0.9"], "--at-least") == {"accuracy": 0.9}
    for text in ("accuracy", "accuracy=high", "=1", "accuracy=nan"):
        with pytest.raises(InputError, match="is not NAME=NUMBER"):
            parse_bounds([text], "--at-least")
