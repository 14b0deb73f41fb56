"""A client's gain is covered by its interval, and equal models are seldom said to differ: exactly, and as printed."""

import itertools
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
import torch
from scipy.special import gammaln, xlogy

import fedtilt as ft
from fedtilt.evaluation.gains import Gains, client_gains, paired_interval
from fedtilt.evaluation.predictions import predictions_of
from tests.promises.promise import Row, covered_row, false_row, measured

COVERED, FALSE = "gain of a client", "a client gains or loses, models equal"
SHARES = (0.0, 0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9)  # of samples that only one model predicts correctly


def exactly(samples: int) -> tuple[Row, Row]:
    """The worst probabilities over all pairs of shares, summed over all outcomes."""
    wins, losses = (part.ravel() for part in np.indices((samples + 1, samples + 1)))
    possible = wins + losses <= samples
    wins, losses = wins[possible], losses[possible]
    pairs = zip(wins.tolist(), losses.tolist(), strict=True)
    low, high = np.array([paired_interval(w, n, samples) for w, n in pairs]).T
    ways = gammaln(samples + 1) - gammaln(wins + 1) - gammaln(losses + 1) - gammaln(samples - wins - losses + 1)
    covered, false = 1.0, 0.0
    for ours, theirs in itertools.product(SHARES, SHARES):
        neither = 1 - ours - theirs
        if neither >= 0:
            chance = np.exp(ways + xlogy(wins, ours) + xlogy(losses, theirs) + xlogy(samples - wins - losses, neither))
            truth = 100 * (ours - theirs)
            covered = min(covered, chance[(low <= truth + 1e-9) & (truth - 1e-9 <= high)].sum())
            if ours == theirs:
                false = max(false, chance[(low > 0) | (high < 0)].sum())
    cell = f"{samples} samples, summed exactly over all outcomes"
    return (
        Row(COVERED, cell, "≥ 95 %", 100 * covered, 0.0, covered >= 0.95),
        Row(FALSE, cell, "≤ 5 %", 100 * false, 0.0, false <= 0.05),
    )


def printed(clients: int, size: int, gain: float, rng: np.random.Generator, *, numbers: bool) -> Gains:
    """The gains of clients with `size` random test rows; the first inputs are what the two models predict."""
    x = torch.tensor(rng.normal(size=(clients, 2 * size, 2))).float()
    if numbers:
        y = torch.tensor(rng.normal(size=(clients, 2 * size))).float()
        x[..., 0] *= 1 - gain
    else:
        y = torch.tensor(rng.integers(0, 2, (clients, 2 * size)))
        accuracy = torch.tensor([0.7 + gain, 0.7])
        x = torch.where(torch.tensor(rng.random((clients, 2 * size, 2))) < accuracy, y[..., None], 1 - y[..., None])
        x = x.float()
    task = "regression" if numbers else "classification"
    parts = list(zip(x, y, strict=True))
    federation = ft.Federation.from_clients(parts, task=task, test_share=0.5, seed=int(rng.integers(1000)))
    inputs = federation.evaluation("test")[0]
    assert isinstance(inputs, torch.Tensor)
    outputs = {
        name: inputs[:, n].double() if numbers else torch.eye(2)[inputs[:, n].long()]
        for n, name in enumerate(("ours", "theirs"))
    }
    found = predictions_of(federation, outputs)
    return client_gains(found["ours"], found["theirs"], "theirs")


def simulate(clients: int, size: int, numbers: bool, draws: int, first: int = 0) -> list[Row]:
    """Coverage of a true gain, and false outcomes without one, over all clients and draws."""
    draws = max(draws // 3, 2 * draws // clients)
    rng = np.random.default_rng([first, clients, size])
    what = "absolute errors" if numbers else "accuracy"
    cell = f"{what}, {clients} clients × {size} samples"
    gain = 0.2
    truth = gain * np.sqrt(2 / np.pi) if numbers else 100 * gain
    if numbers:  # of normal predictions for normal targets
        truth = (np.sqrt(2) - np.sqrt(1 + (1 - gain) ** 2)) * np.sqrt(2 / np.pi)
    found = [c for _ in range(draws) for c in printed(clients, size, gain, rng, numbers=numbers).clients]
    held = [client.low <= truth <= client.high for client in found]
    equal = [c for _ in range(draws) for c in printed(clients, size, 0.0, rng, numbers=numbers).clients]
    false = [client.outcome != "ties" for client in equal]
    return [covered_row(COVERED, cell, 0.95, held), false_row(FALSE, cell, 0.05, false)]


def summed(samples: int, draws: int, first: int = 0) -> Sequence[Row]:
    """`exactly`, which needs no draws."""
    return exactly(samples)


def measure(draws: int, workers: int = 1) -> list[Row]:
    """Every cell."""
    sizes = itertools.product([(1, 40), (5, 8), (8, 20), (60, 5), (60, 30)], (False, True))
    cells = [partial(simulate, *size, numbers) for size, numbers in sizes]
    exact = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 26, 32, 48, 64, 100)
    return measured([*cells, *(partial(summed, samples) for samples in exact)], draws, workers)


@pytest.mark.parametrize("samples", [2, 5, 8, 12, 32])
def test_every_outcome_of_a_client(samples: int) -> None:
    assert all(row.kept for row in exactly(samples)), exactly(samples)


@pytest.mark.parametrize("numbers", [False, True])
def test_clients_of_a_federation(numbers: bool) -> None:
    rows = simulate(60, 10, numbers, 15)
    assert all(row.kept for row in rows), rows


@pytest.mark.slow
def test_every_cell() -> None:
    assert not [row for row in measure(200) if row.is_broken]
