"""A sample with weight 2 is two samples."""

import numpy as np
import pandas
import pytest
import torch

import fedtilt as ft
from fedtilt.errors import InputError
from fedtilt.training import LocalJob, autograd_loop, choose_backend, make_batches

MODEL = ft.models.mlp((3,), 3, hidden=(4,))
START = torch.nn.utils.parameters_to_vector(MODEL.parameters()).detach()
X, Y = torch.randn(12, 3, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
WEIGHTS = torch.tensor([2.0, 1, 0, 1, 3, 1, 1, 1, 1, 0, 1, 2])


def trained(x: torch.Tensor, y: torch.Tensor, tilts: dict, weights: torch.Tensor | None) -> torch.Tensor:
    job = LocalJob(start=START, anchor=START, prox=0.1, lr=0.3, measures_loss=True, **tilts)
    batches = make_batches(x, y, seed=0, round=1, client=0, epochs=3, batch_size=100, weights=weights)
    (result,) = autograd_loop.train(MODEL, [job], [batches])
    return torch.cat([result.parameters, autograd_loop.start_loss(MODEL, job, batches)])


@pytest.mark.parametrize(
    "tilts",
    [
        {"tau": 0.0, "lam": 0.0},
        {"tau": 0.0, "lam": -2.0},
        {"tau": 5.0, "lam": 1.0},
        {"tau": float("inf"), "lam": 0.0},
        {"tau": 1.0, "lam": float("-inf")},
    ],
)
def test_a_weight_is_a_number_of_copies(tilts: dict) -> None:
    copies = torch.repeat_interleave(torch.arange(12), WEIGHTS.long())
    weighted, repeated = trained(X, Y, tilts, WEIGHTS), trained(X[copies], Y[copies], tilts, None)
    torch.testing.assert_close(weighted, repeated, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(weighted, trained(X, Y, tilts, None), atol=1e-3)


def test_equal_weights_are_no_weights() -> None:
    tilts = {"tau": 1.0, "lam": -1.0}
    torch.testing.assert_close(trained(X, Y, tilts, torch.full((12,), 0.5)), trained(X, Y, tilts, None))


def test_only_autograd_trains_weighted_samples() -> None:
    job = LocalJob(start=START, anchor=START, prox=0.0, lr=0.1, tau=0.0, lam=0.0)
    choice = choose_backend(MODEL, [job], "cpu", weighted=True)
    assert choice.name == "autograd"
    assert set(choice.reasons.values()) == {"samples have weights"}
    with pytest.raises(InputError, match="backend 'fused' cannot train this because samples have weights"):
        choose_backend(MODEL, [job], "cpu", "fused", weighted=True)


def frame() -> pandas.DataFrame:
    rng = np.random.default_rng(0)
    x = rng.normal(size=60)
    return pandas.DataFrame(
        {"x": x, "z": rng.normal(size=60), "w": np.arange(60) % 3, "site": ["n", "s"] * 30, "y": (x > 0) * 1}
    )


def test_a_run_with_a_weight_column() -> None:
    """Rows of weight 0 have no effect on the models, whatever their label."""
    results = []
    for flipped in (False, True):
        table = frame()
        table.loc[table.w == 0, "y"] = 1 - table.y if flipped else table.y
        data = ft.data.table(table.assign(fold="train").pipe(with_test_rows), **COLUMNS)
        fed = ft.Federation.build(data)
        assert fed.train_weights("n").tolist() == [0, 2, 1] * 10
        run = ft.run([ft.fedtilt(tau=1, lam=-1)], fed, ft.models.mlp, rounds=2, participation=1.0, batch_size=100)
        results.append(torch.nn.utils.parameters_to_vector(run["fedtilt"].shared.parameters()))
    assert torch.equal(*results)


COLUMNS = {"target": "y", "client": "site", "weight": "w", "split_column": "fold"}


def with_test_rows(table: pandas.DataFrame) -> pandas.DataFrame:
    return pandas.concat([table, frame().assign(fold="test")], ignore_index=True)
