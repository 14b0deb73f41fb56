"""What the report of a run says, from rows to sentences: the library splits them, and accuracies are known.

Rows of clients are drawn once, and every method is right in each of them or not. Each seed splits the same rows again,
through `Federation.from_clients`; a run of these predictions is judged by the sentences that a user reads.
"""

import warnings
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

import fedtilt as ft
from fedtilt.errors import InputWarning
from fedtilt.evaluation.metrics import Counts
from fedtilt.evaluation.predictions import Predictions, predictions_of
from fedtilt.evaluation.round_metrics import round_metrics
from fedtilt.report.run_reader import Run, SeedRun
from fedtilt.report.summary import headline
from fedtilt.report.verdict import verdict
from tests.promises.promise import Row, covered_row, false_row, measured

ALLOWED, FOUND = 0.055, 0.9


class Cell(NamedTuple):
    """One kind of federation and of methods, all equally good but the first."""

    methods: int
    seeds: int
    clients: int
    rows: int = 128  # of a client, a quarter of them test rows
    better: float = 0.0  # the accuracy of the first method above that of the others

    def __str__(self) -> str:
        seeds = f"{self.seeds} seed{'s' * (self.seeds > 1)}"
        return f"{self.methods} methods, {seeds}, {self.clients} clients × {self.rows // 4} test rows"


CELLS = [Cell(methods, seeds, 13) for methods in (2, 5) for seeds in (1, 2)] + [
    Cell(2, 5, 60),
    Cell(10, 1, 13),
    Cell(2, 1, 4),
]
BETTER = [Cell(2, 1, 60, better=0.05), Cell(5, 2, 60, better=0.05)]


def sentences(cell: Cell, rng: np.random.Generator) -> tuple[str, str]:
    """The headline of a run, and what is said of every client alone, on new rows."""
    names = [f"m{n}" for n in range(cell.methods)]
    accuracy = dict.fromkeys((*names, "local"), 0.8) | {names[0]: 0.8 + cell.better}
    count = cell.clients * cell.rows
    right = {name: torch.from_numpy(rng.random(count) < share) for name, share in accuracy.items()}
    labels, row = rng.integers(0, 2, count), np.arange(count, dtype=np.float32)[:, None]
    of_clients = [slice(n * cell.rows, (n + 1) * cell.rows) for n in range(cell.clients)]
    seed_runs, predictions = [], []
    for seed in range(cell.seeds):
        federation = ft.Federation.from_clients([(row[each], labels[each]) for each in of_clients], seed=seed)
        x, y, _ = federation.evaluation("test")
        found = predictions_of(federation, {name: _outputs(y, hit[x[:, 0].long()]) for name, hit in right.items()})
        seed_runs.append(_seed_run(seed, federation, found, names))
        predictions.append(found)
    run = Run(
        folder=Path(), name="run", started="", environment={}, spec=None, seeds=tuple(range(cell.seeds)),
        fingerprint={"methods": dict.fromkeys(names), "train": {"rounds": 1}, "clients": cell.clients},
        seed_runs=tuple(seed_runs),
    )  # fmt: skip
    vars(run)["predictions"] = tuple(predictions)
    return headline(run), " ".join(verdict(run))


def _outputs(y: torch.Tensor, hit: torch.Tensor) -> torch.Tensor:
    """Probabilities of two classes, of which the more probable one is right where `hit` says so."""
    return torch.nn.functional.one_hot(torch.where(hit, y, 1 - y), 2).float() * 0.8 + 0.1


def _seed_run(seed: int, federation: ft.Federation, found: dict[str, Predictions], names: list[str]) -> SeedRun:
    nobody, counts, total = torch.zeros(federation.clients, dtype=torch.bool), {}, torch.zeros(0)
    for name, predictions in found.items():
        sums, total = predictions.counts()
        counts[name] = Counts(sums, None, nobody)
    metrics = {name: round_metrics(each, total, nobody) for name, each in counts.items()}
    of_methods = {name: counts[name] for name in names}
    return SeedRun(
        seed=seed, history={name: [(1, metrics[name])] for name in names}, counts=of_methods, total=total,
        has_outliers=nobody, client_names=federation.client_names, class_names=federation.class_names,
        baselines={"local": metrics["local"]}, drawn=federation.drawn,
    )  # fmt: skip


def told_apart(text: str, cell: Cell) -> bool:
    """Whether a headline leaves out some method in accuracy."""
    clause = next(part for part in text.rstrip(".").split("; ") if "accuracy" in part)
    everybody = "both" if cell.methods == 2 else f"ll {cell.methods} methods"
    listed = all(f"m{n}" in clause.split(" are not told apart")[0] for n in range(cell.methods))
    return "has the highest accuracy" in clause or not (everybody in clause or listed)


def judge(cell: Cell, draws: int, first: int = 0) -> list[Row]:
    """How often the sentences of reports claim what is not true or, where the first method is better, find it."""
    rng, false, helps, alone, found = (
        np.random.default_rng([first, cell.methods, cell.seeds, cell.clients]),
        [],
        [],
        [],
        [],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)
        for _ in range(draws):
            head, against = sentences(cell, rng)
            false.append(told_apart(head, cell))
            found.append("m0 has the highest accuracy" in head)
            helps.append("Federation helps" in against or "does not help" in against)
            alone.append("Better off alone beyond chance" in against)
    if cell.better:
        return [covered_row("a report finds the method that is 5 points better", str(cell), FOUND, found)]
    return [
        false_row("a report tells equal methods apart", str(cell), ALLOWED, false),
        false_row("a report says that federation helps, or not, of equal models", str(cell), ALLOWED, helps),
        false_row("a report names a client that is better off alone, of equal models", str(cell), ALLOWED, alone),
    ]


def measure(draws: int, workers: int = 1) -> list[Row]:
    """All cells."""
    return measured([partial(judge, cell) for cell in (*CELLS, *BETTER)], draws, workers)


@pytest.mark.parametrize("cell", [Cell(2, 2, 8, 48), Cell(2, 1, 60, better=0.05)], ids=str)
def test_reports(cell: Cell) -> None:
    assert all(row.kept for row in judge(cell, 15))


@pytest.mark.slow
@pytest.mark.parametrize("cell", [*CELLS, *BETTER], ids=str)
def test_reports_in_every_cell(cell: Cell) -> None:
    assert all(row.kept for row in judge(cell, 200))
