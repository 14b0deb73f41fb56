"""Metrics against a plain NumPy reference."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from fedtilt.errors import InputError
from fedtilt.evaluation.metrics import Metrics, compute_metrics


def by_numpy(correct: np.ndarray, total: np.ndarray) -> list[float]:
    accuracy, spread = [], []
    for c, n in zip(correct, total, strict=True):
        if n.sum():
            accuracy.append(100 * c.sum() / n.sum())
            spread.append(np.std([100 * c_k / n_k for c_k, n_k in zip(c, n, strict=True) if n_k]))
    accuracy.sort()
    tenth = math.ceil(len(accuracy) / 10)
    return [
        np.mean(accuracy), np.std(accuracy), np.mean(spread), np.std(spread),
        np.mean(accuracy[:tenth]), np.mean(accuracy[-tenth:]), accuracy[0],
    ]  # fmt: skip


@pytest.mark.parametrize("clients", [1, 2, 9, 10, 11, 100])
@pytest.mark.parametrize("classes", [1, 2, 10])
def test_against_numpy_with_clients_that_lack_classes_or_data(clients: int, classes: int) -> None:
    rng = np.random.default_rng(clients * classes)
    total = rng.integers(0, 30, (clients, classes)) * (rng.random((clients, classes)) < 0.5)
    total[0, 0] = 7  # at least one
    correct = rng.integers(0, total + 1)
    m = compute_metrics(torch.tensor(correct), torch.tensor(total))
    assert (m.client_data_fairness is None) == (classes == 1)  # the spread over one class is no fairness
    spread = m.client_data_fairness or (0.0, 0.0)
    values = [m.accuracy, m.client_fairness, *spread, m.worst, m.best, m.worst_client]
    np.testing.assert_allclose(values, by_numpy(correct, total), rtol=1e-12, atol=1e-9)
    assert Metrics.from_json(m.to_json()) == m
    assert m.clients == (total.sum(1) > 0).sum()
    assert not any(math.isnan(v) for v in values)


def test_one_client_and_one_class() -> None:
    m = compute_metrics(torch.tensor([[3]]), torch.tensor([[4]]))
    assert dataclasses.astuple(m) == ("accuracy", 75.0, 0.0, None, 75.0, 75.0, 75.0, 1, 0.0, ())


@pytest.mark.parametrize(
    ("correct", "total", "message"),
    [
        (torch.zeros(2, 3).int(), torch.zeros(3, 2), "got (2, 3) and (3, 2)"),
        (torch.zeros(2, 3).int(), torch.zeros(2, 3), "no client has any test data"),
        (torch.ones(2, 3).int(), torch.zeros(2, 3), "more correct predictions than samples"),
    ],
)
def test_bad_tables_are_refused(correct: torch.Tensor, total: torch.Tensor, message: str) -> None:
    with pytest.raises(InputError) as error:
        compute_metrics(correct, total)
    assert message in str(error.value)
