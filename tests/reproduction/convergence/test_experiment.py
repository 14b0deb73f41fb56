from typing import Any

import pytest
import torch

from fedtilt.math.losses import client_loss, cross_entropy
from fedtilt.reproduction import Options, load
from fedtilt.reproduction.chapter import CaptionedFigure
from fedtilt.reproduction.convergence.claims import broken_in
from fedtilt.reproduction.convergence.experiment import cases, chapter, federation, measure
from fedtilt.reproduction.convergence.problem import (
    Problem,
    constants,
    descended,
    personal_optimum,
    resting_point,
    shared_optimum,
)
from fedtilt.reproduction.convergence.rates import over_rounds, with_w_fixed
from fedtilt.rounds.executors import one_thread

SETTINGS = {"seed": 0, "clients": {"count": 3, "classes_per_client": 2, "max_train": 30}, "rho": 0.1, "mu": 0.1}
TILTS = [(0.0, 0.0), (1.0, 1.0), (0.0, 3.0), (3.0, 0.0), (10.0, 1.0), (2.0, 10.0)]


def problems(tau: float, lam: float) -> list[Problem]:
    return federation(SETTINGS | {"tau": tau, "lam": lam})


@pytest.fixture(autouse=True)
def _alone() -> Any:
    with one_thread(torch.device("cpu")):
        yield


@pytest.mark.parametrize(("tau", "lam"), TILTS)
def test_value_gradient_and_hessian_are_those_of_the_library_s_loss(tau: float, lam: float) -> None:
    p = problems(tau, lam)[0]
    v = torch.randn(p.size, dtype=torch.float64)

    def value(v: torch.Tensor) -> torch.Tensor:
        logits = p.x @ v.reshape(p.classes, -1).T
        return client_loss(cross_entropy(logits, p.y), p.y, tau, lam) + p.rho / 2 * v @ v

    start = v.clone().requires_grad_()
    (slope,) = torch.autograd.grad(value(start), start)
    torch.testing.assert_close(p.value(v), value(v), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(p.gradient(v), slope, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(p.hessian(v), torch.func.jacrev(p.gradient)(v), rtol=1e-9, atol=1e-12)


def test_the_constants_bound_the_curvature_wherever_v_is() -> None:
    for tau, lam in ((1.0, 1.0), (10.0, 1.0), (1.0, 10.0), (30.0, 30.0)):
        for p in problems(tau, lam):
            most = constants(p).smoothness(tau, lam, mu=0.0)
            for scale in (0.1, 1.0, 10.0, 100.0):
                curved = torch.linalg.eigvalsh(p.hessian(scale * torch.randn(p.size, dtype=torch.float64)))
                assert curved[-1] <= most
                assert curved[0] >= p.rho - 1e-9


def test_the_constants_do_not_depend_on_the_tilts() -> None:
    assert [constants(p) for p in problems(1.0, 1.0)] == [constants(p) for p in problems(50.0, 0.5)]


def test_no_two_gradients_are_farther_apart_than_the_constants_say() -> None:
    p = problems(1.0, 1.0)[0]
    told = constants(p)
    for scale in (1.0, 10.0, 100.0):
        v = scale * torch.randn(p.size, dtype=torch.float64)
        wrong = (p.x @ v.reshape(p.classes, -1).T).softmax(1) - torch.nn.functional.one_hot(p.y, p.classes)
        each = (wrong[:, :, None] * p.x[:, None, :]).flatten(1)
        square = torch.cdist(each, each).square() / 4
        same = p.y[:, None] == p.y
        assert square[same].max() <= told.within + 1e-12
        assert square[~same].max() <= told.between + 1e-12


@pytest.mark.parametrize(("tau", "lam"), [(1.0, 1.0), (10.0, 10.0)])
def test_every_iteration_with_w_fixed_contracts_as_lemma_6_says(tau: float, lam: float) -> None:
    found = with_w_fixed(problems(tau, lam), SETTINGS | {"iterations": 2000}, lambda *_: None)
    for client in found["clients"]:
        assert client["worst"] <= client["allowed"] < 1
        assert client["solved"] is not None
        assert client["steepest"] <= client["smoothness"]


def test_optima_have_no_slope() -> None:
    clients = problems(3.0, 2.0)
    anchor = torch.randn(clients[0].size, dtype=torch.float64)
    own = personal_optimum(clients[0], 0.3, anchor)
    assert (clients[0].gradient(own) + 0.3 * (own - anchor)).norm() < 1e-12
    shared = shared_optimum(clients)
    assert sum(p.gradient(shared) for p in clients).norm() < 1e-12  # type: ignore[union-attr]


def test_a_round_leaves_its_resting_point_where_it_is() -> None:
    clients = problems(1.0, 1.0)
    best = shared_optimum(clients)
    torch.testing.assert_close(resting_point(clients, 1, 0.2, torch.zeros_like(best)), best, rtol=0, atol=1e-11)
    w = resting_point(clients, 4, 0.2, best)
    ends = torch.stack([descended(p, w, 4, 0.2, 0.0, w) for p in clients])
    torch.testing.assert_close(ends.mean(0), w, rtol=0, atol=1e-12)
    assert (w - best).norm() > 1e-3  # clients drift: the limit is not the minimiser of the mean


ROUNDS = {"steps": 3, "rounds": 60, "start": "zero", "decay": 0.0}


def test_v_forgets_its_start_and_follows_w_as_the_recursion_says() -> None:
    for tau, lam in ((0.0, 0.0), (1.0, 1.0), (5.0, 2.0)):
        found = over_rounds(problems(tau, lam), SETTINGS | ROUNDS, lambda *_: None)
        assert found["tightest"] <= 1 + 1e-9
        assert found["personal"][-1][1] < found["personal"][0][1]
        for (_, error), (_, most) in zip(found["personal"], found["bound"], strict=True):
            assert error <= most * (1 + 1e-9)


def test_with_w_at_its_limit_v_still_takes_its_time() -> None:
    found = over_rounds(problems(1.0, 1.0), SETTINGS | ROUNDS | {"start": "limit"}, lambda *_: None)
    assert max(error for _, error in found["shared"]) < 1e-11  # g(t) = 0, and the theorem promises v at once
    assert found["personal"][1][1] > 0.3 * found["personal"][0][1]
    assert found["personal_factor"] <= found["forget"] + 1e-6
    assert {client["last"] for client in found["crossed"] if client} <= {0}  # v* farther from 0 than w*, once


def test_an_exponential_bound_is_broken_where_w_converges_slowly() -> None:
    slow = SETTINGS | ROUNDS | {"rounds": 150, "decay": 10.0}
    found = over_rounds(problems(1.0, 1.0), slow, lambda *_: None)
    late = [client for client in found["crossed"] if client is not None]
    assert max(client["at"] for client in late) == max(client["last"] for client in late) == 150  # and growing still
    assert "to 150" in broken_in(found)
    assert found["tightest"] <= 1 + 1e-9
    assert found["shared_power"] < -0.3


def test_from_cells_to_verdicts() -> None:
    experiment = load("convergence").quickened()
    special = [case | {"rounds": 120 if case["decay"] else 20} for case in experiment.settings["special"]]
    fewer = {"clients": SETTINGS["clients"], "iterations": 200, "rounds": 20, "special": special}
    small = dict(experiment.settings) | fewer
    experiment = type(experiment)(**{**vars(experiment), "settings": small})
    results = {c.name: measure(c, Options(), lambda *_: None) for c in cases(experiment, Options())}
    assert len(results) == 6
    told = chapter(experiment, results)
    assert [v.holds for v in told.verdicts] == [
        "holds",
        "holds partly",
        "holds partly",
        "does not hold",
        "holds partly",
    ]
    assert "Decaying: broken for " in told.verdicts[3].why
    for case in results.values():
        case["crossed"] = [client and client | {"at": 0} for client in case.get("crossed", [])]
    assert chapter(experiment, results).verdicts[3].holds == "holds partly"  # larger constants would do
    assert len({part.name for part in told.parts if isinstance(part, CaptionedFigure)}) == 4
    broken = results["fixed-tau-1-lam-1"]["clients"][0]
    broken["worst"] = (1 + broken["allowed"]) / 2
    assert chapter(experiment, results).verdicts[0].holds == "does not hold"
    assert {v.holds for v in chapter(experiment, {}).verdicts} == {"not measured"}
