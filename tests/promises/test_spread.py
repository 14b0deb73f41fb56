"""Fairness beyond chance in simulated federations: how often its intervals cover, and how often they find what is not.

Models are right with a known probability in each class (or have errors of a known mean), clients differ by their class
shares, and rows are drawn at random or with the classes in proportion.
"""

import math
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


class Shares(NamedTuple):
    """What was counted in the draws of a cell that have an interval."""

    covered: float  # of the true spread over these clients
    above: float  # of intervals above 0, which is false where clients are equal
    clients: float  # of the true scores of single clients that are covered
    named: float  # of draws that name a client as the worst
    draws: int


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


def shares_of(cell: Cell, draws: int, seed: int = 0) -> Shares:
    """Count in a cell."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(draws):
        sums, total, true = draw(cell, rng)
        spread = true_spread(sums, total, fixed_shares=cell.fixed_shares)
        if not spread.reason:
            estimates = client_estimates(sums, total, fixed_shares=cell.fixed_shares)
            found.append((*held(spread, true), inside(estimates, true), estimates.worst(True) is not None))
    return Shares(*np.mean(found, 0).tolist(), len(found))


def held(spread: TrueSpread, true: Array) -> tuple[bool, bool]:
    """Whether an interval has the true spread, and whether it is above 0."""
    return spread.low - 1e-6 <= true.std() <= spread.high + 1e-6, spread.low > 0


def inside(estimates: ClientEstimates, true: Array) -> float:
    """The share of clients whose interval has their true score."""
    return float(((estimates.low.numpy() - 1e-6 <= true) & (true <= estimates.high.numpy() + 1e-6)).mean())


def measure(draws: int) -> list[tuple[Cell, Shares]]:
    """Every cell with what was counted in it."""
    return [(cell, shares_of(cell, draws)) for cell in cells()]


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


def errors_of(kind: str, clients: int, rows: int, std: float, draws: int) -> Shares:
    """Count in draws of errors."""
    rng, found = np.random.default_rng(0), []
    for _ in range(draws):
        sums, total, true = draw_errors(kind, clients, rows, std, rng)
        spread, estimates = true_spread(sums, total), client_estimates(sums, total)
        found.append((*held(spread, true), inside(estimates, true), estimates.worst(False) is not None))
    return Shares(*np.mean(found, 0).tolist(), draws)


def check(shares: Shares, equal: bool) -> None:
    """The promise, with two standard errors of the draws."""
    covered, false = (2 * math.sqrt(share * (1 - share) / shares.draws) for share in (COVERED, FALSE))
    assert shares.covered >= COVERED - covered
    assert shares.clients >= 0.95 - 2 * math.sqrt(0.05 * 0.95 / shares.draws)
    if equal:
        assert shares.above <= FALSE + false
        assert shares.named <= FALSE + false


SMALL = [
    Cell("90 and 40 %", 13, 8, False), Cell("90 and 40 %", 13, 8, True), Cell("one class each", 13, 3, False),
    Cell("one class each", 13, 3, True), Cell("all 95 %", 13, 8, False), Cell("all 95 %", 13, 8, True),
]  # fmt: skip


@pytest.mark.parametrize("cell", SMALL, ids=str)
def test_intervals_cover_and_find_no_spread_where_clients_are_equal(cell: Cell) -> None:
    check(shares_of(cell, 60), cell.equal)


@pytest.mark.slow
@pytest.mark.parametrize("cell", cells(), ids=str)
def test_intervals_cover_and_find_no_spread_in_every_cell(cell: Cell) -> None:
    check(shares_of(cell, 300), cell.equal)


def test_intervals_of_errors_cover() -> None:
    check(errors_of("exponential", 13, 8, 2.0, 60), equal=False)
    check(errors_of("exponential", 13, 8, 0.0, 60), equal=True)


@pytest.mark.slow
@pytest.mark.parametrize("rows", ROWS[1:])
@pytest.mark.parametrize("clients", CLIENTS)
@pytest.mark.parametrize("kind", ERRORS)
def test_intervals_of_errors_cover_in_every_cell(kind: str, clients: int, rows: int) -> None:
    check(errors_of(kind, clients, rows, 2.0, 300), equal=False)
    check(errors_of(kind, clients, rows, 0.0, 300), equal=True)


def through_a_federation(split: str, accuracy: tuple[float, float], draws: int) -> Shares:
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
        found.append((*held(spread, true), inside(estimates, true), estimates.worst(True) is not None))
    return Shares(*np.mean(found, 0).tolist(), draws)


@pytest.mark.parametrize("split", ["random", "proportional"])
@pytest.mark.parametrize("accuracy", [(0.9, 0.4), (0.8, 0.8)])
def test_promises_hold_for_rows_that_the_library_has_drawn(split: str, accuracy: tuple[float, float]) -> None:
    check(through_a_federation(split, accuracy, 60), equal=accuracy[0] == accuracy[1])
