"""A certificate holds with its confidence: rows drawn by the library, models of known accuracy in each class."""

import itertools
from functools import partial

import numpy as np
import pytest
import torch

import fedtilt as ft
from fedtilt.evaluation.certificate import Certificate
from fedtilt.evaluation.predictions import predictions_of
from tests.promises.promise import Row, covered_row, measured

CLASSES = 2
CONFIDENCE = 0.95


def simulate(clients: int, size: int, unlike: float, split: str, draws: int, first: int = 0) -> list[Row]:
    """Whether each statement of the certificate held, for clients that are drawn anew, with `size` test rows each."""
    held: dict[str, list[bool]] = {"no client, and no class of one": [], "each client": [], "each class": []}
    if clients >= 20:
        held["a client not yet seen"] = []
    for seed in range(first, first + draws):
        rng = np.random.default_rng([seed, clients, size, round(10 * unlike)])
        shares = rng.dirichlet(np.full(CLASSES, 2.0), clients + 1)
        accuracy = 1 / (1 + np.exp(-(1.5 + unlike * rng.normal(size=(clients + 1, CLASSES)))))
        of_client = 100 * (shares * accuracy).sum(1)
        y = (rng.random((clients, 2 * size)) < shares[:-1, 1:]).astype(int)
        is_right = rng.random(y.shape) < np.take_along_axis(accuracy[:-1], y, 1)
        parts = [
            (torch.tensor(right[:, None]).float(), torch.tensor(of)) for right, of in zip(is_right, y, strict=True)
        ]
        names = list("ab")
        federation = ft.Federation.from_clients(parts, class_names=names, test_share=0.5, split=split, seed=seed)
        inputs, labels, _ = federation.evaluation("test")
        assert isinstance(inputs, torch.Tensor)
        predicted = torch.where(inputs[:, 0] > 0, labels, 1 - labels)
        found = predictions_of(federation, {"model": torch.eye(CLASSES)[predicted]})["model"]
        correct, total = found.counts()
        certificate = Certificate(correct, total, CONFIDENCE)
        true = torch.tensor(100 * accuracy[:-1])
        lowest = true[total > 0].min()
        worst = torch.tensor(of_client[:-1])
        both = certificate.clients.bound <= worst.min() and certificate.groups.bound <= lowest
        held["no client, and no class of one"].append(bool(both))
        held["each client"].append(bool((certificate.client_bounds <= worst).all()))
        held["each class"].append(bool(((certificate.group_bounds <= true) | (total == 0)).all()))
        if clients >= 20:
            held["a client not yet seen"].append(bool(certificate.unseen_client <= of_client[-1]))
    kind = "unlike" if unlike else "alike"
    cell = f"{split} rows, {clients} clients × {size} samples, {kind}"
    return [covered_row(f"certificate: {name}", cell, CONFIDENCE, found) for name, found in held.items()]


def measure(draws: int, workers: int = 1) -> list[Row]:
    """Every cell."""
    grid = itertools.product((60, 20, 5, 1), (50, 10, 4), (0.0, 1.0), ("random", "proportional"))
    return measured([partial(simulate, *cell) for cell in grid], draws, workers)


@pytest.mark.parametrize("split", ["random", "proportional"])
def test_a_certificate_of_clients_that_differ(split: str) -> None:
    rows = simulate(20, 10, 1.0, split, 60)
    assert len(rows) == 4
    assert all(row.kept for row in rows), rows


@pytest.mark.slow
def test_every_cell() -> None:
    assert not [row for row in measure(150) if row.is_broken]
