"""Fairness beyond chance in simulated federations: how often its intervals cover, and how often they find what is not.

Models are right with a known probability in each class (or have errors of a known mean), clients differ by their class
shares, and rows are drawn at random or with the classes in proportion.
"""

import itertools
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import fedtilt as ft
from fedtilt.evaluation.metrics import GroupCounts, counts_of_chance
from fedtilt.evaluation.true_spread import (
    ClientEstimates,
    TrueSpread,
    client_estimates,
    true_spread,
)
from tests.promises.promise import Row, covered_row, false_row, measured

Array = np.ndarray
ACCURACIES = {  # of the model in two classes
    "90 and 40 %": (0.9, 0.4), "75 and 65 %": (0.75, 0.65), "99 and 70 %": (0.99, 0.7),
    "one class each": (0.9, 0.4), "all 95 %": (0.95, 0.95), "all 70 %": (0.7, 0.7),
}  # fmt: skip
ERRORS = {  # of a row: absolute errors of a client with mean m
    "half-normal": lambda rng, n: np.abs(rng.normal(size=n)) / 0.7979,
    "exponential": lambda rng, n: rng.exponential(size=n),
    "lognormal": lambda rng, n: np.exp(rng.normal(size=n) - 0.5),
}
CLIENTS, ROWS = (4, 13, 60, 160), (3, 8, 32)
COVERED, FALSE = 0.93, 0.055


class Cell(NamedTuple):
    """One kind of federations."""

    kind: str
    clients: int
    rows: int
    fixed_shares: bool

    @property
    def equal(self) -> bool:
        """Whether the true scores of all clients are equal."""
        return self.kind.startswith("all")


class Found(NamedTuple):
    """What is said of one draw."""

    covered: bool  # the true spread over these clients
    above: bool  # the interval is above 0, which is false where clients are equal
    clients: float  # the share of clients whose true scores are covered
    named: bool  # a client is said to be the worst


def found_in(spread: TrueSpread, estimates: ClientEstimates, true: Array, higher_is_better: bool = True) -> Found:
    """What is said, against the truth."""
    covered = spread.low - 1e-6 <= true.std() <= spread.high + 1e-6
    inside = (estimates.low.numpy() - 1e-6 <= true) & (true <= estimates.high.numpy() + 1e-6)
    return Found(covered, spread.low > 0, float(inside.mean()), estimates.worst(higher_is_better) is not None)


def rows_of(what: str, cell: str, found: Sequence[Found], equal: bool) -> list[Row]:
    """The rows of a cell; none where too few draws have an interval."""
    if len(found) < 20:
        return []
    covered, above, clients, named = zip(*found, strict=True)
    rows = [
        covered_row(f"beyond chance, its interval{what}", cell, COVERED, covered),
        covered_row(f"a single client's interval{what}", cell, 0.95, clients),
    ]
    if equal:
        rows.append(false_row(f"beyond chance, clients equal{what}", cell, FALSE, above))
        rows.append(false_row(f"a client fails, clients equal{what}", cell, FALSE, named))
    return rows


def cells(clients: tuple[int, ...] = CLIENTS, rows: tuple[int, ...] = ROWS) -> list[Cell]:
    """The cells of the promise."""
    return [Cell(kind, n, r, fixed) for kind in ACCURACIES for n in clients for r in rows for fixed in (False, True)]


def draw(cell: Cell, rng: np.random.Generator) -> tuple[Tensor, Tensor, Array]:
    """Correct predictions and rows, (clients, 2), and the true accuracies in percent."""
    accuracy, n = np.array(ACCURACIES[cell.kind]), cell.rows
    share = np.arange(cell.clients) % 2.0 if cell.kind == "one class each" else rng.uniform(size=cell.clients)
    if cell.fixed_shares:  # rounded without bias
        first = np.floor(share * n + rng.uniform(size=cell.clients)).clip(0, n).astype(int)
        share = first / n
    else:
        first = rng.binomial(n, share)
    total = np.stack([first, n - first], 1)
    true = 100 * np.stack([share, 1 - share], 1) @ accuracy
    return torch.from_numpy(rng.binomial(total, accuracy)), torch.from_numpy(total), true


def simulate(cell: Cell, draws: int, first: int = 0) -> list[Row]:
    """Count in draws that have an interval."""
    rng, found = np.random.default_rng(first), []
    for _ in range(draws):
        sums, total, true = draw(cell, rng)
        spread = true_spread(sums, total, fixed_shares=cell.fixed_shares)
        if not spread.reason:
            found.append(found_in(spread, client_estimates(sums, total, fixed_shares=cell.fixed_shares), true))
    split = "proportional" if cell.fixed_shares else "random"
    return rows_of("", f"{cell.clients} clients × {cell.rows} {split} rows, {cell.kind}", found, cell.equal)


def draw_errors(
    kind: str, clients: int, rows: int, std: float, rng: np.random.Generator
) -> tuple[Tensor, Tensor, Array]:
    """Sums of errors and their squares, (clients, 1, 2), rows, and true means; clients differ in variances too."""
    total, mean = np.where(np.arange(clients) % 2, rows, 2 * rows), 10 + rng.normal(0, std, clients)
    scale, sums = np.exp(rng.normal(0, 0.5, clients)), []
    for n, true, factor in zip(total, mean, scale, strict=True):
        errors = true + 3 * factor * (ERRORS[kind](rng, n) - 1)
        sums.append([[errors.sum(), (errors**2).sum()]])
    return torch.tensor(sums).double(), torch.from_numpy(total)[:, None], mean


def errors_of(kind: str, clients: int, rows: int, std: float, draws: int, first: int = 0) -> list[Row]:
    """Count in draws of errors."""
    rng, found = np.random.default_rng(first), []
    for _ in range(draws):
        sums, total, true = draw_errors(kind, clients, rows, std, rng)
        found.append(found_in(true_spread(sums, total), client_estimates(sums, total), true, higher_is_better=False))
    cell = f"{clients} clients × {rows} rows, {kind}, {'unlike' if std else 'equal'}"
    return rows_of(", errors", cell, found, equal=not std)


def measure(draws: int, workers: int = 1) -> list[Row]:
    """Every cell."""
    errors = itertools.product(ERRORS, CLIENTS, ROWS[1:], (2.0, 0.0))
    every = [*(partial(simulate, cell) for cell in cells()), *(partial(errors_of, *cell) for cell in errors)]
    return measured(every, 2 * draws, workers)


SMALL = [
    Cell("90 and 40 %", 13, 8, False), Cell("90 and 40 %", 13, 8, True), Cell("one class each", 13, 3, False),
    Cell("one class each", 13, 3, True), Cell("all 95 %", 13, 8, False), Cell("all 95 %", 13, 8, True),
]  # fmt: skip


@pytest.mark.parametrize("cell", SMALL, ids=str)
def test_intervals_cover_and_find_no_spread_where_clients_are_equal(cell: Cell) -> None:
    rows = simulate(cell, 60)
    assert len(rows) == (4 if cell.equal else 2)
    assert all(row.kept for row in rows), rows


def test_intervals_of_errors_cover() -> None:
    rows = [*errors_of("exponential", 13, 8, 2.0, 60), *errors_of("exponential", 13, 8, 0.0, 60)]
    assert len(rows) == 6
    assert all(row.kept for row in rows), rows


@pytest.mark.slow
def test_every_cell() -> None:
    assert not [row for row in measure(150) if row.is_broken]


def through_a_federation(split: str, accuracy: tuple[float, float], draws: int) -> list[Row]:
    """Count in federations that the library splits; what a row's model predicts is drawn with the row."""
    rng, found = np.random.default_rng(0), []
    for seed in range(draws):
        share = rng.uniform(0.1, 0.9, 13)
        y = [(rng.uniform(size=32) < of_first).astype(int) for of_first in share]
        x = [labels ^ (rng.uniform(size=32) > np.array(accuracy)[labels]) for labels in y]  # the prediction
        data = [(predicted[:, None].astype(np.float32), labels) for predicted, labels in zip(x, y, strict=True)]
        federation = ft.Federation.from_clients(data, test_share=0.25, split=split, seed=seed)
        inputs, labels, clients = federation.evaluation()
        cell = 2 * clients + labels
        total = cell.bincount(minlength=26).reshape(13, 2)
        right = (inputs[:, 0].long() == labels).long()
        sums = torch.zeros(26, dtype=torch.long).index_add_(0, cell, right).reshape(13, 2)
        fixed = federation.fixed_shares()
        held_out = (total / total.sum(1, keepdim=True)).numpy() if fixed else np.stack([1 - share, share], 1)
        true = 100 * held_out @ np.array(accuracy)
        counts = {"class": GroupCounts(sums, total)}
        result = counts_of_chance(counts, fixed)
        spread = true_spread(*result, fixed_shares=fixed)
        estimates = client_estimates(*result, fixed_shares=fixed)
        found.append(found_in(spread, estimates, true))
    return rows_of("", split, found, accuracy[0] == accuracy[1])


@pytest.mark.parametrize("split", ["random", "proportional"])
@pytest.mark.parametrize("accuracy", [(0.9, 0.4), (0.8, 0.8)])
def test_promises_hold_for_rows_that_the_library_has_drawn(split: str, accuracy: tuple[float, float]) -> None:
    rows = through_a_federation(split, accuracy, 60)
    assert all(row.kept for row in rows), rows
