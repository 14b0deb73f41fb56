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
from fedtilt.evaluation.true_spread import (
    ClientEstimates,
    TrueSpread,
    client_estimates,
    spread_of_differences,
    true_spread,
)

Array = np.ndarray
ACCURACIES = {  # of the model in two classes
    "90 and 40 %": (0.9, 0.4), "75 and 65 %": (0.75, 0.65), "99 and 70 %": (0.99, 0.7),
    "one class each": (0.9, 0.4), "all 95 %": (0.95, 0.95), "all 70 %": (0.7, 0.7),
}  # fmt: skip
ERRORS = ("normal", "exponential", "lognormal")
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
