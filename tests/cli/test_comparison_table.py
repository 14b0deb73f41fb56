"""The table that `fedtilt run` prints."""

import io
from dataclasses import replace

import pytest
import torch

import fedtilt as ft
from fedtilt.cli.console import Console
from fedtilt.cli.tables import comparison_table
from fedtilt.evaluation.metrics import GroupCounts
from fedtilt.report.page import as_run


@pytest.mark.parametrize(
    ("correct", "width", "expected"),
    [
        ([[5, 5], [5, 5]], 200, ["none", "none"]),
        ([[5, 5], [5, 5]], 60, ["ditto fails most: nowhere"]),
        ([[5, 5], [5, 4]], 200, ["none", "none"]),  # one wrong of ten is chance
        ([[500, 500], [490, 250]], 200, ["south: 74 % (72 to 76)", "ill: 75 % (72 to 78)"]),
        ([[500, 500], [490, 250]], 60, ["ditto fails most: client south: 74 % (72 to 76), class ill: 75 % (72 to 78)"]),
    ],
)
def test_a_client_of_100_percent_does_not_fail(correct: list, width: int, expected: list[str]) -> None:
    data = ft.Federation.build(ft.data.load("digits"), clients=2, max_train=20, seed=0)
    result = ft.run([ft.ditto(0.1)], data, ft.models.mlp, rounds=1, epochs=1, participation=1.0, workers=0)
    counts = GroupCounts(torch.tensor(correct), torch.full((2, 2), correct[0][0]))
    exact = replace(result["ditto"], group_counts={"class": counts})
    names = {"client_names": ("north", "south"), "group_names": {"class": ("well", "ill")}}
    run = as_run(ft.Result({"ditto": replace(exact, **names)}, data))
    out = io.StringIO()
    Console(file=out, width=width).print(comparison_table(run, width))
    printed = " ".join(out.getvalue().split())
    assert [text for text in expected if text not in printed] == []
    assert "100 %" not in printed
