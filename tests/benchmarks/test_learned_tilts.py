"""Learned tilts: the loss and its derivatives, and the loop with tilts that do not move."""

import torch

import fedtilt as ft
from benchmarks.learned_tilts import (
    BATCH_SIZE,
    EPOCHS,
    GRID,
    LEARNED,
    LR,
    MU,
    PARTICIPATION,
    Cell,
    LearnedTilts,
    tilted_risk,
)
from fedtilt.models import parameters_to_vector


def test_the_risk_and_its_derivatives_by_the_tilts() -> None:
    losses, labels = torch.tensor([0.1, 2.0, 0.7, 1.5, 0.3]).double(), torch.tensor([0, 0, 1, 1, 1])
    tau, lam = torch.tensor(3.0).double().requires_grad_(), torch.tensor(-2.0).double().requires_grad_()
    risk = tilted_risk(losses, labels, tau, lam)
    torch.testing.assert_close(risk, ft.nested_tilt(losses, [labels], [-2.0, 3.0]))
    assert torch.autograd.gradcheck(lambda tau, lam: tilted_risk(losses, labels, tau, lam), (tau, lam))


def test_tilts_that_do_not_move_are_fedtilt() -> None:
    federation = ft.Federation.build(ft.data.load("digits"), clients=10, max_train=40, validation=0.2, seed=3)
    model = ft.models.logistic
    fixed = LearnedTilts(federation, model, seed=3, start=(2.0, -1.0), rate=0.0)
    for number in (1, 2, 3):
        fixed.round(number)
    train = {"participation": PARTICIPATION, "epochs": EPOCHS, "batch_size": BATCH_SIZE, "lr": LR}
    result = ft.run([ft.fedtilt(tau=2, lam=-1, mu=MU)], federation, model, rounds=3, seed=3, workers=0, **train)[
        "fedtilt"
    ]
    torch.testing.assert_close(fixed.shared, parameters_to_vector(result.shared).detach())
    for client, personal in fixed.personal.items():
        torch.testing.assert_close(personal, parameters_to_vector(result.personal(client)).detach())
    assert fixed.measure() == result.metrics


def test_tilts_move_within_their_bounds() -> None:
    federation = ft.Federation.build(
        ft.data.load("digits"), clients=10, max_train=40, validation=0.2, outliers="flips", seed=3
    )
    learned = LearnedTilts(federation, ft.models.logistic, seed=3)
    learned.round(1)
    (client,) = learned.personal
    assert (learned.tilts[client] != 0).all()
    assert all((tilts == 0).all() for other, tilts in learned.tilts.items() if other != client)


def case(setting: str, seed: int, accuracy: float) -> dict[str, object]:
    same = {"data": "mnist", "outliers": "flips", "client_fairness": 5.0, "class_fairness": 3.0}
    return {"setting": setting, "seed": seed, "accuracy": accuracy, "tau": 0.5, "lam": -1.0} | same


def test_a_cell_has_the_seeds_that_are_complete() -> None:
    grid = [case(name, seed, 90.0 + (name == "tau 0, lam -2")) for name in GRID for seed in (0, 1)]
    cell = Cell.of("mnist", "flips", [*grid, case(LEARNED, 0, 90.5)])
    assert cell is not None
    best = "tau 0, lam -2"
    assert (cell.seeds, cell.front, cell.best, cell.dominators) == ([0], [best], best, [best])
    assert (cell.tau, cell.lam, cell.points[LEARNED]["accuracy"]) == (0.5, -1.0, 90.5)
    assert Cell.of("mnist", "none", grid) is None
