"""On coins nobody wins: labels that no column tells are predicted with 50 %, by every personal method."""

import warnings
from functools import partial

import numpy as np
import pytest

import fedtilt as ft
from fedtilt.errors import InputWarning
from fedtilt.methods import PRESETS
from reproduction.experiments.splits import coins
from tests.promises.promise import Row, measured

_GIVEN = {"fedtilt": {"tau": 0.5, "lam": -1.0}, "term": {"t": 1.0}}
METHODS = [
    made
    for name, preset in PRESETS.items()
    if (made := preset(**_GIVEN.get(name, {}))).has_personal or made.local_names
]
ROWS = (128, 32, 8)
CLIENTS = 20
PROMISE = "coins: accuracy of the personal methods less 50 points"


def accuracies(rows: int, draws: int, split: str = "random", first: int = 0) -> np.ndarray:
    """The accuracy of every personal method on draws of coins through the library's own split, (draws, methods)."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)  # about small clients
        for seed in range(first, first + draws):
            federation = coins(clients=CLIENTS, columns=3, rows=rows, split=split, seed=seed)
            result = ft.run(
                METHODS, federation, partial(ft.models.mlp, hidden=(8,)), rounds=2, participation=1.0, epochs=5,
                batch_size=max(8, rows // 4), lr=0.1, seed=seed, workers=0, eval_every=2,
            )  # fmt: skip
            found.append([result[method.name].accuracy for method in METHODS])
    return np.array(found)


def simulate(count: int, draws: int, first: int = 0) -> list[Row]:
    """A row per method, which all see the same coins."""
    rows = []
    for method, values in zip(METHODS, accuracies(count, max(8, draws // 12), first=first).T, strict=True):
        error, gap = float(values.std(ddof=1) / np.sqrt(len(values))), abs(float(values.mean()) - 50)
        cell = f"{method.name}, {CLIENTS} clients × {count} rows"
        rows.append(Row(PROMISE, cell, "≤ 0 points", gap, error, gap <= 2 * error))
    return rows


def measure(draws: int, workers: int = 1) -> list[Row]:
    """Every cell."""
    return measured([partial(simulate, count) for count in ROWS], draws, workers)


def test_every_method_with_models_of_clients_is_here() -> None:
    assert {"fedtilt", "ditto", "local", "fedavg_finetuned", "apfl", "fedper", "fedrep", "pfedme"} <= {
        m.name for m in METHODS
    }


def test_nobody_wins_on_random_rows_and_memory_wins_on_proportional_ones() -> None:
    random, proportional = (accuracies(16, 2, split).mean(1) for split in ("random", "proportional"))
    error = 50 / np.sqrt(20 * 4 * 2)  # of the accuracy of one method on all test rows
    assert abs(random.mean() - 50) <= 2 * error
    assert proportional.mean() > random.mean()


@pytest.mark.slow
@pytest.mark.parametrize("rows", ROWS)
def test_nobody_wins(rows: int) -> None:
    """Within two standard errors all together, and each method within those of the largest of so many."""
    found = accuracies(rows, 30)
    together = found.mean(1)
    assert abs(together.mean() - 50) <= 2 * together.std(ddof=1) / np.sqrt(len(together))
    errors = found.std(0, ddof=1) / np.sqrt(len(found))
    assert (np.abs(found.mean(0) - 50) <= 3.2 * errors).all(), dict(
        zip([m.name for m in METHODS], found.mean(0), strict=True)
    )
