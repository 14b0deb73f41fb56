"""Convergence: derivatives and constants, contraction, bounds and verdicts."""

from typing import Any

import pytest
import torch

from fedtilt.executors.in_process import one_thread
from fedtilt.math.losses import cross_entropy
from fedtilt.math.tilt import nested_tilt
from reproduction import Options, load
from reproduction.chapter import CaptionedFigure
from reproduction.experiments.convergence import cases, chapter, federation, measure
from reproduction.experiments.convergence_claims import violation_text
from reproduction.experiments.convergence_rates import (
    Problem,
    constants,
    fixed_point,
    gradient_descent,
    over_rounds,
    personal_optimum,
    shared_optimum,
    with_w_fixed,
)

SETTINGS = {"seed": 0, "clients": {"count": 3, "classes_per_client": 2, "max_train": 30}, "rho": 0.1, "mu": 0.1}
TILTS = [(0.0, 0.0), (1.0, 1.0), (0.0, 3.0), (3.0, 0.0), (10.0, 1.0), (2.0, 10.0)]


def problems(tau: float, lam: float) -> list[Problem]:
    return federation(SETTINGS | {"tau": tau, "lam": lam})


@pytest.fixture(autouse=True)
def _alone() -> Any:
    with one_thread(torch.device("cpu")):
        yield


@pytest.mark.parametrize(("tau", "lam"), TILTS)
def test_value_gradient_and_hessian_match_the_library_loss(tau: float, lam: float) -> None:
    p = problems(tau, lam)[0]
    v = torch.randn(p.size, dtype=torch.float64)

    def value(v: torch.Tensor) -> torch.Tensor:
        logits = p.x @ v.reshape(p.classes, -1).T
        return nested_tilt(cross_entropy(logits, p.y), [p.y], [lam, tau]) + p.rho / 2 * v @ v

    start = v.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(value(start), start)
    torch.testing.assert_close(p.value(v), value(v), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(p.gradient(v), gradient, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(p.hessian(v), torch.func.jacrev(p.gradient)(v), rtol=1e-9, atol=1e-12)


def test_the_constants_bound_the_curvature_everywhere() -> None:
    for tau, lam in ((1.0, 1.0), (10.0, 1.0), (1.0, 10.0), (30.0, 30.0)):
        for p in problems(tau, lam):
            most = constants(p).smoothness(tau, lam, mu=0.0)
            for scale in (0.1, 1.0, 10.0, 100.0):
                eigenvalues = torch.linalg.eigvalsh(p.hessian(scale * torch.randn(p.size, dtype=torch.float64)))
                assert eigenvalues[-1] <= most
                assert eigenvalues[0] >= p.rho - 1e-9


def test_the_constants_do_not_depend_on_the_tilts() -> None:
    assert [constants(p) for p in problems(1.0, 1.0)] == [constants(p) for p in problems(50.0, 0.5)]


def test_the_constants_bound_the_distance_of_two_gradients() -> None:
    p = problems(1.0, 1.0)[0]
    bounds = constants(p)
    for scale in (1.0, 10.0, 100.0):
        v = scale * torch.randn(p.size, dtype=torch.float64)
        residuals = (p.x @ v.reshape(p.classes, -1).T).softmax(1) - torch.nn.functional.one_hot(p.y, p.classes)
        gradients = (residuals[:, :, None] * p.x[:, None, :]).flatten(1)
        square = torch.cdist(gradients, gradients).square() / 4
        same = p.y[:, None] == p.y
        assert square[same].max() <= bounds.within + 1e-12
        assert square[~same].max() <= bounds.between + 1e-12


@pytest.mark.parametrize(("tau", "lam"), [(1.0, 1.0), (10.0, 10.0)])
def test_every_iteration_with_w_fixed_contracts_as_in_lemma_6(tau: float, lam: float) -> None:
    result = with_w_fixed(problems(tau, lam), SETTINGS | {"iterations": 2000}, lambda *_: None)
    for client in result["clients"]:
        assert client["worst"] <= client["allowed"] < 1
        assert client["solved"] is not None
        assert client["steepest"] <= client["smoothness"]


def test_gradients_vanish_at_optima() -> None:
    clients = problems(3.0, 2.0)
    anchor = torch.randn(clients[0].size, dtype=torch.float64)
    personal = personal_optimum(clients[0], 0.3, anchor)
    assert (clients[0].gradient(personal) + 0.3 * (personal - anchor)).norm() < 1e-12
    shared = shared_optimum(clients)
    assert sum(p.gradient(shared) for p in clients).norm() < 1e-12  # type: ignore[union-attr]


def test_a_round_does_not_change_its_fixed_point() -> None:
    clients = problems(1.0, 1.0)
    best = shared_optimum(clients)
    torch.testing.assert_close(fixed_point(clients, 1, 0.2, torch.zeros_like(best)), best, rtol=0, atol=1e-11)
    w = fixed_point(clients, 4, 0.2, best)
    ends = torch.stack([gradient_descent(p, w, 4, 0.2, 0.0, w) for p in clients])
    torch.testing.assert_close(ends.mean(0), w, rtol=0, atol=1e-12)
    assert (w - best).norm() > 1e-3  # clients drift: the limit is not the minimiser of the mean


ROUNDS = {"steps": 3, "rounds": 60, "start": "zero", "decay": 0.0}


def test_errors_of_v_obey_our_recursion() -> None:
    for tau, lam in ((0.0, 0.0), (1.0, 1.0), (5.0, 2.0)):
        result = over_rounds(problems(tau, lam), SETTINGS | ROUNDS, lambda *_: None)
        assert result["tightest"] <= 1 + 1e-9
        assert result["personal"][-1][1] < result["personal"][0][1]
        for (_, error), (_, most) in zip(result["personal"], result["bound"], strict=True):
            assert error <= most * (1 + 1e-9)


def test_v_needs_many_rounds_even_with_w_at_its_limit() -> None:
    result = over_rounds(problems(1.0, 1.0), SETTINGS | ROUNDS | {"start": "limit"}, lambda *_: None)
    assert max(error for _, error in result["shared"]) < 1e-11  # g(t) = 0: by the theorem, v would converge at once
    assert result["personal"][1][1] > 0.3 * result["personal"][0][1]
    assert result["personal_factor"] <= result["forget"] + 1e-6
    assert {client["last"] for client in result["crossed"] if client} <= {0}  # v* farther from 0 than w*, once


def test_an_exponential_bound_is_violated_where_w_converges_slowly() -> None:
    slow = SETTINGS | ROUNDS | {"rounds": 150, "decay": 10.0}
    result = over_rounds(problems(1.0, 1.0), slow, lambda *_: None)
    violated = [client for client in result["crossed"] if client is not None]
    assert (
        max(client["at"] for client in violated) == max(client["last"] for client in violated) == 150
    )  # still growing
    assert "to 150" in violation_text(result)
    assert result["tightest"] <= 1 + 1e-9
    assert result["shared_power"] < -0.3


@pytest.mark.parametrize(("tau", "lam"), TILTS)
def test_the_smallest_curvature_is_that_of_the_l2_term(tau: float, lam: float) -> None:
    """Lemmas 2 and 5 with “at least” instead of “above”."""
    for p in problems(tau, lam):
        v = torch.randn(p.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        assert torch.linalg.eigvalsh(p.hessian(v))[0].item() == pytest.approx(p.rho, abs=1e-12)


def test_from_cases_to_verdicts() -> None:
    experiment = load("convergence").quick_version()
    special = [case | {"rounds": 120 if case["decay"] else 20} for case in experiment.settings["special"]]
    fewer = {"clients": SETTINGS["clients"], "iterations": 200, "rounds": 20, "special": special}
    small = dict(experiment.settings) | fewer
    experiment = type(experiment)(**{**vars(experiment), "settings": small})
    results = {c.name: measure(c, Options(), lambda *_: None) for c in cases(experiment, Options())}
    assert len(results) == 6
    report = chapter(experiment, results)
    lemmas = report.verdicts[:5]
    assert [v.holds for v in lemmas] == ["not measured", "not measured", "not measured", "holds", "not measured"]
    assert all(v.claim.startswith(f"Lemma {i}:") and v.why for i, v in enumerate(lemmas, 1))
    assert [v.holds for v in report.verdicts[5:]] == [
        "holds",
        "holds partly",
        "holds partly",
        "does not hold",
        "holds partly",
    ]
    assert "Decaying: violated for " in report.verdicts[8].why
    for case in results.values():
        case["crossed"] = [client and client | {"at": 0} for client in case.get("crossed", [])]
    assert chapter(experiment, results).verdicts[8].holds == "holds partly"  # larger constants would do
    assert len({part.name for part in report.parts if isinstance(part, CaptionedFigure)}) == 4
    broken = results["fixed-tau-1-lam-1"]["clients"][0]
    broken["worst"] = (1 + broken["allowed"]) / 2
    broken["steepest"] = 2 * broken["smoothness"]
    assert [chapter(experiment, results).verdicts[i].holds for i in (3, 5)] == ["does not hold"] * 2
    assert {v.holds for v in chapter(experiment, {}).verdicts} == {"not measured"}
